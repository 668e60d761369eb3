"""Chat Completions that are understood: what prompt, marks, parameters and choices a body means."""

from __future__ import annotations

from typing import Any

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
from gateway.request import REST_OF_CONTEXT
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.openai.options import ChatOptions
from tests.fakes.chat_bodies import (
    BREAKPOINT,
    CALL,
    OTHER_TOOL,
    THIRD_TOOL,
    TOOL,
    allowed,
    body,
    parse,
    text,
    turns,
    user,
)


def test_leading_instructions_are_the_system_text() -> None:
    """Developer and system messages at the head become system blocks; later ones stay in place."""
    prompt = parse(
        turns(
            {"role": "developer", "content": "a"},
            {"role": "system", "content": [text("b"), text("c")]},
            {"role": "user", "content": "q"},
            {"role": "developer", "content": "late"},
        )
    ).prompt
    assert prompt.system == (TextPart("a"), TextPart("b"), TextPart("c"))
    assert prompt.messages == (
        Message("user", (TextPart("q"),)),
        Message("system", (TextPart("late"),)),
    )


def test_one_conversation_is_one_prompt_through_both_formats() -> None:
    """System text, tools, turns and a finished call mean the same; only who carries the result
    differs."""
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    openai = parse(
        body(
            messages=[
                {"role": "system", "content": "s"},
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "t", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c", "content": "r"},
            ],
            tools=[
                {
                    "type": "function",
                    "function": {"name": "f", "description": "d", "parameters": schema},
                }
            ],
        )
    ).prompt
    blocks = [text("t"), {"type": "tool_use", "id": "c", "name": "f", "input": {}}]
    result = {"type": "tool_result", "tool_use_id": "c", "content": "r"}
    anthropic = MESSAGES_WIRE.parse(
        orjson.dumps(
            {
                "model": "m",
                "max_tokens": 1,
                "system": "s",
                "tools": [{"name": "f", "description": "d", "input_schema": schema}],
                "messages": [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": blocks},
                    {"role": "user", "content": [result]},
                ],
            }
        ),
        {},
        request_id="r",
    ).prompt
    assert (openai.system, openai.tools) == (anthropic.system, anthropic.tools)
    assert openai.messages[:2] == anthropic.messages[:2]
    assert openai.messages[2].parts == anthropic.messages[2].parts


def test_assistant_turns() -> None:
    """Text and refusals are text, calls follow; arguments that are no JSON object stay as they were
    written."""
    raw = {"id": "d", "type": "function", "function": {"name": "g", "arguments": "not json"}}
    prompt = parse(
        turns(
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [text("a"), {"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": None, "refusal": "never"},
            {"role": "assistant", "content": [], "tool_calls": [CALL, raw]},
            {"role": "assistant", "content": ""},
        )
    ).prompt
    assert [message.parts for message in prompt.messages[1:]] == [
        (TextPart("a"), TextPart("no")),
        (TextPart("never"),),
        (ToolCallPart("c", "f", {}), ToolCallPart("d", "g", "not json")),
        (TextPart(""),),
    ]
    assert not prompt.continue_final


def test_marks() -> None:
    """Breakpoints of OpenAI and marks as aggregators pass them on, with the TTL each names or
    inherits."""
    prompt = parse(
        body(
            prompt_cache_options={"ttl": "12h"},
            messages=[
                {"role": "system", "content": [text("s", cache_control={"type": "ephemeral"})]},
                {
                    "role": "user",
                    "content": [
                        text("a", prompt_cache_breakpoint=BREAKPOINT),
                        text("b", prompt_cache_breakpoint=BREAKPOINT | {"ttl": "30m"}),
                        text("c", cache_control={"type": "ephemeral", "ttl": "1h"}),
                        text("d", cache_control=None),
                    ],
                },
                {
                    "role": "tool",
                    "tool_call_id": "c",
                    "content": [text("r", prompt_cache_breakpoint=BREAKPOINT), text("z")],
                },
            ],
            tools=[
                {
                    "type": "function",
                    "function": {"name": "f"},
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        )
    ).prompt
    assert prompt.system == (TextPart("s", CacheMark(300.0)),)
    assert [part.cache for part in prompt.messages[0].parts] == [
        CacheMark(43200.0),
        CacheMark(1800.0),
        CacheMark(3600.0),
        None,
    ]
    assert prompt.messages[1].parts == (ToolResultPart("c", "r\nz", cache=CacheMark(43200.0)),)
    assert prompt.tools == (Tool("f", "", {"type": "object", "properties": {}}, CacheMark(300.0)),)


def test_default_breakpoint_ttl() -> None:
    """A breakpoint without a TTL anywhere lasts thirty minutes."""
    (message,) = parse(user(text(prompt_cache_breakpoint=BREAKPOINT))).prompt.messages
    assert message.parts[0].cache == CacheMark(1800.0)


def test_sampling() -> None:
    """Every sampling field, those of vLLM's server included."""
    sampling = parse(
        body(
            max_completion_tokens=7,
            max_tokens=9,
            temperature=0,
            top_p=0.5,
            seed=-1,
            stop="x",
            presence_penalty=1,
            frequency_penalty=-1,
            logit_bias={"17": -100},
            top_k=-1,
            min_p=0.1,
            repetition_penalty=1.1,
            ignore_eos=True,
        )
    ).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (
        7,
        0.0,
        0.5,
        -1,
    )
    assert (sampling.stop, sampling.logit_bias, sampling.top_k, sampling.min_p) == (
        ("x",),
        {17: -100.0},
        0,
        0.1,
    )
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.repetition_penalty, sampling.ignore_eos) == (1.1, True)
    assert parse(body(max_tokens=2**40)).sampling.max_tokens == REST_OF_CONTEXT
    assert parse(body()).sampling.max_tokens == REST_OF_CONTEXT


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, OutputFormat("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": {"type": "array"}},
                }
            },
            OutputFormat("json_schema", '{"type":"array"}'),
        ),
        ({"structured_outputs": {"regex": "a+"}}, OutputFormat("regex", "a+")),
        (
            {"structured_outputs": {"json": {"enum": ["값"]}}},
            OutputFormat("json_schema", '{"enum": ["\\uac12"]}'),
        ),
        ({"guided_json": '{"enum": [1]}'}, OutputFormat("json_schema", '{"enum": [1]}')),
        ({"guided_choice": ["yes", 'a"b']}, OutputFormat("lark", 'start: "yes" | "a\\"b"')),
        ({"guided_grammar": 'start: "x"'}, OutputFormat("lark", 'start: "x"')),
    ],
    ids=str,
)
def test_output_formats(fields: dict[str, Any], expected: OutputFormat | None) -> None:
    """The form of an answer, in OpenAI's words and in those of vLLM's server; each has a cache of
    its own."""
    request = parse(body(**fields))
    assert request.sampling.output_format == expected
    assert ("output_format" in request.parameters) == (expected is not None)


