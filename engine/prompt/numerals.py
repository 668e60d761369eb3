"""Numbers that no 64-bit integer and no double holds, kept as they are written in JSON.

Knows no template and no wire format.

Such a number is a `Numeral` in every decoded value, and its own digits wherever that value is
written again: as JSON, as a template's text, in a frame between the processes. The encoders know no
`Numeral` and ask what to do with one, so that values without any cost nothing.
"""

from __future__ import annotations

import json
import re
import secrets
from decimal import Decimal
from typing import Any, Final, final

import msgspec

MAX_DIGITS: Final = 4300
"""Of an integer; longer ones are no number to any decoder here (CPython's own bound)."""

_EXT: Final = 1
_SIGN: Final = f"numeral-{secrets.token_hex(16)}-"
"""Begins the string that stands for a number while JSON is written. No client can know it."""

_STAND_IN: Final = re.compile(rf'"{_SIGN}([^"]*)"')


@final
class Numeral:
    """A JSON number as its text. Equal to the same text alone."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __float__(self) -> float:
        return float(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numeral) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def decode_numbers(text: bytes | memoryview | str) -> Any:
    """Any JSON, every number exact. Takes about twice the time of a decoder that rounds. Raises
    `msgspec.MsgspecError`, also for integers of more than `MAX_DIGITS` digits."""
    return _kept(_decoder.decode(text))


def to_text(value: Any, **options: Any) -> str:
    """`json.dumps(value, **options)`, with numerals."""
    text = json.dumps(value, default=_stand_in, **options)
    return _STAND_IN.sub(r"\1", text) if _SIGN in text else text


def as_numbers(value: Any) -> Any:
    """The value with Python's nearest numbers in place of numerals, for readers that compute: exact
    for integers, infinite beyond a double's range."""
    return json.loads(to_text(value))


def in_json(value: Any) -> Any:
    """An `enc_hook` of `msgspec.json`."""
    return msgspec.Raw(_numeral(value).text.encode())


def in_msgpack(value: Any) -> Any:
    """An `enc_hook` of `msgspec.msgpack`."""
    return msgspec.msgpack.Ext(_EXT, _numeral(value).text.encode())


def from_msgpack(code: int, data: memoryview) -> Any:
    """An `ext_hook` of `msgspec.msgpack`."""
    if code != _EXT:
        raise ValueError(f"no such extension: {code}")
    return Numeral(bytes(data).decode())


def _numeral(value: Any) -> Numeral:
    if isinstance(value, Numeral):
        return value
    raise TypeError(f"no JSON value: {type(value).__name__}")


def _stand_in(value: Any) -> str:
    return _SIGN + _numeral(value).text


def exact_number(text: str) -> float | Numeral:
    """A number with a fraction or an exponent: the double if that is the same number."""
    number = float(text)
    written = repr(number)
    if written == text:
        return number
    try:
        return number if Decimal(written) == Decimal(text) else Numeral(text)
    except ArithmeticError:  # an exponent beyond decimals, too
        return Numeral(text)


def _kept(value: Any) -> Any:
    """The value with numerals for integers beyond 64 bits, in place."""
    kind = type(value)
    if kind is int:
        return value if -(2**63) <= value < 2**64 else Numeral(str(value))
    if kind is dict:
        for key, item in value.items():
            value[key] = _kept(item)
    elif kind is list:
        value[:] = map(_kept, value)
    return value


_decoder: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(float_hook=exact_number)
