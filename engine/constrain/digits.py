"""Bounds for the numbers and times of a JSON Schema that has none:
a small model could go on with digits for ever.

Pure data.

What validates against the bounded schema validates against the client's own, never the other way
round only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from engine.constrain.integers import exact_schema

Change: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]

LARGEST_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 8259 §6)."""

LARGEST_NUMBER: Final = 10**15
SMALLEST_STEP: Final = 1e-6
"""Six digits behind the point, and no exponent."""

LONGEST_TIMES: Final[Mapping[str, int]] = {"time": 24, "date-time": 35, "duration": 32}
"""Characters of a `format` that allows any number of digits: six or nine behind the point, and an
offset (RFC 3339 §5.6)."""

ANY_OBJECT: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": {"$ref": "#/$defs/value"},
    "$defs": {
        "value": {
            "anyOf": [
                {"type": ["null", "boolean", "string", "number"]},
                {"type": "array", "items": {"$ref": "#/$defs/value"}},
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/value"}},
            ]
        }
    },
}
"""Any object, in words that name every number."""

_ONE: Final = frozenset(
    {"items", "additionalProperties", "additionalItems", "contains", "if", "then", "else"}
)
_LISTS: Final = frozenset({"prefixItems", "items", "anyOf", "oneOf", "allOf"})
_NAMED: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})


def bound_digits(schema: Any) -> Any:
    """The schema with bounds wherever it allows numbers by `type`, or times by `format`, of any
    size or precision.

    Only schemas are looked into, never values (`const`, `enum`, `default`) or names. What is no
    schema is left as it is. Raises `BadFormat` for numbers that cannot be held exactly.
    """
    return _changed(schema, _bounded)


def exact_numbers(schema: Any) -> Any:
    """The schema with all its numbers held exactly, and nothing else changed. Raises `BadFormat`
    where they cannot be."""
    return _changed(schema, exact_schema)


def _bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    exact = exact_schema(schema)
    return exact | _bounds(exact) | _longest(exact)


def _changed(schema: Any, change: Change) -> Any:
    """The schema with `change` made to every schema in it, those in other places that it refers to
    included. Linear."""
    return _Walk(change, frozenset(map(id, _targets(schema)))).through(schema, is_schema=True)


@dataclass(frozen=True, slots=True)
class _Walk:
    """`targets` are the identities of what is a schema wherever it lies."""

    change: Change
    targets: frozenset[int]

    def through(self, value: Any, *, is_schema: bool) -> Any:
        if isinstance(value, list):
            return [self.through(one, is_schema=False) for one in value]
        if not isinstance(value, Mapping):
            return value
        if is_schema or id(value) in self.targets:
            return self.change(
                {keyword: self._within(keyword, inner) for keyword, inner in value.items()}
            )
        return {name: self.through(inner, is_schema=False) for name, inner in value.items()}

    def _within(self, keyword: str, value: Any) -> Any:
        if keyword in _VALUES:
            return value
        if keyword in _LISTS and isinstance(value, list):
            return [self.through(one, is_schema=True) for one in value]
        if keyword in _NAMED and isinstance(value, Mapping):
            return {name: self.through(one, is_schema=True) for name, one in value.items()}
        return self.through(value, is_schema=keyword in _ONE)


def _targets(schema: Any) -> Iterator[Any]:
    """The values that references within the document (`#/components/schemas/a`) point to."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
            reference = value.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/"):
                yield _found(schema, reference)
        elif isinstance(value, list):
            left.extend(value)


def _found(schema: Any, reference: str) -> Any:
    """The value at a JSON pointer (RFC 6901); None if there is none."""
    target = schema
    for step in reference[2:].split("/"):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal() and int(name[:9]) < len(target):
            target = target[int(name[:9])]
        else:
            return None
    return target


def _bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "number" in kinds:
        largest: int = LARGEST_NUMBER
    elif "integer" in kinds:
        largest = LARGEST_INTEGER
    else:
        return {}
    if "const" in schema or "enum" in schema:
        return {}
    bounds: dict[str, Any] = {}
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    if least is None and not (_is_number(most) and most <= -largest):
        bounds["minimum"] = -largest
    if most is None and not (_is_number(least) and least >= largest):
        bounds["maximum"] = largest
    if "number" in kinds and "multipleOf" not in schema and not _is_fine(least, most):
        bounds["multipleOf"] = SMALLEST_STEP
    return bounds


def _longest(schema: Mapping[str, Any]) -> dict[str, int]:
    form = schema.get("format")
    longest = LONGEST_TIMES.get(form) if isinstance(form, str) else None
    least = schema.get("minLength", 0)
    if longest is None or "maxLength" in schema or not _is_number(least) or least > longest:
        return {}
    return {"maxLength": longest}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_fine(least: Any, most: Any) -> bool:
    """Whether limits are so small, or so close and no steps, that steps of `SMALLEST_STEP` may
    leave nothing within them."""
    limits = [limit for limit in (least, most) if _is_number(limit)]
    is_close = len(limits) == 2 and most - least < 1000 * SMALLEST_STEP
    return any(
        0 < abs(limit) < 1000 * SMALLEST_STEP or (is_close and limit != round(limit, 6))
        for limit in limits
    )
