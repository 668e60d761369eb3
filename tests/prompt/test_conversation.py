"""The messages a template sees, for prompts of every shape and templates of every ability."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.prompt.conversation import build_conversation
from engine.prompt.position_marks import NoMarks
from engine.prompt.template_features import TemplateFeatures
from engine.prompt.types import Message, Prompt, TextPart, ThinkingPart, ToolResultPart
from tests.prompt.kit import AGENT, RENDERERS, TEMPLATES, call, message, result, say, tool

ALL = TemplateFeatures(
    system=True,
    late_system=True,
    assistant_first=True,
    tools=True,
    tools_first=True,
    tool_turns=True,
    user_after_tool=True,
)

OPENAI_AGENT = msgspec.structs.replace(
    AGENT,
    system=(),
    messages=(
        say("system", "You are terse.", "Answer in German."),
        *AGENT.messages[:2],
        Message("tool", (result(1, "21 degrees"),)),
        Message("tool", (result(2, "22 degrees"),)),
        say("user", "Now answer."),
        *AGENT.messages[3:],
    ),
)


def shown(prompt: Prompt, features: TemplateFeatures = ALL) -> list[tuple[str, str]]:
    """Role and content of each message."""
    return [
        (one["role"], one["content"])
        for one in build_conversation(prompt, features, NoMarks()).messages
    ]


def asked(*messages: Message) -> Prompt:
    """A prompt of messages alone."""
    return Prompt(messages=messages)


def test_both_providers_shapes_are_one() -> None:
    """System text and tool results, wherever the wire format put them, become the same messages."""
    assert build_conversation(AGENT, ALL, NoMarks()) == build_conversation(
        OPENAI_AGENT, ALL, NoMarks()
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_both_providers_shapes_are_the_same_ids(name: str) -> None:
    """And the same tokens, with every template."""
    one, other = (RENDERERS[name].render(prompt) for prompt in (AGENT, OPENAI_AGENT))
    assert one.token_ids == other.token_ids
    assert list(one.offsets.values()) == list(other.offsets.values())


def test_call_ids_do_not_show() -> None:
    """Ids differ between clients and mean nothing: another client's ids give the same messages."""

    def renamed(call_id: str) -> str:
        return call_id.replace("toolu_", "call_abc")

    messages = []
    for one in AGENT.messages:
        parts: list[Any] = []
        for part in one.parts:
            has_id = hasattr(part, "call_id")
            parts.append(
                msgspec.structs.replace(part, call_id=renamed(part.call_id)) if has_id else part
            )
        messages.append(Message(one.role, tuple(parts)))
    other = msgspec.structs.replace(AGENT, messages=tuple(messages))
    assert build_conversation(other, ALL, NoMarks()) == build_conversation(AGENT, ALL, NoMarks())


def test_the_messages_of_an_agent() -> None:
    """One message per turn and per result, calls as objects, ids of nine characters, results with
    their tool's name."""
    made = build_conversation(AGENT, ALL, NoMarks())
    assert [one["role"] for one in made.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
        "user",
    ]
    assert made.messages[2]["content"] == "I look."
    assert made.messages[2]["tool_calls"][1] == {
        "type": "function",
        "id": "call00002",
        "function": {"name": "weather", "arguments": {"city": "Bonn", "days": 3}},
    }
    assert made.messages[4] == {
        "role": "tool",
        "content": "22 degrees",
        "tool_call_id": "call00002",
        "name": "weather",
    }
    assert made.tools is not None
    assert [one["function"]["name"] for one in made.tools] == ["weather", "clock"]


@pytest.mark.parametrize(
    ("prompt", "messages"),
    [
        (asked(say("user", "a", "b")), [("user", "a\nb")]),
        (asked(say("user", "a"), say("user", "b")), [("user", "a\nb")]),
        (asked(say("user", "a"), Message("user", ())), [("user", "a")]),
        (asked(say("user", "a"), say("tool", "b")), [("user", "a\nb")]),
        (
            asked(say("system", "a"), say("system", "b"), say("user", "c")),
            [("system", "a\nb"), ("user", "c")],
        ),
        (asked(say("user", "a"), say("system", "b")), [("user", "a"), ("system", "b")]),
        (asked(say("assistant", "a"), say("assistant", "b")), [("assistant", "a\nb")]),
        (
            asked(Message("user", (TextPart("a"), result(1, "r"), TextPart("b")))),
            [("user", "a"), ("tool", "r"), ("user", "b")],
        ),
        (
            asked(Message("assistant", (call(1), TextPart("b")))),
            [("assistant", ""), ("assistant", "b")],
        ),
    ],
)
def test_turns(prompt: Prompt, messages: list[tuple[str, str]]) -> None:
    """Neighbours of one role join with a newline; nothing changes its place."""
    assert shown(prompt) == messages


