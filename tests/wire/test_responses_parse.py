"""Responses bodies: what they mean, and what is refused in which words."""

from __future__ import annotations

from typing import Any, Final

import orjson
import pytest

from engine.prompt.types import (
    CacheMark,
    Message,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from engine.types import OutputFormat, ToolChoice
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.responses import responses_wire
from gateway.wire.openai.responses.sealed import MAX_NBYTES, sealed, unsealed

WIRE: Final = responses_wire(new_id=lambda: "1")
BREAKPOINT: Final = {"mode": "explicit"}
SHORT: Final = {"mode": "explicit", "ttl": "30m"}
SCHEMA: Final = {"type": "object", "properties": {"x": {"type": "string"}}}
FUNCTION: Final = {
    "type": "function",
    "name": "f",
    "description": "d",
    "parameters": SCHEMA,
    "strict": True,
}


def body(**changes: Any) -> dict[str, Any]:
    """A minimal valid body; `...` removes a field."""
    fields: dict[str, Any] = {"model": "gpt-test", "input": "hi"}
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def parse(fields: Any) -> Request:
    return WIRE.parse(orjson.dumps(fields), {}, request_id="r")


def items(*given: Any, **more: Any) -> Request:
    return parse(body(input=list(given), **more))


def said(role: str, *parts: Any) -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def text(value: str = "x", kind: str = "input_text", **more: Any) -> dict[str, Any]:
    return {"type": kind, "text": value, **more}


BAD: list[tuple[Any, str | None, str | None]] = [
    (body(model=...), "model", "missing_required_parameter"),
    (body(input=...), "input", "missing_required_parameter"),
    (body(input=[]), "input", "empty_array"),
    (body(input=3), "input", "invalid_type"),
    (body(input=[3]), "input[0]", "invalid_type"),
    (body(input=[{"role": "bot", "content": "x"}]), "input[0].role", "invalid_value"),
    (body(input=[{"role": "user"}]), "input[0].content", "missing_required_parameter"),
    (body(input=[said("user")]), "input[0].content", "empty_array"),
    (
        body(input=[said("user", {"type": "input_image"})]),
        "input[0].content[0].type",
        "unsupported_value",
    ),
    (body(input=[{"type": "web_search_call", "id": "w"}]), "input[0].type", "unsupported_value"),
    (
        body(input=[{"type": "compaction", "encrypted_content": "x"}]),
        "input[0].encrypted_content",
        "invalid_encrypted_content",
    ),
    (
        body(input=[{"type": "function_call", "name": "f", "arguments": ""}]),
        "input[0].call_id",
        "missing_required_parameter",
    ),
    (
        body(input=[{"type": "function_call_output", "call_id": "c"}]),
        "input[0].output",
        "missing_required_parameter",
    ),
    (body(instructions=["x"]), "instructions", "invalid_type"),
    (body(metadata={"a": "b", "c": 0.5}), "metadata.c", "invalid_type"),
    (body(max_output_tokens=0), "max_output_tokens", "integer_below_min_value"),
    (body(top_logprobs=21), "top_logprobs", "integer_above_max_value"),
    (body(conversation="conv_1"), "conversation", "unsupported_parameter"),
    (body(prompt={"id": "p"}), "prompt", "unsupported_parameter"),
    (body(text={"format": {"type": "grammar"}}), "text.format.type", "unsupported_value"),
    (
        body(text={"format": {"type": "json_schema", "schema": {}}}),
        "text.format.name",
        "missing_required_parameter",
    ),
    (body(reasoning={"effort": "huge"}), "reasoning.effort", "invalid_value"),
    (body(prompt_cache_options={"ttl": "9h"}), "prompt_cache_options.ttl", "invalid_value"),
    (body(prompt_cache_retention="1h"), "prompt_cache_retention", "invalid_value"),
    (body(tool_choice="required"), "tool_choice", None),
    (
        body(tools=[FUNCTION], tool_choice={"type": "function", "name": "g"}),
        "tool_choice",
        "invalid_value",
    ),
    (body(tools=[{"type": "function", "name": "a b"}]), "tools[0].name", "invalid_value"),
]


@pytest.mark.parametrize(
    ("fields", "param", "code"), BAD, ids=[f"{row[1]}-{row[2]}-{i}" for i, row in enumerate(BAD)]
)
def test_refused_bodies(fields: Any, param: str | None, code: str | None) -> None:
    """Each broken body names its field."""
    with pytest.raises(InvalidRequest) as caught:
        parse(fields)
    reply = WIRE.encode_error(caught.value, request_id="r")
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["type"], error["param"], error["code"]) == (
        400,
        "invalid_request_error",
        param,
        code,
    )


def test_a_body_nested_too_deep_is_refused() -> None:
    """A response repeats parts of its request: what cannot be written back is not taken."""
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    with pytest.raises(InvalidRequest, match="nested more than"):
        parse(body(metadata=deep))


