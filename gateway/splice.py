"""Finds the model id in a JSON body and puts another one in its place: every other byte stays. Pure.

A body that is read and written again is another one: key order, spaces, escapes and number forms change, and with them the
prefix that an upstream caches.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from gateway.errors import InvalidRequest

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)
_ESCAPED_LETTER: Final = b"\\u006"
"""Begins the escapes of m, o, d, e and l: a key may be written with them."""


class Wanted(NamedTuple):
    """What a body asks for, as far as a gateway must know it to pass it on."""

    model: str
    stream: bool


class _Fields(msgspec.Struct):
    model: Any = None
    stream: Any = False


def wanted(body: bytes) -> Wanted | None:
    """None for what is no JSON object or names no model. Raises `InvalidRequest` where it names two."""
    try:
        fields = msgspec.json.decode(body, type=_Fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(fields.model, str):
        return None
    if (body.count(b'"model"') != 1 or _ESCAPED_LETTER in body) and len(_model_spans(body)) != 1:
        raise InvalidRequest("given more than once: which one is meant depends on who reads it", path="model")
    return Wanted(fields.model, fields.stream is True)


def with_model(body: bytes, model: str) -> bytes:
    """The body with another model id, for a body of which `wanted` has told one."""
    ((begin, end),) = _model_spans(body)
    return body[:begin] + msgspec.json.encode(model) + body[end:]


def _model_spans(body: bytes) -> list[tuple[int, int]]:
    """Where the values of the top-level key `model` stand that are texts."""
    depth, key, is_value = 0, "", False
    spans: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(body):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth != 1:
            continue
        elif token == b":":
            is_value = True
        elif token == b",":
            is_value = False
        elif not is_value:
            key = msgspec.json.decode(token)
        elif key == "model":
            spans.append(match.span())
    return spans
