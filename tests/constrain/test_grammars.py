"""Constraints: every answer they allow is in the form that was asked for,
and what can't be kept is refused in words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from engine.constrain.budget import MAX_MEMBERS, MAX_PATTERNS, Budget
from engine.constrain.grammar import MAX_CHARACTERS, MAX_TOOLS, arguments_schema
from engine.constrain.grammars import Grammars
from engine.errors import BadFormat, BadTools
from engine.prompt.call_format import HERMES, CallFormat
from engine.prompt.output_syntax import OutputSyntax
from engine.prompt.reasoning import THINK
from engine.prompt.tokenizer import HfTokenizer
from engine.prompt.types import Tool
from engine.schedule.sequence import Constraint
from engine.types import OutputFormat, Sampling, ToolChoice
from tests.fakes.call_formats import FORMATS
from tests.fakes.call_text import calls_in
from tests.fakes.random_client import RandomClient, allowed_ids
from tests.fakes.schemas import random_schema
from tests.fakes.tokenizer import ByteTokenizer

FEW, MANY = range(20), range(200)


@pytest.fixture(scope="module")
def client(tokenizer: HfTokenizer) -> RandomClient:
    """Takes whatever is allowed."""
    return RandomClient(tokenizer)


def formed(grammars: Grammars, kind: Any, definition: str = "") -> Constraint:
    """The constraint of an output format."""
    constraint = grammars.constraint(
        Sampling(max_tokens=1, output_format=OutputFormat(kind, definition))
    )
    assert constraint is not None
    return constraint


def forced(
    grammars: Grammars, calls: CallFormat, tools: Sequence[Tool], choice: ToolChoice
) -> Constraint:
    """The constraint of an answer that has to call tools."""
    constraint = grammars.constraint(
        Sampling(max_tokens=1, tool_choice=choice), tools, OutputSyntax(calls)
    )
    assert constraint is not None
    return constraint


def check_schema(grammars: Grammars, client: RandomClient, seed: int) -> None:
    schema = random_schema(seed)
    written = client.write(formed(grammars, "json_schema", json.dumps(schema)), seed)
    assert written.is_over, (schema, written.text)
    Draft202012Validator(schema).validate(json.loads(written.text))


def check_calls(grammars: Grammars, client: RandomClient, seed: int) -> None:
    """Names are those offered, arguments validate, and there are as many calls as the choice
    allows."""
    tools = tuple(Tool(f"tool_{i}", "", random_schema(100 * seed + i)) for i in range(1 + seed % 3))
    choice = (
        ToolChoice("required"),
        ToolChoice("required", ("tool_0",)),
        ToolChoice("required", parallel=False),
    )[seed % 3]
    calls = list(FORMATS.values())[seed % len(FORMATS)]
    written = client.write(forced(grammars, calls, tools, choice), seed, max_tokens=4000)
    assert written.is_over, written.text
    found = calls_in(calls, written.text)
    assert found
    assert calls.text(found) == written.text
    if choice != ToolChoice("required"):
        assert len(found) == 1
    schemas = {
        tool.name: tool.parameters
        for tool in tools
        if not choice.names or tool.name in choice.names
    }
    for name, arguments in found:
        Draft202012Validator(schemas[name]).validate(json.loads(arguments))


def test_random_schemas(grammars: Grammars, client: RandomClient) -> None:
    """20 of 20 answers of a client that takes any allowed token validate."""
    for seed in FEW:
        check_schema(grammars, client, seed)


def test_random_calls(grammars: Grammars, client: RandomClient) -> None:
    """20 of 20 forced answers are calls in the model's way of writing them, of all ways in turn."""
    for seed in FEW:
        check_calls(grammars, client, seed)


@pytest.mark.long
def test_many_random_schemas(grammars: Grammars, client: RandomClient) -> None:
    """200 of 200."""
    for seed in MANY:
        check_schema(grammars, client, seed)


@pytest.mark.long
def test_many_random_calls(grammars: Grammars, client: RandomClient) -> None:
    """200 of 200."""
    for seed in MANY:
        check_calls(grammars, client, seed)


