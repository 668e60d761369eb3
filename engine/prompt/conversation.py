"""A prompt as the list of messages that chat templates expect.

Knows what a template can do, not how it looks.

Parts become strings. Neighbouring parts of one role become one message, whatever API split them: an
Anthropic user message with results and text and OpenAI's tool message followed by a user message
give the same list. What a template cannot render is written as text in the same place, never
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from engine.prompt import canonical
from engine.prompt.position_marks import Marks, to_json_marked
from engine.prompt.template_features import TemplateFeatures
from engine.prompt.types import (
    Position,
    Prompt,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)

TAGS: Final = (
    "<system> </system> <assistant> </assistant> <tool_call> </tool_call> "
    "<tool_response> </tool_response> <tools> </tools>"
)
"""Tags around text that a template has no form for."""

_JOINT: Final = "\n"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Arguments of a chat template. `tools` is None where there are none or the template has no
    place for them."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


@dataclass(slots=True)
class _Turn:
    """Neighbouring parts of one role. `call_id` and `name` belong to a tool's result."""

    role: Role
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    call_id: str = ""
    name: str = ""


def build_conversation(prompt: Prompt, features: TemplateFeatures, marks: Marks) -> Conversation:
    """`prompt` for a template with `features`, content marked by `marks`. Equal prompts give equal
    conversations."""
    turns = _Turns(features, marks)
    tools = None
    if prompt.tools and features.tools:
        tools = [
            _tool(canonical.tool_data(tool), Position("tools", i), marks)
            for i, tool in enumerate(prompt.tools)
        ]
    elif prompt.tools:
        turns.describe(prompt)
    for i, block in enumerate(prompt.system):
        turns.add("system", block, Position("system", i))
    for i, message in enumerate(prompt.messages):
        for j, part in enumerate(message.parts):
            turns.add(message.role, part, Position("messages", i, j))
    return Conversation(_Messages(features).build(turns.turns), tools)


class _Turns:
    """Groups parts into turns.

    Call ids are counted through instead of copied: their texts differ between clients and mean
    nothing to a model, and some templates insist on nine letters or digits.
    """

    def __init__(self, features: TemplateFeatures, marks: Marks) -> None:
        self._features = features
        self._marks = marks
        self._call_ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.turns: list[_Turn] = []

    def describe(self, prompt: Prompt) -> None:
        """Tool definitions as system text, for templates that have no place for them."""
        lines = [
            self._marks.text(Position("tools", i), canonical.to_json(canonical.tool_data(tool)))
            for i, tool in enumerate(prompt.tools)
        ]
        self._turn("system").texts.append(
            _JOINT.join([canonical.TOOLS_OPEN, *lines, canonical.TOOLS_CLOSE])
        )

    def add(
        self,
        role: Role,
        part: TextPart | ThinkingPart | ToolCallPart | ToolResultPart,
        position: Position,
    ) -> None:
        """Append one part. What a part is decides its role, save for plain text."""
        match part:
            case TextPart():
                self._text("user" if role == "tool" else role).texts.append(
                    self._marks.text(position, part.text)
                )
            case ThinkingPart():
                self._turn("assistant").thoughts.append(self._marks.text(position, part.text))
            case ToolCallPart():
                self._call(part, position)
            case ToolResultPart():
                self._result(part, position)

    def _turn(self, role: Role) -> _Turn:
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(_Turn(role))
        return self.turns[-1]

    def _text(self, role: Role) -> _Turn:
        """Templates write calls after the text of their message, so text that follows a call opens
        another message."""
        if self.turns and self.turns[-1].role == role and self.turns[-1].calls:
            self.turns.append(_Turn(role))
        return self._turn(role)

    def _call(self, part: ToolCallPart, position: Position) -> None:
        turn = self._turn("assistant")
        self._names[part.call_id] = part.name
        if self._features.tool_turns:
            turn.calls.append(
                _call(canonical.call_data(part, self._call_id(part.call_id)), position, self._marks)
            )
        else:
            turn.texts.append(
                self._marks.text(position, canonical.call_text(part, self._features.calls))
            )

    def _result(self, part: ToolResultPart, position: Position) -> None:
        text = self._marks.text(position, canonical.result_text(part))
        if self._features.tool_turns:
            name = self._names.get(part.call_id, "")
            self.turns.append(_Turn("tool", [text], call_id=self._call_id(part.call_id), name=name))
        else:
            self._turn("user").texts.append(_enclose("tool_response", text))

    def _call_id(self, call_id: str) -> str:
        return self._call_ids.setdefault(call_id, f"call{len(self._call_ids) + 1:05d}")


class _Messages:
    """Turns as messages, roles a template refuses as wrapped user text in their place."""

    def __init__(self, features: TemplateFeatures) -> None:
        self._features = features

    def build(self, turns: list[_Turn]) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        contents: list[list[str]] = []
        for turn in turns:
            role, content = self._place(turn, messages)
            if messages and messages[-1]["role"] == role and turn.role not in ("assistant", "tool"):
                contents[-1].append(content)
            else:
                messages.append({"role": role, "content": ""})
                contents.append([content])
            self._attach(messages[-1], turn)
        for message, texts in zip(messages, contents, strict=True):
            message["content"] = (
                texts[0] if len(texts) == 1 else _JOINT.join(text for text in texts if text)
            )
        return messages

    def _place(self, turn: _Turn, before: list[dict[str, Any]]) -> tuple[str, str]:
        """The role and text of a turn behind the messages `before`."""
        content, after = _JOINT.join(turn.texts), before[-1]["role"] if before else None
        opens = all(message["role"] == "system" for message in before)
        if turn.role == "system" and not (
            self._features.late_system if before else self._features.system
        ):
            return self._user(_enclose("system", content), after)
        if turn.role == "assistant" and opens and not self._features.assistant_first:
            calls = [
                _enclose("tool_call", to_json_marked(call["function"], ensure_ascii=False))
                for call in turn.calls
            ]
            return "user", _enclose("assistant", _JOINT.join([*turn.texts, *calls]))
        if turn.role == "user":
            return self._user(content, after)
        return turn.role, content

    def _user(self, content: str, after: str | None) -> tuple[str, str]:
        """User text; right behind a result that must be answered first, it belongs to that
        result."""
        return (
            "tool" if after == "tool" and not self._features.user_after_tool else "user"
        ), content

    @staticmethod
    def _attach(message: dict[str, Any], turn: _Turn) -> None:
        if turn.role == "tool":
            message |= {"tool_call_id": turn.call_id, "name": turn.name}
        if message["role"] != "assistant":
            return
        if turn.thoughts:
            message["reasoning_content"] = _JOINT.join(turn.thoughts)
        if turn.calls:
            message["tool_calls"] = turn.calls


def _enclose(tag: str, content: str) -> str:
    return f"<{tag}>\n{content}\n</{tag}>"


def _tool(data: dict[str, Any], position: Position, marks: Marks) -> dict[str, Any]:
    """Marked at every depth, since templates differ in how much of a tool they write as JSON."""
    function = {
        **data["function"],
        "parameters": marks.data(position, data["function"]["parameters"]),
    }
    return marks.data(position, {**data, "function": marks.data(position, function)})


def _call(data: dict[str, Any], position: Position, marks: Marks) -> dict[str, Any]:
    arguments = data["function"]["arguments"]
    marked = (
        marks.text(position, arguments)
        if isinstance(arguments, str)
        else marks.data(position, arguments)
    )
    function = marks.data(position, {**data["function"], "arguments": marked})
    return marks.data(position, {**data, "function": function})