def test_what_asks_for_nothing_is_accepted() -> None:
    """Defaults in words, and fields that change no answer."""
    request = parse(
        body(
            n=1,
            logprobs=False,
            top_logprobs=0,
            tool_choice="auto",
            response_format={"type": "text"},
            modalities=["text"],
            parallel_tool_calls=True,
            store=True,
            metadata={"a": "b"},
            user="u",
            service_tier="auto",
            prompt_cache_retention="in_memory",
            reasoning_effort="medium",
            verbosity="medium",
            new_field={},
        )
    )
    assert request.parameters == {}


def test_parameters_and_options() -> None:
    """What has a cache of its own is kept in the dialects' words; what concerns the stream, apart
    from it."""
    request = parse(
        body(
            stream=True,
            stream_options={"include_usage": True},
            parallel_tool_calls=False,
            tool_choice="none",
            reasoning_effort="low",
            verbosity="high",
            prompt_cache_key="k",
            prompt_cache_options={"mode": "explicit", "ttl": "12h"},
            cache_control={"type": "ephemeral", "ttl": "1h"},
        ),
        {"cache-control": "no-cache"},
    )
    assert request.parameters == {
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "effort": "low",
        "verbosity": "high",
        "prompt_cache_key": "k",
        "cache_mode": "explicit",
        "cache_ttl_s": 43200.0,
    }
    assert (request.stream, request.options, request.automatic) == (
        True,
        ChatOptions(include_usage=True),
        3600.0,
    )
    assert (request.directives.read, request.directives.store) == (False, True)


CHOICES: list[tuple[Any, ToolChoice]] = [
    (None, ToolChoice()),
    ("auto", ToolChoice()),
    ("none", ToolChoice("none")),
    ("required", ToolChoice("required")),
    ({"type": "function", "function": {"name": "g"}}, ToolChoice("required", ("g",))),
    (allowed("required", "f", "g", "h"), ToolChoice("required")),
    (allowed("auto", "h", "g", "f"), ToolChoice()),
    (allowed("required", "h", "f"), ToolChoice("required", ("f", "h"))),
    (allowed("auto", "h", "f"), ToolChoice(names=("f", "h"))),
    (allowed("auto", "f"), ToolChoice(names=("f",))),
    (allowed("required", "f"), ToolChoice("required", ("f",))),
]


@pytest.mark.parametrize(("choice", "expected"), CHOICES)
def test_tool_choice(choice: Any, expected: ToolChoice) -> None:
    """Every way to choose among three tools, as the engine is told; they are in the prompt whatever
    is chosen."""
    request = parse(body(tools=[TOOL, OTHER_TOOL, THIRD_TOOL], tool_choice=choice))
    assert request.sampling.tool_choice == expected
    assert len(request.prompt.tools) == 3


def test_one_call_at_a_time() -> None:
    """`parallel_tool_calls: false` is told to the engine."""
    request = parse(body(tools=[TOOL], tool_choice="required", parallel_tool_calls=False))
    assert request.sampling.tool_choice == ToolChoice("required", parallel=False)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)],
)
def test_logprobs(fields: dict[str, Any], expected: int | None) -> None:
    """Probabilities of the chosen tokens alone, of others too, or none at all."""
    assert parse(body(**fields)).sampling.num_logprobs == expected


def test_several_answers() -> None:
    """`n` is a number of answers to one prompt."""
    assert parse(body(n=3)).num_choices == 3
    assert parse(body()).num_choices == 1


def test_reasoning_sent_back_is_reasoning() -> None:
    """What other engines' clients call `reasoning_content` is neither lost nor part of the
    answer."""
    turn = {"role": "assistant", "reasoning_content": "hm", "content": "a"}
    prompt = parse(turns({"role": "user", "content": "q"}, turn)).prompt
    assert prompt.messages[1].parts == (ThinkingPart("hm"), TextPart("a"))
