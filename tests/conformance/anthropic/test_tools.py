"""Tool use and structured output through the SDK on the real engine: forced calls are valid calls,
forms are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.anthropic.asking import CC, Asker, assistant, filler, text, tool, user

pytestmark = [pytest.mark.engine, pytest.mark.slow]

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Seoul"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize(
    "choice",
    [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}],
)
def test_a_forced_call(ask: Asker, choice: dict[str, Any]) -> None:
    """A tool_use block whose input fits the schema; its result continues the conversation, which
    reads what came before."""
    body: dict[str, Any] = {"tools": [WEATHER], "system": [text(filler(), CC)], "max_tokens": 60}
    question = user("What is the weather in Paris?")
    told = ask(**body, messages=[question], tool_choice=choice)
    (block,) = [block for block in told.message.content if block.type == "tool_use"]
    assert told.message.stop_reason == "tool_use"
    assert block.id.startswith("toolu_")
    assert block.name == "weather"
    assert block.input in ({"city": "Paris"}, {"city": "Seoul"})
    if ask.stream:
        pieces = [
            event.delta.partial_json
            for event in ask.events
            if getattr(getattr(event, "delta", None), "partial_json", None)
        ]
        assert json.loads("".join(pieces)) == block.input
    echo = {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "12 degrees"}
    after = ask(**body | {"max_tokens": 1}, messages=[question, assistant(echo), user(result)])
    assert after.read == told.written > 64


def test_no_call(ask: Asker) -> None:
    """`none` gives text."""
    message = ask(
        tools=[WEATHER],
        tool_choice={"type": "none"},
        messages=[user("Weather in Paris?")],
        max_tokens=8,
    ).message
    assert {block.type for block in message.content} <= {"text"}
    assert message.stop_reason in ("max_tokens", "end_turn")


def test_structured_output(ask: Asker) -> None:
    """The text is JSON of the schema."""
    form = {"type": "json_schema", "schema": WEATHER["input_schema"]}
    message = ask(
        messages=[user("Name a city.")], output_config={"format": form}, max_tokens=60
    ).message
    assert json.loads("".join(block.text for block in message.content if block.type == "text"))[
        "city"
    ] in ("Paris", "Seoul")


def test_a_choice_that_cannot_be(ask_whole: Asker) -> None:
    """Forced without tools, or a tool that is not there."""
    assert ask_whole.refused(messages=[user("x")], tool_choice={"type": "any"}).startswith(
        "tool_choice: "
    )
    told = ask_whole.refused(
        messages=[user("x")], tools=[tool("a")], tool_choice={"type": "tool", "name": "b"}
    )
    assert told == "tool_choice: Tool 'b' not found in provided tools"
