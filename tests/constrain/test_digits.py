"""Numbers end: where a schema leaves them without bounds,
they get some that its own readers need not know of.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.constrain.digits import LARGEST_INTEGER, LARGEST_NUMBER, SMALLEST_STEP, bound_digits
from engine.constrain.grammars import Grammars
from engine.prompt.tokenizer import HfTokenizer
from engine.types import OutputFormat, Sampling

NUMBER = {"minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER, "multipleOf": SMALLEST_STEP}
INTEGER = {"minimum": -LARGEST_INTEGER, "maximum": LARGEST_INTEGER}


@pytest.mark.parametrize(
    ("schema", "added"),
    [
        ({"type": "number"}, NUMBER),
        ({"type": "integer"}, INTEGER),
        ({"type": ["null", "number"]}, NUMBER),
        (
            {"type": "number", "minimum": 0},
            {"maximum": LARGEST_NUMBER, "multipleOf": SMALLEST_STEP},
        ),
        (
            {"type": "number", "exclusiveMaximum": 1, "multipleOf": 0.5},
            {"minimum": -LARGEST_NUMBER},
        ),
        ({"type": "integer", "minimum": LARGEST_INTEGER + 1}, {}),
        ({"type": "number", "minimum": 0, "maximum": 1e-7}, {}),
        ({"type": "number", "minimum": 3.14159265358, "exclusiveMaximum": 3.14159265359}, {}),
        ({"type": "number", "minimum": 2, "maximum": 2.0005}, {"multipleOf": SMALLEST_STEP}),
        ({"type": "number", "enum": [1e300]}, {}),
        ({"type": "string"}, {}),
        ({"type": "string", "format": "date-time"}, {"maxLength": 35}),
        ({"format": "time", "minLength": 8}, {"maxLength": 24}),
        ({"format": "time", "maxLength": 12}, {}),
        ({"format": "time", "minLength": 25}, {}),
        ({"format": "uuid"}, {}),
        ({"format": ["time"]}, {}),
        ({}, {}),
    ],
    ids=str,
)
def test_bounds(schema: dict[str, Any], added: dict[str, Any]) -> None:
    """Only what is missing is added, and only where it can be kept together with what is there."""
    assert bound_digits(schema) == schema | added


def test_only_schemas_are_looked_into() -> None:
    """Every place for a schema is, and values and names that look like one are not."""
    number = {"type": "number"}
    places = {
        "items": number,
        "anyOf": [number],
        "properties": {"type": number},
        "$defs": {"x": number},
        "not": number,
    }
    values = {"const": number, "enum": [number], "default": number, "required": ["number"]}
    bounded = bound_digits(places | values)
    expected = number | NUMBER
    assert bounded == values | {
        "items": expected,
        "anyOf": [expected],
        "properties": {"type": expected},
        "$defs": {"x": expected},
        "not": number,
    }


@pytest.mark.parametrize(
    ("kind", "schema", "text"),
    [
        ("json_schema", {"type": "array", "items": {"type": "number"}}, "[0." + "1" * 40),
        ("json_schema", {"type": "array", "items": {"type": "integer"}}, "[" + "1" * 40),
        (
            "json_schema",
            {"type": "array", "items": {"format": "time", "type": "string"}},
            '["00:00:00.' + "1" * 60,
        ),
        (
            "json_schema",
            {"type": "array", "items": {"format": "date-time"}},
            '["2026-11-30T00:00:00.' + "1" * 60,
        ),
        ("json_schema", {"type": "array", "items": {"format": "duration"}}, '["P' + "1" * 60),
        ("json_object", None, '{"a":0.' + "1" * 40),
        ("json_object", None, '{"a":[{"b":' + "1" * 40),
    ],
    ids=str,
)
def test_digits_end(
    grammars: Grammars, tokenizer: HfTokenizer, kind: Any, schema: Any, text: str
) -> None:
    """A client that only writes digits is made to write something else soon."""
    definition = "" if schema is None else json.dumps(schema)
    constraint = grammars.constraint(
        Sampling(max_tokens=1, output_format=OutputFormat(kind, definition))
    )
    assert constraint is not None
    num_taken = 0
    for token_id in tokenizer.encode(text):
        mask = constraint.allowed()
        if not mask[token_id // 8] >> token_id % 8 & 1:
            break
        constraint.advance(token_id)
        num_taken += 1
    taken = tokenizer.decode(tokenizer.encode(text)[:num_taken])
    assert text.startswith(taken)
    assert 0 < len(taken) < len(text) - 20