def test_reasoning_has_a_field_of_its_own() -> None:
    """Reasoning is never part of the content."""
    prompt = asked(Message("assistant", (ThinkingPart("hm"), ThinkingPart("so"), TextPart("a"))))
    (made,) = build_conversation(prompt, ALL, NoMarks()).messages
    assert made == {"role": "assistant", "content": "a", "reasoning_content": "hm\nso"}


@pytest.mark.parametrize(
    ("lacking", "prompt", "messages"),
    [
        (
            "late_system",
            asked(say("user", "a"), say("system", "b"), say("user", "c")),
            [("user", "a\n<system>\nb\n</system>\nc")],
        ),
        (
            "system",
            asked(say("system", "b"), say("user", "c")),
            [("user", "<system>\nb\n</system>\nc")],
        ),
        (
            "assistant_first",
            asked(say("assistant", "a"), say("user", "b")),
            [("user", "<assistant>\na\n</assistant>\nb")],
        ),
        (
            "assistant_first",
            asked(
                say("system", "s"), say("assistant", "a"), say("user", "b"), say("assistant", "c")
            ),
            [("system", "s"), ("user", "<assistant>\na\n</assistant>\nb"), ("assistant", "c")],
        ),
        (
            "assistant_first",
            asked(Message("assistant", (call(1, x="é"),))),
            [
                (
                    "user",
                    '<assistant>\n<tool_call>\n{"name": "weather", "arguments": {"x": '
                    '"é"}}\n</tool_call>\n</assistant>',
                )
            ],
        ),
        (
            "tool_turns",
            asked(
                say("user", "q"),
                Message("assistant", (TextPart("a"), call(1, x=1))),
                Message("user", (result(1, "r"),)),
            ),
            [
                ("user", "q"),
                (
                    "assistant",
                    'a\n<tool_call>\n{"name": "weather", "arguments": {"x": 1}}\n</tool_call>',
                ),
                ("user", "<tool_response>\nr\n</tool_response>"),
            ],
        ),
        (
            "user_after_tool",
            asked(
                Message("assistant", (call(1),)),
                Message("user", (result(1, "r"), TextPart("b"))),
                say("user", "c"),
            ),
            [("assistant", ""), ("tool", "r\nb\nc")],
        ),
    ],
)
def test_what_a_template_lacks_is_written_as_text_in_place(
    lacking: str, prompt: Prompt, messages: list[tuple[str, str]]
) -> None:
    """Never hoisted, never dropped."""
    assert shown(prompt, replace(ALL, **{lacking: False})) == messages


def test_tools_without_a_place_become_system_text() -> None:
    """They stand before the system text, as in the shipped templates."""
    made = build_conversation(
        msgspec.structs.replace(AGENT, tools=(tool("f"),)), replace(ALL, tools=False), NoMarks()
    )
    assert made.tools is None
    text = made.messages[0]["content"]
    assert text.index('"name": "f"') < text.index("You are terse.")


def test_a_failed_call_is_told() -> None:
    """The result's text says that it is an error."""
    prompt = asked(Message("user", (ToolResultPart("x", "no", is_error=True),)))
    assert shown(prompt) == [("tool", "Error: no")]


def test_a_late_system_message_keeps_the_prefix() -> None:
    """What stood before it keeps its tokens, and what stood before is all that is shared."""
    head = msgspec.structs.replace(AGENT, messages=AGENT.messages[:1])
    more = (say("assistant", "Warm."), say("system", "reminder"), say("user", "Thanks."))
    longer = msgspec.structs.replace(AGENT, messages=(*head.messages, *more))
    for name in ("chatml", "llama3", "plain", "gemma", "hoists", "phi"):
        short, long = RENDERERS[name].render(head), RENDERERS[name].render(longer)
        end = short.offsets[message(0, 1)]
        assert long.offsets[message(0, 1)] == end
        assert long.token_ids[:end] == short.token_ids[:end]
        assert "reminder" in RENDERERS[name].text(longer)[len(RENDERERS[name].text(head)) // 2 :]
