"""Finds the model id in a JSON body and puts another one in its place: every other byte stays.
Pure.

A body that is read and written again is another one: key order, spaces, escapes and number forms
change, and with them the prefix that an upstream caches.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from gateway.errors import InvalidRequest

_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN: Final = re.compile(rb"(%b|[{}\[\],:])" % _TEXT, re.DOTALL)
_BRACKET: Final = re.compile(rb'[^"{}\[\]]*+(?:%b[^"{}\[\]]*+)*+([{}\[\]])' % _TEXT, re.DOTALL)
"""The next bracket outside of texts: of a deeper level only its end matters."""

_KEY: Final = b'"model"'
_ESCAPED_LETTER: Final = b"\\u006"
"""Begins the escapes of m, o, d, e and l: a key may be written with them."""


class BodySummary(NamedTuple):
    """The fields of a body that decide where it goes."""

    model: str
    stream: bool


class _Fields(msgspec.Struct):
    """The two fields that are decoded; all others are skipped."""

    model: Any = None
    stream: Any = None


_FIELDS: Final = msgspec.json.Decoder(_Fields)


def summarize(body: bytes) -> BodySummary | None:
    """None for a body that is no JSON object or names no model. Raises `InvalidRequest` where it
    names two."""
    try:
        fields = _FIELDS.decode(body)
        if not isinstance(fields.model, str):
            return None
        is_unique = _has_one_model(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not is_unique:
        raise InvalidRequest(
            "given more than once: which one is meant depends on who reads it", path="model"
        )
    return BodySummary(fields.model, fields.stream is True)


def with_model(body: bytes, model: str) -> bytes:
    """The body with another model id, for a body of which `summarize` found one."""
    ((begin, end),) = _model_spans(body)
    return body[:begin] + msgspec.json.encode(model) + body[end:]


def _has_one_model(body: bytes) -> bool:
    """Whether the key `model` stands once at the top level. It may stand deeper too: the cheap ways
    to rule that out come first, as every request takes them."""
    if _ESCAPED_LETTER not in body:
        num_keys = body.count(_KEY)
        if num_keys > 1:
            values = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).values()
            num_keys -= sum([bytes(value).count(_KEY) for value in values])
        if num_keys == 1:
            return True
    return len(_model_spans(body)) == 1


def _model_spans(body: bytes) -> list[tuple[int, int]]:
    """The spans of the string values of the top-level key `model`."""
    depth, position, key, is_value = 0, 0, "", False
    spans: list[tuple[int, int]] = []
    while match := _TOKEN.search(body, position) if depth == 1 else _BRACKET.match(body, position):
        position, token = match.end(), match[1]
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif token in (b":", b","):
            is_value = token == b":"
        elif not is_value:
            key = msgspec.json.decode(token)
        elif key == "model":
            spans.append(match.span(1))
    return spans
