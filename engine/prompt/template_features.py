"""The shapes of conversation that a template can render, found by rendering samples.

Knows no template by name.

A template shows what it cannot do in three ways: it raises, it leaves the text out, or it puts it
elsewhere. A sample passes when each of its words comes out, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from engine.errors import BadPrompt
from engine.prompt.call_format import HERMES, CallFormat, detect_format

_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "probetool",
        "description": "probedescription",
        "parameters": {
            "type": "object",
            "properties": {"probeargument": {"type": "string"}},
            "required": ["probeargument"],
        },
    },
}


class Render(Protocol):
    def __call__(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None, /
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class TemplateFeatures:
    """The parts of a conversation that a template renders completely and in their place.

    `system`: system text before the first turn. `late_system`: a system message between turns, in
    its place. `assistant_first`: a conversation the assistant opens, behind system text too.
    `tools`: tool definitions; `tools_first`: they stand before the system text, so they stay
    cached when the system text changes. `tool_turns`: calls
    in assistant messages and results in tool messages, several at once. `user_after_tool`: a user
    message right after a result. `calls`: the format in which the template writes calls. A template
    with another format counts as unable to write tools and calls, as its calls cannot be parsed.
    """

    system: bool
    late_system: bool
    assistant_first: bool
    tools: bool
    tools_first: bool
    tool_turns: bool
    user_after_tool: bool
    calls: CallFormat = HERMES


def probe_features(render: Render) -> TemplateFeatures:
    """The features of a template. A sample that raises `BadPrompt` counts as not rendered."""
    asked = [
        _message("user", "zqa"),
        _call_message("zqb"),
        _result_message("zqc", 1),
        _result_message("zqd", 2),
    ]
    answered = [*asked, _message("assistant", "zqe"), _message("user", "zqf")]
    chat = [_message("user", "zqb"), _message("assistant", "zqc"), _message("user", "zqd")]
    system = _in_order(render, [_message("system", "zqa"), *chat], "zqa zqb zqc zqd")
    tool_words = ("probetool", "probedescription", "probeargument")
    head = [_message("system", "zqa"), *chat] if system else chat
    with_tools = _try(render, head, [_TOOL])
    single = [asked[0], _call_message("zqb", 1), asked[2], *answered[-2:]]
    native = next(
        filter(None, (detect_format(_try(render, some, [_TOOL])) for some in (answered, single))),
        None,
    )
    tools = (
        native is not None
        and all(word in with_tools for word in tool_words)
        and "zqb" in with_tools
    )
    calls = native if tools and native is not None else HERMES
    return TemplateFeatures(
        system=system,
        late_system=_in_order(
            render,
            [
                _message("user", "zqa"),
                _message("assistant", "zqb"),
                _message("system", "zqc"),
                _message("user", "zqd"),
            ],
            "zqa zqb zqc zqd",
        ),
        assistant_first=_in_order(render, chat[1:], "zqc zqd")
        and (
            not system or _in_order(render, [_message("system", "zqa"), *chat[1:]], "zqa zqc zqd")
        ),
        tools=tools,
        tools_first=tools and system and with_tools.rindex(tool_words[0]) < with_tools.index("zqa"),
        tool_turns=native is calls
        and _in_order(render, answered, "zqa probecall zqb probecall zqb zqc zqd zqe zqf", [_TOOL]),
        user_after_tool=_in_order(
            render,
            [*asked, _message("user", "zqe")],
            "zqa probecall zqb probecall zqb zqc zqd zqe",
            [_TOOL],
        ),
        calls=calls,
    )


def _message(role: str, word: str) -> dict[str, Any]:
    return {"role": role, "content": word}


def _call_message(word: str, num_calls: int = 2) -> dict[str, Any]:
    function = {"name": "probecall", "arguments": {"argument": word}}
    calls = [
        {"type": "function", "id": f"call0000{i + 1}", "function": function}
        for i in range(num_calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result_message(word: str, number: int) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": word,
        "name": "probecall",
        "tool_call_id": f"call0000{number}",
    }


def _try(
    render: Render,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None = None,
) -> str:
    try:
        return render(messages, tools)
    except BadPrompt:
        return ""


def _in_order(
    render: Render,
    messages: Sequence[dict[str, Any]],
    words: str,
    tools: Sequence[dict[str, Any]] | None = None,
) -> bool:
    text = _try(render, messages, tools)
    cursor = 0
    for word in words.split():
        cursor = text.find(word, cursor) + 1
        if cursor == 0:
            return False
    return True