@pytest.mark.parametrize(
    ("kind", "definition", "pattern"),
    [
        ("regex", r"[A-Z]{2}-\d{3}", r"[A-Z]{2}-\d{3}"),
        ("regex", r"(yes|no)( indeed)?", r"(yes|no)( indeed)?"),
        ("lark", 'start: word ("," word)~2\nword: /[a-c]+/', r"[a-c]+,[a-c]+,[a-c]+"),
        (
            "json_schema",
            '{"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}',
            r"\[ ?1 ?, ?1 ?\]",
        ),
    ],
    ids=str,
)
def test_other_languages(
    grammars: Grammars, client: RandomClient, kind: str, definition: str, pattern: str
) -> None:
    """Regular expressions and grammars hold for the whole answer, and JSON has at most one blank
    between two parts."""
    for seed in range(8):
        written = client.write(formed(grammars, kind, definition), seed)
        assert written.is_over
        assert re.fullmatch(pattern, written.text)


def test_json_object(grammars: Grammars, client: RandomClient) -> None:
    """Any object, and nothing but an object."""
    whole = [client.write(formed(grammars, "json_object"), seed) for seed in range(8)]
    objects = [json.loads(written.text) for written in whole if written.is_over]
    assert objects
    assert all(isinstance(one, dict) for one in objects)
    assert all(written.text.startswith("{") for written in whole)


def test_the_end_is_allowed_exactly_where_the_grammar_is_satisfied(
    grammars: Grammars, tokenizer: HfTokenizer
) -> None:
    """Not before, and behind the end there is only the end: an answer that goes on regardless
    always has a token."""
    constraint = formed(grammars, "regex", "ab?")
    (stop,) = tokenizer.stop_ids
    assert stop not in allowed_ids(constraint)
    constraint.advance(tokenizer.encode("a")[0])
    assert {stop, *tokenizer.encode("b")} == set(allowed_ids(constraint).tolist())
    for _ in range(3):
        constraint.advance(stop)
        assert allowed_ids(constraint).tolist() == [stop]
    assert constraint.failure is None


def test_text_like_a_control_token_stays_text(
    grammars: Grammars, client: RandomClient, tokenizer: HfTokenizer
) -> None:
    """A constant that reads like the end of a turn is written with the tokens of its characters."""
    written = client.write(formed(grammars, "json_schema", '{"const": "<|im_end|>"}'), 0)
    assert json.loads(written.text) == "<|im_end|>"
    assert not set(written.token_ids) & set(tokenizer.special_tokens.values())


def test_tags_are_control_tokens_where_the_vocabulary_has_them() -> None:
    """The same frame is written as one token or as text, as the model knows it."""
    tools = [Tool("f", "", {"type": "object", "additionalProperties": False})]
    calls = FORMATS["mistral"]
    for tokenizer, tag in (
        (ByteTokenizer(("<|im_end|>", "[TOOL_CALLS]")), (257,)),
        (ByteTokenizer(("<|im_end|>",)), tuple(b"[TOOL_CALLS]")),
    ):
        written = RandomClient(tokenizer).write(
            forced(Grammars(tokenizer), calls, tools, ToolChoice("required")), 0, 5000
        )
        assert written.token_ids[: len(tag)] == tag
        assert written.text.startswith('[TOOL_CALLS] [{"name": "f", "arguments": {')


@pytest.mark.parametrize(
    ("kind", "definition", "words"),
    [
        ("json_schema", '{"if": {"type": "string"}}', "Unimplemented keys"),
        (
            "json_schema",
            '{"type": "array", "uniqueItems": true, "x-guidance": {"lenient": true}}',
            "uniqueItems",
        ),
        ("json_schema", '{"type": "thing"}', "Invalid type: thing"),
        ("json_schema", '{"$ref": "#/$defs/missing"}', "does not exist"),
        ("json_schema", '{"$ref": "https://example.com/schema"}', "not"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "Unsatisfiable"),
        ("json_schema", "[]", "not a JSON object"),
        ("json_schema", "{", "not a JSON object"),
        ("json_schema", r'{"enum": ["\ud800"]}', "not a JSON object"),
        ("regex", "[a", "unclosed"),
        ("regex", "(?=a)b", "look-around"),
        ("lark", 'start: "a" nothing', "nothing"),
        ("lark", "", "no start rule"),
        ("regex", "a" * (MAX_CHARACTERS + 1), "characters"),
    ],
    ids=str,
)
def test_refusals(grammars: Grammars, kind: Any, definition: str, words: str) -> None:
    """What is broken or cannot be kept is refused with a short reason, before anything is
    generated."""
    with pytest.raises(BadFormat, match=re.escape(words)) as caught:
        formed(grammars, kind, definition)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "special", [("<|im_end|>", "<think>", "</think>"), ("<|im_end|>",)], ids=["control", "text"]
)
@pytest.mark.parametrize(
    ("begun", "text", "fits"),
    [
        (False, '{"a":1}', True),
        (False, '<think>{"a": </th\n</think>\n\n{"a":1}', True),
        (False, '<think></think>{"a":1}', True),
        (False, '<think>yes</think>\n\n\n{"a":1}', False),
        (False, 'yes</think>{"a":1}', False),
        (False, '<think>yes</think>{"b":1}', False),
        (True, 'yes</think>\n\n{"a":1}', True),
        (True, 'yes {"a":1}', False),
    ],
)
def test_reasoning_comes_before_the_form(
    special: tuple[str, ...], begun: bool, text: str, fits: bool
) -> None:
    """A model that reasons may, or goes on where the prompt has begun it; what follows is in the
    form, and only that ends."""
    tokenizer = ByteTokenizer(special)
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    sampling = Sampling(max_tokens=1, output_format=OutputFormat("json_schema", json.dumps(schema)))
    constraint = Grammars(tokenizer).constraint(
        sampling, (), OutputSyntax(reasoning=replace(THINK, begun=begun))
    )
    assert constraint is not None
    for token_id in tokenizer.encode(text):
        if token_id not in allowed_ids(constraint):
            assert not fits
            return
        constraint.advance(token_id)
    assert (min(tokenizer.stop_ids) in allowed_ids(constraint)) is fits


