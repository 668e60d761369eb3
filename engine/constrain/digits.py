"""Bounds for the numbers and times of a JSON Schema that has none: a small model could go on with digits for ever. Pure data.

What validates against the bounded schema validates against the client's own, never the other way round only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
"""Characters of a `format` that allows any number of digits: six or nine behind the point, and an offset (RFC 3339 §5.6)."""

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

_ONE: Final = frozenset({"items", "additionalProperties", "additionalItems", "contains", "if", "then", "else"})
_LISTS: Final = frozenset({"prefixItems", "items", "anyOf", "oneOf", "allOf"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_KNOWN: Final = _ONE | _LISTS | _NAMED


def bound_digits(schema: Any) -> Any:
    """The schema with bounds wherever it allows numbers by `type`, or times by `format`, of any size or precision.

    Only schemas are looked into, never values (`const`, `enum`, `default`) or names. What is no schema is left as it is.
    Raises `BadFormat` for numbers that cannot be held exactly.
    """
    return _changed(schema, _bounded)


def exact_numbers(schema: Any) -> Any:
    """The schema with all its numbers held exactly, and nothing else changed. Raises `BadFormat` where they cannot be."""
    return _changed(schema, exact_schema)


def _bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    exact = exact_schema(schema)
    return exact | _bounds(exact) | _longest(exact)


def _changed(schema: Any, change: Change) -> Any:
    """The schema with `change` made to every schema in it, those in other places that it refers to included."""
    changed = _within_all(schema, change)
    for place in sorted(_places(schema)):
        *path, last = place
        target: Any = changed
        for step in path:
            target = target.get(step) if isinstance(target, dict) else None
        if isinstance(target, dict) and isinstance(target.get(last), dict):
            inside = target[last].items()
            target[last] = (
                {name: _within_all(one, change) for name, one in inside} if path else _within_all(target[last], change)
            )
    return changed


def _places(schema: Any) -> set[tuple[str, ...]]:
    """Where schemas lie that are only known by a reference: `#/components/schemas/a` is one of `components/schemas`."""
    found, left = set[tuple[str, ...]](), [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
            path = _pointer(value.get("$ref"))
            if path and path[0] not in _KNOWN:
                found.add(path[:-1] if len(path) > 2 else path)
        elif isinstance(value, list):
            left.extend(value)
    return found


def _pointer(reference: Any) -> tuple[str, ...]:
    """The steps of a JSON pointer (RFC 6901) into the same document; none for what is no such."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return ()
    return tuple(unquote(step).replace("~1", "/").replace("~0", "~") for step in reference[2:].split("/"))


def _within_all(schema: Any, change: Change) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    return change({keyword: _within(keyword, value, change) for keyword, value in schema.items()})


def _within(keyword: str, value: Any, change: Change) -> Any:
    if keyword in _LISTS and isinstance(value, list):
        return [_within_all(one, change) for one in value]
    if keyword in _NAMED and isinstance(value, Mapping):
        return {name: _within_all(one, change) for name, one in value.items()}
    return _within_all(value, change) if keyword in _ONE else value


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
    """Whether limits are so small, or so close and no steps, that steps of `SMALLEST_STEP` may leave nothing within them."""
    limits = [limit for limit in (least, most) if _is_number(limit)]
    is_close = len(limits) == 2 and most - least < 1000 * SMALLEST_STEP
    return any(0 < abs(limit) < 1000 * SMALLEST_STEP or (is_close and limit != round(limit, 6)) for limit in limits)
