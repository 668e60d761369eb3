"""The tools that clients of the Responses API run: alone, in namespaces, and not served."""

from __future__ import annotations

from typing import Any, Final, Literal, Required, get_args, get_origin, get_type_hints

import orjson
import pytest
from openai.types.responses import Response
from openai.types.responses.tool_param import ToolParam

from engine.prompt.types import Tool, ToolCallPart
from engine.types import ToolChoice
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.base import Answer, ToolCall
from gateway.wire.openai.responses import responses_wire
from gateway.wire.openai.responses.tools import FOR_TRAINED_MODELS, HOSTED, SERVED
from policies.pricing import Usage

WIRE: Final = responses_wire(new_id=lambda: "new")
SCHEMA: Final = {"type": "object", "properties": {"q": {"type": "string"}}}
SEARCH: Final = {"type": "function", "name": "search", "description": "Find.", "parameters": SCHEMA}
WEATHER: Final = {
    "type": "namespace",
    "name": "mcp__w",
    "description": "The weather.",
    "tools": [SEARCH, {"type": "custom", "name": "note", "description": "Keep."}],
}


def parse(**changes: Any) -> Request:
    body = orjson.dumps({"model": "m", "input": "hi", "tools": [WEATHER]} | changes)
    return WIRE.parse(body, {}, request_id="req_1")


def known_types() -> set[str]:
    """The words that the SDK has for `type`, in all members of its union of tools."""
    found: set[str] = set()
    for member in get_args(ToolParam):
        hint = get_type_hints(member, include_extras=True)["type"]
        literal = get_args(hint)[0] if get_origin(hint) is Required else hint
        assert get_origin(literal) is Literal
        found.update(get_args(literal))
    return found


def test_every_type_of_the_sdk_is_classified_once() -> None:
    """A new SDK with a new type fails here."""
    classes = (SERVED, FOR_TRAINED_MODELS, HOSTED)
    assert set().union(*classes) == known_types()
    assert sum(map(len, classes)) == len(known_types())


@pytest.mark.parametrize("kind", sorted(FOR_TRAINED_MODELS | HOSTED))
def test_what_cannot_be_served_is_left_out_with_a_warning(kind: str) -> None:
    """Which of the two it is, the warning says."""
    request = parse(tools=[{"type": kind}, SEARCH, {"type": kind}])
    assert [tool.name for tool in request.prompt.tools] == ["search"]
    expected = "client-tools-ignored" if kind in FOR_TRAINED_MODELS else "hosted-tools-ignored"
    assert request.warnings == (expected,)


def test_the_tools_of_a_namespace_are_offered() -> None:
    """Under joined names; two namespaces may have tools of one name."""
    other = WEATHER | {"name": "crm", "description": "", "tools": [SEARCH]}
    request = parse(tools=[SEARCH, WEATHER, other], tool_choice="required")
    assert [tool.name for tool in request.prompt.tools] == [
        "search",
        "mcp__w__search",
        "mcp__w__note",
        "crm__search",
    ]
    assert request.prompt.tools[1] == Tool("mcp__w__search", "The weather.\nFind.", SCHEMA)
    assert request.prompt.tools[2].description == "Keep."
    assert request.warnings == ()


def test_long_names_are_joined_too() -> None:
    """Each may have 64 characters."""
    tool = SEARCH | {"name": "t" * 64}
    request = parse(tools=[WEATHER | {"name": "n" * 64, "tools": [tool]}])
    assert request.prompt.tools[0].name == "n" * 64 + "__" + "t" * 64


@pytest.mark.parametrize("name", ["search", "mcp__w__search"])
def test_a_tool_of_a_namespace_can_be_chosen(name: str) -> None:
    """By its own name or by the joined one, alone or among the allowed."""
    chosen = {"type": "function", "name": name}
    expected = ToolChoice("required", ("mcp__w__search",))
    assert parse(tool_choice=chosen).sampling.tool_choice == expected
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [chosen]}
    assert parse(tool_choice=allowed).sampling.tool_choice == expected
    with pytest.raises(InvalidRequest, match="not found"):
        parse(tool_choice=chosen | {"name": "other"})


def test_a_call_names_its_namespace_whole_and_streamed() -> None:
    """And comes back as the same call, so that it hits the cache."""
    calls = (ToolCall("mcp__w__search", '{"q":"x"}'), ToolCall("mcp__w__note", '{"input":"y"}'))
    request = parse()
    end = Answer("", "stop", None, Usage(1), calls=calls)
    whole = Response.model_validate_json(WIRE.encode_answer(request, end, created_at_s=0.0))
    assert [(item.type, item.name, item.namespace) for item in whole.output] == [  # type: ignore[union-attr]
        ("function_call", "search", "mcp__w"),
        ("custom_tool_call", "note", "mcp__w"),
    ]
    stream = WIRE.stream(request, created_at_s=0.0)
    sent = [stream.start(Usage(1))]
    sent += [stream.call(i, call, begins=True) for i, call in enumerate(calls)]
    lines = b"".join([*sent, stream.finish(end)]).split(b"\n")
    events = [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    items = [item.model_dump(exclude_unset=True) for item in whole.output]
    assert events[-1]["response"]["output"] == items
    (done,) = (each for each in events if each["type"].endswith("arguments.done"))
    assert done["name"] == "search"

    results = [
        {"type": kind, "call_id": item["call_id"], "output": "r"}
        for kind, item in zip(
            ("function_call_output", "custom_tool_call_output"), items, strict=True
        )
    ]
    back = parse(input=[{"role": "user", "content": "hi"}, *items, *results])
    parts = [part for _, part in back.prompt.parts() if isinstance(part, ToolCallPart)]
    assert [(part.name, part.arguments) for part in parts] == [
        ("mcp__w__search", {"q": "x"}),
        ("mcp__w__note", {"input": "y"}),
    ]


@pytest.mark.parametrize(
    "tools",
    [
        [WEATHER, WEATHER],
        [WEATHER, SEARCH | {"name": "mcp__w__search"}],
        [WEATHER | {"tools": [SEARCH, SEARCH]}],
        [WEATHER | {"tools": [{"type": "web_search", "name": "x"}]}],
        [WEATHER | {"tools": [SEARCH | {"name": "no name"}]}],
    ],
)
def test_tools_that_a_call_could_not_name_are_refused(tools: list[Any]) -> None:
    """Two of one name, and what stands in no namespace."""
    with pytest.raises(InvalidRequest) as caught:
        parse(tools=tools)
    assert str(caught.value.path).startswith("tools")