@pytest.mark.parametrize("kind", ["regex", "lark"])
def test_every_language_goes_behind_reasoning(kind: Any) -> None:
    """Whatever its kind."""
    tokenizer = ByteTokenizer()
    grammars, syntax = Grammars(tokenizer), OutputSyntax(reasoning=THINK)
    definition = "ab" if kind == "regex" else 'start: "ab"'
    constraint = grammars.constraint(
        Sampling(max_tokens=1, output_format=OutputFormat(kind, definition)), (), syntax
    )
    assert constraint is not None
    for token_id in b"<think>x</think>ab":
        assert token_id in allowed_ids(constraint)
        constraint.advance(token_id)
    assert allowed_ids(constraint).tolist() == sorted(tokenizer.stop_ids)


def test_a_model_without_an_end_is_refused() -> None:
    """An answer that cannot end cannot be kept in a form."""
    with pytest.raises(BadFormat, match="ends an answer"):
        formed(Grammars(ByteTokenizer(stops=())), "json_object")


PAIR = {"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 1009}]}


@pytest.mark.parametrize(
    ("kind", "definition", "words"),
    [
        ("json_schema", '{"type": "integer", "multipleOf": 99999989}', "multipleOf"),
        ("json_schema", '{"type": "number", "multipleOf": 0.99999989}', "multipleOf"),
        ("json_schema", json.dumps(PAIR), "multipleOf"),
        (
            "json_schema",
            json.dumps({"anyOf": [{"multipleOf": 4999, "minimum": i} for i in range(5)]}),
            "multipleOf",
        ),
        ("lark", r'start: %json {"type": "integer", "multiple\u004ff": 99999989}', "multipleOf"),
        (
            "lark",
            f"start: one | two\none: %json {json.dumps(PAIR['allOf'][0])}\ntwo: %json\n "
            f"{json.dumps(PAIR)}",
            "multipleOf",
        ),
        ("lark", "start: %json nothing", "%json"),
        (
            "json_schema",
            json.dumps({"patternProperties": {f"^{i}_": {} for i in range(MAX_PATTERNS + 1)}}),
            "patternProperties",
        ),
        (
            "json_schema",
            json.dumps({"properties": {f"p{i}": {} for i in range(MAX_MEMBERS + 1)}}),
            "properties",
        ),
        ("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000, "not a JSON object"),
    ],
    ids=range(10),
)
def test_what_would_take_too_long_to_compile_is_refused(
    grammars: Grammars, kind: Any, definition: str, words: str
) -> None:
    """Nothing is compiled that would keep all other requests waiting, however short it is."""
    with pytest.raises(BadFormat, match=words):
        formed(grammars, kind, definition)


def test_what_is_cheap_is_not_refused(grammars: Grammars) -> None:
    """Ordinary steps, and an object with many members."""
    steps = {
        f"p{i}": {"type": "number", "multipleOf": step}
        for i, step in enumerate((0.01, 0.25, 5, 60, 1000, 1_000_000))
    }
    formed(grammars, "json_schema", json.dumps({"type": "object", "properties": steps}))
    formed(
        grammars,
        "json_schema",
        json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(200)}}),
    )


