"""Large numbers in schemas: an answer has exactly the integers that the client's own schema allows,
or there is a refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from engine.constrain.budget import checked_lark
from engine.constrain.digits import bound_digits, exact_numbers
from engine.constrain.grammars import Grammars
from engine.constrain.integers import LEAST_INTEGER, MOST_INTEGER
from engine.errors import BadFormat, BadTools
from engine.prompt.call_format import HERMES
from engine.prompt.output_syntax import OutputSyntax
from engine.prompt.tokenizer import HfTokenizer
from engine.prompt.types import Tool
from engine.types import OutputFormat, Sampling, ToolChoice
from tests.fakes.random_client import RandomClient

INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


def allows(grammars: Grammars, tokenizer: HfTokenizer, schema: Any, text: str) -> bool:
    """Whether an answer may be just this text."""
    form = OutputFormat("json_schema", json.dumps(schema))
    constraint = grammars.constraint(Sampling(max_tokens=1, output_format=form))
    assert constraint is not None
    for token_id in (*tokenizer.encode(text), min(tokenizer.stop_ids)):
        if not constraint.allowed()[token_id // 8] >> token_id % 8 & 1:
            return False
        constraint.advance(token_id)
    return True


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        (INT64, [MOST_INTEGER, LEAST_INTEGER, 0, -1, 2**53 + 1], [2**63, -(2**63) - 1]),
        ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, [0, MOST_INTEGER], [-1, 2**64]),
        ({"type": "integer", "minimum": 2**62}, [2**62, MOST_INTEGER], [2**62 - 1]),
        ({"type": "integer", "maximum": -(2**62)}, [-(2**62), LEAST_INTEGER], [-(2**62) + 1]),
        ({"type": "integer", "exclusiveMaximum": 2**53 + 2}, [2**53], [2**53 + 2]),
        (
            {"type": "integer", "exclusiveMinimum": 2**53 - 1, "maximum": 2**53},
            [2**53],
            [2**53 - 1, 2**53 + 1],
        ),
        ({"type": "number", "minimum": -1e308, "maximum": 1e308}, [0, 10**15], [10**16]),
        (
            {"allOf": [{"type": "integer"}, {"minimum": -(2**63), "maximum": 2**63 - 1}]},
            [5, -5],
            [2**63, -(2**63) - 1],
        ),
        ({"enum": [2**60, MOST_INTEGER, 7]}, [2**60, MOST_INTEGER, 7], [2**60 + 1, 2**63]),
        (
            {"$ref": "#/components/schemas/a", "components": {"schemas": {"a": INT64}}},
            [MOST_INTEGER],
            [2**63],
        ),
    ],
    ids=range(10),
)
def test_bounds_are_kept(
    grammars: Grammars, tokenizer: HfTokenizer, schema: Any, inside: list[int], outside: list[int]
) -> None:
    """At both ends, and for `const` and `enum` to the last digit."""
    assert [
        number for number in inside if not allows(grammars, tokenizer, schema, str(number))
    ] == []
    assert [number for number in outside if allows(grammars, tokenizer, schema, str(number))] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 2**53 + 1},
        {"const": -(2**63)},
        {"enum": ["a", {"b": [2**64]}]},
        {"type": "integer", "minimum": 2**63},
        {"type": "integer", "maximum": -(2**64)},
        {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1},
        {"type": "number", "minimum": 1e300},
        {"properties": {"a": {"items": {"const": 10**30}}}},
        {"$ref": "#/x", "x": {"const": 2**53 + 1}},
        {"$ref": "#/x/0/y~1z", "x": [{"y/z": {"const": 2**53 + 1}}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["format", "lark", "tool"])
def test_what_cannot_be_held_is_said(
    grammars: Grammars, schema: dict[str, Any], place: str
) -> None:
    """By every way to a grammar; nothing becomes another number, and no tool loses its schema."""
    if place == "tool":
        tool = Tool(
            "f",
            "",
            {"type": "object", "properties": {"a": schema}}
            | ({"x": schema["x"]} if "x" in schema else {}),
        )
        with pytest.raises(BadTools, match="'f'"):
            grammars.constraint(
                Sampling(1, tool_choice=ToolChoice("required")), [tool], OutputSyntax(HERMES)
            )
        return
    text = json.dumps(schema)
    form = (
        OutputFormat("json_schema", text)
        if place == "format"
        else OutputFormat("lark", f"start: %json {text}")
    )
    with pytest.raises(BadFormat, match=r"held exactly|64 bits|held as integers"):
        grammars.constraint(Sampling(max_tokens=1, output_format=form))


@pytest.mark.parametrize("word", ["1e400", "-1e400"])
@pytest.mark.parametrize("key", ["const", "minimum", "default"])
def test_infinite_numbers_are_refused(grammars: Grammars, word: str, key: str) -> None:
    """They are valid JSON, and no number that anybody could write."""
    form = OutputFormat("json_schema", f'{{"type": "number", "{key}": {word}}}')
    with pytest.raises(BadFormat):
        grammars.constraint(Sampling(max_tokens=1, output_format=form))


LIMITS = st.sampled_from([2**53, 2**62, 2**63, 10**15, 10**18]).flatmap(
    lambda near: st.builds(
        lambda sign, by: sign * near + by, st.sampled_from([1, -1]), st.integers(-3000, 3000)
    )
)


@settings(max_examples=300)
@given(LIMITS, LIMITS, st.booleans(), st.booleans(), st.sampled_from(["integer", "number"]))
@example(-(2**63), 2**63 - 1, False, False, "integer")
def test_narrowed_bounds_lie_within(
    one: int, other: int, over: bool, under: bool, kind: str
) -> None:
    """Whatever the bounds, what is left of them is in the client's, and both are numbers that the
    compiler reads exactly."""
    least, most = sorted((one, other))
    schema = {
        "type": kind,
        "exclusiveMinimum" if over else "minimum": least,
        "exclusiveMaximum" if under else "maximum": most,
    }
    try:
        narrowed = exact_numbers(schema)
    except BadFormat:
        return
    if narrowed == schema:
        return
    ends = [narrowed[word] for word in ("minimum", "maximum") if word in narrowed]
    for end in ends:
        assert Draft202012Validator(schema).is_valid(end)
        assert end == MOST_INTEGER or float(end) == end
        assert LEAST_INTEGER <= end <= MOST_INTEGER
    assert len(ends) == 2


def test_answers_are_in_the_client_s_schema(grammars: Grammars, tokenizer: HfTokenizer) -> None:
    """Whatever integer a client of ordinary int64 bounds writes."""
    client, form = RandomClient(tokenizer), OutputFormat("json_schema", json.dumps(INT64))
    for seed in range(20):
        constraint = grammars.constraint(Sampling(max_tokens=1, output_format=form))
        assert constraint is not None
        written = client.write(constraint, seed)
        assert written.is_over
        Draft202012Validator(INT64).validate(json.loads(written.text))


def test_small_numbers_stay_as_they_are() -> None:
    """Nothing is rewritten that need not be, nor are values that are only annotations."""
    schema = {
        "type": "integer",
        "minimum": -5,
        "exclusiveMaximum": 2**53,
        "default": 2**60 + 1,
        "examples": [2**64],
    }
    assert exact_numbers(schema) == schema
    assert bound_digits({"type": "string", "default": 2**64}) == {
        "type": "string",
        "default": 2**64,
    }
    lark = 'start: "x" %json {"type":"integer",  "minimum": 1} "y"\n'
    assert checked_lark(lark) == lark
