"""JSON in and out, with numbers beyond 64 bits and doubles kept digit for digit. Pure.

orjson decodes what it holds exactly, which is nearly every text. The rest is found by its digits,
before anything is decoded, or by orjson's refusal.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from engine.prompt.numerals import Numeral, decode_numbers

LONG: Final = b"0" * 17
"""Digits and points: fewer always fit."""

SMALL: Final = (b"+000", b"0e+000")
"""An exponent that can end below the smallest double, its rarest part first. orjson itself
refuses one that ends above the largest."""

_ALL: Final = bytes(range(256))
_SHAPE: Final = bytes(
    {"e": ord("e"), "E": ord("e"), "-": ord("+")}.get(chr(byte), byte) for byte in _ALL
).translate(bytes(ord("0") if byte in b"0123456789." else byte for byte in _ALL))


def loads(text: bytes | memoryview | str) -> Any:
    """As `orjson.loads`; numbers that a double or a 64-bit integer cannot hold are `Numeral`s."""
    if _may_round(text):
        return _exactly(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _exactly(text, error)


def dumps(value: Any) -> bytes:
    """As `orjson.dumps`, with the digits of every `Numeral`."""
    return orjson.dumps(value, default=_fragment)


def _may_round(text: bytes | memoryview | str) -> bool:
    """Whether a number may be in the text that orjson would round. Strings are looked at, too: to
    tell them apart would cost more than it saves."""
    shape = (text.encode() if isinstance(text, str) else bytes(text)).translate(_SHAPE)
    return LONG in shape or all(part in shape for part in SMALL)


def _exactly(text: bytes | memoryview | str, refusal: orjson.JSONDecodeError | None = None) -> Any:
    """Decoded with exact numbers. What is no JSON is orjson's refusal."""
    try:
        return decode_numbers(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if refusal is not None:
            raise refusal from None
    return orjson.loads(text)


def _fragment(value: Any) -> orjson.Fragment:
    if isinstance(value, Numeral):
        return orjson.Fragment(value.text)
    raise TypeError(f"no JSON value: {type(value).__name__}")