def test_tools_that_cost_too_much_are_refused(grammars: Grammars) -> None:
    """Where calls are forced, a tool whose schema is too much, or is none, is named, and not called
    with anything else."""
    costly = Tool(
        "a",
        "",
        {"type": "object", "properties": {"n": {"multipleOf": 99999989}}, "required": ["n"]},
    )
    cheap = Tool(
        "b",
        "",
        {
            "type": "object",
            "properties": {"n": {"const": 1}},
            "required": ["n"],
            "maxProperties": 1,
        },
    )
    broken = Tool("c", "", {"type": "object", "$ref": "#/nowhere", "maxProperties": 0})
    assert "properties" in arguments_schema(cheap, Budget())
    for tool, words in ((costly, "'a' costs too much: multipleOf"), (broken, "/nowhere")):
        with pytest.raises(BadTools, match=words):
            forced(grammars, HERMES, [tool, cheap], ToolChoice("required", parallel=False))


@pytest.mark.parametrize(
    "tools",
    [
        [Tool(f"t{i}", "", {}) for i in range(MAX_TOOLS + 1)],
        [Tool("t", "", {"description": "x" * MAX_CHARACTERS})],
    ],
    ids=["many", "long"],
)
def test_too_many_tools_to_choose_from_are_refused(
    grammars: Grammars, tools: Sequence[Tool]
) -> None:
    """A forced choice among more tools than a grammar holds is the client's error, and found
    without compiling."""
    with pytest.raises(BadFormat, match="tool_choice"):
        forced(grammars, HERMES, tools, ToolChoice("required"))


def test_arguments_are_kept_as_far_as_they_can_be(grammars: Grammars, client: RandomClient) -> None:
    """A keyword of a tool's schema that cannot be kept is left out; without any there is an
    object."""
    half = {
        "type": "object",
        "properties": {"n": {"const": 1}},
        "required": ["n"],
        "additionalProperties": False,
        "if": {},
    }
    for schema, expected in ((half, {"n": 1}), ({}, None)):
        tools = [Tool("f", "", schema)]
        calls = HERMES
        written = client.write(
            forced(grammars, calls, tools, ToolChoice("required", parallel=False)), 3, 3000
        )
        ((name, arguments),) = calls_in(calls, written.text)
        assert name == "f"
        assert isinstance(json.loads(arguments), dict)
        assert expected is None or json.loads(arguments) == expected


def test_some_of_the_tools(grammars: Grammars, client: RandomClient) -> None:
    """Calls of those named, several if they may be, and never of the one left out."""
    tools = [
        Tool(name, "", {"type": "object", "additionalProperties": False})
        for name in ("f", "g", "h")
    ]
    choice, names = ToolChoice("required", ("f", "h")), []
    for seed in range(8):
        written = client.write(forced(grammars, HERMES, tools, choice), seed, 3000)
        names.append([name for name, _ in calls_in(HERMES, written.text)])
    assert {name for each in names for name in each} == {"f", "h"}
    assert max(map(len, names)) > 1


@pytest.mark.parametrize(
    "choice",
    [
        ToolChoice(),
        ToolChoice("none"),
        ToolChoice(names=("f",)),
        ToolChoice("required", ("other",)),
    ],
    ids=str,
)
def test_nothing_is_forced_unasked(grammars: Grammars, choice: ToolChoice) -> None:
    """With no call forced and no format asked for there is no constraint; nor is there one for a
    tool that isn't there."""
    assert (
        grammars.constraint(
            Sampling(max_tokens=1, tool_choice=choice), [Tool("f", "", {})], OutputSyntax(HERMES)
        )
        is None
    )


def test_a_grammar_is_compiled_once_and_shared_by_no_two_answers(
    grammars: Grammars, tokenizer: HfTokenizer
) -> None:
    """Two answers in one format go their own ways."""
    one, other = formed(grammars, "regex", "ab"), formed(grammars, "regex", "ab")
    whole = list(tokenizer.encode("ab"))
    for token_id in whole:
        assert allowed_ids(one).tolist() == [token_id]
        one.advance(token_id)
    assert allowed_ids(one).tolist() == sorted(tokenizer.stop_ids)
    assert allowed_ids(other).tolist() == whole[:1]


def test_a_grammar_that_grows_too_complex_says_so(
    tokenizer: HfTokenizer, grammars: Grammars
) -> None:
    """What goes wrong while an answer is made never raises: the answer may only end, and the reason
    is there to tell."""
    constraint = formed(grammars, "regex", "ab")
    constraint.advance(tokenizer.encode("z")[0])
    assert allowed_ids(constraint).tolist() == sorted(tokenizer.stop_ids)
    assert constraint.failure is not None