def test_instructions_and_leading_developer_messages() -> None:
    """Both are system text, instructions first; later ones stay in place, and so do all that
    continue a conversation."""
    developer = {"role": "developer", "content": "d"}
    prompt = items(developer, {"role": "user", "content": "q"}, developer, instructions="i").prompt
    assert prompt.system == (TextPart("i"), TextPart("d"))
    assert [message.role for message in prompt.messages] == ["user", "system"]
    continued = items(developer, instructions="i", previous_response_id="resp_0").prompt
    assert (continued.system, continued.messages) == (
        (TextPart("i"),),
        (Message("system", (TextPart("d"),)),),
    )


def test_one_answer_is_one_turn() -> None:
    """Reasoning, text and calls that follow each other are the assistant's one turn; text after
    text is another."""
    prompt = items(
        said("user", text("q")),
        {
            "type": "reasoning",
            "id": "rs",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [text("a", "output_text"), {"type": "refusal", "refusal": "no"}],
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "raw"},
        {"type": "function_call_output", "call_id": "c", "output": [text("r"), text("s")]},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "t"},
        said("assistant", text("b", "output_text")),
        said("assistant", text("c", "output_text")),
    ).prompt
    assert prompt.messages == (
        Message("user", (TextPart("q"),)),
        Message(
            "assistant",
            (
                ThinkingPart("hm"),
                TextPart("a"),
                TextPart("no"),
                ToolCallPart("c", "f", {"x": 1}),
                ToolCallPart("d", "g", {"input": "raw"}),
            ),
        ),
        Message("tool", (ToolResultPart("c", "r\ns"),)),
        Message("tool", (ToolResultPart("d", "t"),)),
        Message("assistant", (TextPart("b"),)),
        Message("assistant", (TextPart("c"),)),
    )


def test_the_same_conversation_through_both_apis_is_one_prompt() -> None:
    """Chat Completions and Responses share a prefix: instructions, tools, turns, calls and results
    mean the same."""
    chat = CHAT_WIRE.parse(
        orjson.dumps(
            {
                "model": "m",
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "description": "d", "parameters": SCHEMA},
                    }
                ],
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "q"},
                    {
                        "role": "assistant",
                        "content": "a",
                        "tool_calls": [
                            {
                                "id": "c",
                                "type": "function",
                                "function": {"name": "f", "arguments": "{}"},
                            }
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c", "content": "r"},
                ],
            }
        ),
        {},
        request_id="r",
    )
    responses = items(
        {"role": "user", "content": "q"},
        said("assistant", text("a", "output_text")),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
        instructions="s",
        tools=[FUNCTION],
    )
    assert responses.prompt == chat.prompt


