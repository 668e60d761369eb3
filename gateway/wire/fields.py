"""Reading a JSON body field by field, remembering where.

Knows no provider: each wire format words the errors itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

import orjson

from engine.prompt.numerals import Numeral
from gateway.wire.pieces import loads

Path: TypeAlias = tuple[str | int, ...]
Kind: TypeAlias = Literal["string", "integer", "number", "boolean", "array", "object"]
Problem: TypeAlias = Literal["json", "missing", "type", "too_small", "too_large", "choice", "depth"]

MAX_DEPTH: Final = 64
"""Nesting of free-form JSON (schemas, tool arguments) that everything after the parser can walk."""

MAX_QUOTED: Final = 64
"""Characters of a client's word that an error message repeats."""


class FieldError(Exception):
    """A field breaks its rule. `got` is a type name, a number or a clipped word, never a
    text of the prompt."""

    def __init__(
        self, problem: Problem, path: Path, *, expected: Any = None, got: Any = None
    ) -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path
        self.expected = expected
        self.got = got


@dataclass(slots=True, eq=False)
class Node:
    """A JSON object and its path in the body. Every reader treats null like an absent field, except
    where one is required."""

    value: dict[str, Any]
    path: Path

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.value.get(key) is not None

    def at(self, *steps: str | int) -> Path:
        """The path of something inside this object."""
        return (*self.path, *steps)

    def text(self, key: str) -> str:
        """A required string."""
        value = self.value.get(key)
        if type(value) is str:
            return value
        raise self._wrong(key, "string")

    def text_or(self, key: str, default: str) -> str:
        return self.text(key) if self.has(key) else default

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.value.get(key)
        if value is None:
            return default
        if type(value) is bool:
            return value
        raise self._wrong(key, "boolean")

    def integer(self, key: str, low: int | None = None, high: int | None = None) -> int | None:
        """An integer within [low, high], or None."""
        value = self.value.get(key)
        if value is None:
            return None
        if type(value) is not int:
            raise self._wrong(key, "integer")
        self._check_range(key, "integer", value, low, high)
        return value

    def number(self, key: str, low: float | None = None, high: float | None = None) -> float | None:
        """A number within [low, high], or None."""
        value = self.value.get(key)
        if value is None:
            return None
        if type(value) not in (int, float, Numeral):
            raise self._wrong(key, "number")
        value = float(value)
        self._check_range(key, "number", value, low, high)
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """A string, one of `choices`; required where there is no default."""
        if default is not None and self.value.get(key) is None:
            return default
        value = self.text(key)
        if value not in choices:
            raise FieldError("choice", self.at(key), expected=choices, got=clip(value))
        return value

    def strings(self, key: str) -> list[str]:
        """A list of strings; empty when absent."""
        value = self.value.get(key)
        if value is None:
            return []
        if type(value) is not list:
            raise self._wrong(key, "array")
        for i, item in enumerate(value):
            if type(item) is not str:
                raise FieldError("type", self.at(key, i), expected="string", got=type_name(item))
        return value

    def child(self, key: str) -> Node | None:
        """An object, or None."""
        value = self.value.get(key)
        if value is None:
            return None
        if type(value) is not dict:
            raise self._wrong(key, "object")
        return Node(value, (*self.path, key))

    def children(self, key: str) -> list[Node]:
        """A list of objects; empty when absent."""
        value = self.value.get(key)
        if value is None:
            return []
        if type(value) is not list:
            raise self._wrong(key, "array")
        path = (*self.path, key)
        for i, item in enumerate(value):
            if type(item) is not dict:
                raise FieldError("type", (*path, i), expected="object", got=type_name(item))
        return [Node(item, (*path, i)) for i, item in enumerate(value)]

    def json_object(self, key: str) -> dict[str, Any]:
        """A required free-form object with its keys in the client's order, nested at most
        `MAX_DEPTH` deep."""
        value = self.value.get(key)
        if type(value) is not dict:
            raise self._wrong(key, "object")
        if deeper_than(value, MAX_DEPTH):
            raise FieldError("depth", self.at(key), expected=MAX_DEPTH)
        return value

    def json_value(self, key: str) -> Any:
        """Free-form JSON, nested at most `MAX_DEPTH` deep, or None."""
        value = self.value.get(key)
        if deeper_than(value, MAX_DEPTH):
            raise FieldError("depth", self.at(key), expected=MAX_DEPTH)
        return value

    def _wrong(self, key: str, expected: Kind) -> FieldError:
        if key not in self.value:
            return FieldError("missing", self.at(key))
        return FieldError("type", self.at(key), expected=expected, got=type_name(self.value[key]))

    def _check_range(
        self, key: str, kind: Kind, value: float, low: float | None, high: float | None
    ) -> None:
        if low is not None and value < low:
            raise FieldError("too_small", self.at(key), expected=low, got=(kind, value))
        if high is not None and value > high:
            raise FieldError("too_large", self.at(key), expected=high, got=(kind, value))


def decode_body(body: bytes) -> Node:
    """The body as an object. Raises `FieldError` for anything that is not one JSON object in
    UTF-8."""
    try:
        value = loads(body)
    except orjson.JSONDecodeError as error:
        raise FieldError("json", (), got=str(error)) from None
    if type(value) is not dict:
        raise FieldError("type", (), expected="object", got=type_name(value))
    return Node(cast("dict[str, Any]", value), ())


def is_count(text: str, high: int) -> bool:
    """Whether a text of a query is a number from 1 to `high`, in decimal digits."""
    return text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= high


def clip(word: str) -> str:
    """A client's word, short enough to be repeated."""
    return word if len(word) <= MAX_QUOTED else word[:MAX_QUOTED] + "..."


def type_name(value: object) -> Kind | Literal["null"]:
    """JSON's name for the type of a decoded value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float() | Numeral():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def deeper_than(value: object, limit: int) -> bool:
    """Whether objects and arrays are nested more than `limit` deep."""
    if type(value) is dict:
        children = list(value.values())
    elif type(value) is list:
        children = value
    else:
        return False
    return limit == 0 or any(deeper_than(child, limit - 1) for child in children)