def test_ids_and_other_unrendered_json_are_no_part_of_the_prompt() -> None:
    """Fresh ids, statuses, key order and unknown members of an item leave prompt and parameters as
    they are."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    plain = items(
        said("developer", text("s")),
        said("user", text("q")),
        call,
        client_metadata={"session": "1"},
    )
    fresh = items(
        {
            "content": [{"text": "s", "type": "input_text", "id": "p1"}],
            "role": "developer",
            "id": "m1",
            "type": "message",
        },
        {"id": "m2", "status": "completed", "phase": "commentary"}
        | said("user", text("q", annotations=[])),
        {"id": "fc_9", "status": "completed", "namespace": None} | dict(reversed(call.items())),
        client_metadata={"session": "2"},
        metadata={"turn": "7"},
        user="someone",
    )
    assert (plain.prompt, plain.parameters) == (fresh.prompt, fresh.parameters)


def test_reasoning_of_others_is_tolerated() -> None:
    """What another provider sealed cannot be read and is left out; what we sealed is read;
    summaries are not the reasoning."""
    reasoning = {
        "type": "reasoning",
        "id": "rs",
        "summary": [{"type": "summary_text", "text": "s"}],
    }
    prompt = items(
        said("user", text("q")),
        reasoning | {"encrypted_content": "gAAAAAB"},
        reasoning | {"encrypted_content": sealed("hm é")},
        said("assistant", text("a", "output_text")),
    ).prompt
    assert prompt.messages[1:] == (Message("assistant", (ThinkingPart("hm é"), TextPart("a"))),)
    assert [unsealed(content).text for content in ("pcg1.", "pcg1.!", "pcg1.AAAA", "")] == [""] * 4


def test_sealed_reasoning_stays_small() -> None:
    """What a body holds sealed is unpacked up to a bound for all of it: a thousand items are no way
    around it."""
    large = {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": sealed("a" * (MAX_NBYTES // 2)),
    }
    request = items(*[large] * 50, said("user", {"type": "input_text", "text": "x"}))
    texts = [
        part.text for part in request.prompt.messages[0].parts if isinstance(part, ThinkingPart)
    ]
    assert sum(map(len, texts)) == MAX_NBYTES
    assert unsealed(sealed("a" * (MAX_NBYTES + 1))).text == ""


def test_marks() -> None:
    """On parts and in outputs, with the TTL each names or inherits."""
    prompt = items(
        said(
            "user",
            text("a", prompt_cache_breakpoint=BREAKPOINT),
            text("b", prompt_cache_breakpoint=BREAKPOINT | {"ttl": "30m"}),
        ),
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [text("r", prompt_cache_breakpoint=BREAKPOINT), text("z")],
        },
        prompt_cache_options={"ttl": "12h"},
    ).prompt
    assert [part.cache for part in prompt.messages[0].parts] == [
        CacheMark(43200.0),
        CacheMark(1800.0),
    ]
    assert prompt.messages[1].parts == (ToolResultPart("c", "r\nz", cache=CacheMark(43200.0)),)


def test_tools() -> None:
    """Functions and custom tools are offered; those the provider runs are left out, and a warning
    says so."""
    request = parse(
        body(
            tools=[
                FUNCTION,
                {"type": "web_search"},
                {"type": "custom", "name": "g", "description": "e"},
            ]
        )
    )
    free_text = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
    }
    assert request.prompt.tools == (Tool("f", "d", SCHEMA), Tool("g", "e", free_text))
    assert request.warnings == ("hosted-tools-ignored",)
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "f"}],
    }
    chosen = parse(
        body(
            tools=[FUNCTION, FUNCTION | {"name": "g"}],
            tool_choice=allowed,
            parallel_tool_calls=False,
        )
    )
    assert chosen.sampling.tool_choice == ToolChoice("required", ("f",), parallel=False)
    some = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [*allowed["tools"], {"type": "custom", "name": "g"}],
    }
    tools = [FUNCTION, {"type": "custom", "name": "g"}, FUNCTION | {"name": "h"}]
    assert parse(body(tools=tools, tool_choice=some)).sampling.tool_choice == ToolChoice(
        names=("f", "g")
    )
    named = parse(body(tools=tools, tool_choice={"type": "custom", "name": "g"}))
    assert named.sampling.tool_choice == ToolChoice("required", ("g",))


def test_formats() -> None:
    """Text, any JSON object, or JSON of a schema; each has a cache of its own."""
    schema = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    formats = [
        parse(body(text={"format": form}))
        for form in ({"type": "text"}, {"type": "json_object"}, schema)
    ]
    assert [request.sampling.output_format for request in formats] == [
        None,
        OutputFormat("json_object"),
        OutputFormat("json_schema", orjson.dumps(SCHEMA).decode()),
    ]
    assert len({str(request.parameters) for request in formats}) == 3


def test_parameters_and_sampling() -> None:
    """What has a cache of its own in the dialects' words, and how tokens are chosen."""
    request = parse(
        body(
            temperature=0,
            top_p=0.5,
            max_output_tokens=7,
            top_logprobs=2,
            reasoning={"effort": "low", "summary": "auto"},
            text={"verbosity": "high"},
            prompt_cache_key="k",
            prompt_cache_options={"mode": "explicit", "ttl": "12h"},
            prompt_cache_retention="24h",
        )
    )
    assert request.parameters == {
        "effort": "low",
        "verbosity": "high",
        "prompt_cache_key": "k",
        "cache_mode": "explicit",
        "cache_ttl_s": 43200.0,
        "retention_s": 86400.0,
    }
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.num_logprobs) == (
        7,
        0.0,
        0.5,
        2,
    )
    assert not request.prewarm


def test_what_only_warms_the_cache_generates_nothing() -> None:
    """`prewarm` is no answer of any length, whatever else is asked of it."""
    for fields in ({}, {"max_output_tokens": 7}, {"stream": True}):
        request = parse(body(prompt_cache_options={"prewarm": True}, **fields))
        assert (request.prewarm, request.sampling.max_tokens) == (True, 0)


def test_an_item_is_referred_to_once() -> None:
    """As at the provider, and so a short body cannot stand for a long item many times."""
    with pytest.raises(InvalidRequest) as refused:
        items(
            {"type": "item_reference", "id": "rs_a_0"}, {"type": "item_reference", "id": "rs_a_0"}
        )
    assert refused.value.path == "input[1].id"
    assert "Duplicate item found with id rs_a_0" in refused.value.message


def test_what_does_not_fit_uses_up_the_room_for_sealed_items() -> None:
    """Nothing is unpacked for nothing over and over."""
    large, small = sealed("a" * (MAX_NBYTES + 1)), sealed("thought")

    def reasoning(content: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [], "encrypted_content": content}

    assert [m.role for m in items(reasoning(small), said("user", text())).prompt.messages] == [
        "assistant",
        "user",
    ]
    assert [
        m.role
        for m in items(reasoning(large), reasoning(small), said("user", text())).prompt.messages
    ] == ["user"]
