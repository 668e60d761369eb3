"""OpenAI's tools and messages into a `Prompt`'s parts.

The leading system and developer messages become the prompt's system blocks, so that one
conversation gives the same prompt through either wire format; later ones stay where they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from engine.prompt.types import (
    CacheMark,
    Message,
    Part,
    Prompt,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from gateway.errors import InvalidRequest
from gateway.wire import json_text
from gateway.wire.fields import MAX_DEPTH, Node, clip, deeper_than
from gateway.wire.openai.caching import breakpoint_mark, cache_control
from gateway.wire.openai.errors import (
    empty_array,
    invalid,
    missing,
    param,
    unsupported,
    unsupported_value,
)

ROLES: Final = ("system", "assistant", "user", "function", "tool", "developer")
INSTRUCTION_ROLES: Final = frozenset({"system", "developer"})
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class ChatTurns:
    """Reads the messages of one body. `ttl` is the request's TTL for breakpoints that name none."""

    ttl: str

    def prompt(self, body: Node) -> Prompt:
        """Raises `InvalidRequest` or `FieldError` with the path of the field."""
        nodes = body.children("messages")
        if not body.has("messages"):
            raise missing(body.at("messages"))
        if not nodes:
            raise empty_array(body.at("messages"))
        system: list[TextPart] = []
        messages: list[Message] = []
        for node in nodes:
            role = node.choice("role", ROLES)
            if role in INSTRUCTION_ROLES and not messages:
                system += self._texts(node)
            else:
                messages.append(self._message(node, role))
        return Prompt(messages=tuple(messages), system=tuple(system), tools=self._tools(body))

    def _message(self, node: Node, role: str) -> Message:
        match role:
            case "user":
                return Message("user", tuple(self._texts(node)))
            case "assistant":
                return Message("assistant", tuple(self._assistant(node)))
            case "tool":
                return Message("tool", (self._tool_result(node),))
            case "function":
                raise unsupported_value(node.at("role"), "function")
        return Message("system", tuple(self._texts(node)))

    def _texts(self, node: Node, *kinds: str) -> list[TextPart]:
        """The message's content as text parts; `kinds` are further types of parts that hold text.
        Never empty."""
        message_mark = cache_control(node)
        content = node.value.get("content")
        if type(content) is str:
            return [TextPart(content, message_mark)]
        if content is None:
            raise _no_content(node)
        parts = [self._text(part, kinds) for part in node.children("content")]
        if not parts:
            message = (
                "Invalid 'content': empty array. Expected an array with minimum length 1, but got "
                "an empty array instead."
            )
            raise invalid(node.at("content"), message, "empty_array")
        if message_mark is not None and parts[-1].cache is None:
            parts[-1] = TextPart(parts[-1].text, message_mark)
        return parts

    def _text(self, part: Node, kinds: tuple[str, ...]) -> TextPart:
        kind = part.text("type")
        if kind == "text" or kind in kinds:
            return TextPart(part.text(kind), self._mark(part))
        raise unsupported_value(part.at("type"), clip(kind))

    def _assistant(self, node: Node) -> list[Part]:
        """Reasoning as clients of other engines send it back, text, a refusal as text, then the
        calls in order."""
        for name in ("audio", "function_call"):
            if node.has(name):
                raise unsupported(node.at(name))
        parts: list[Part] = (
            [ThinkingPart(text)] if (text := node.text_or("reasoning_content", "")) else []
        )
        if node.value.get("content") not in (None, "", []):
            parts += self._texts(node, "refusal")
        if node.has("refusal"):
            parts.append(TextPart(node.text("refusal")))
        parts += [self._tool_call(call) for call in node.children("tool_calls")]
        return parts or list(self._texts(node))

    def _tool_call(self, call: Node) -> ToolCallPart:
        kind = call.text_or("type", "function")
        function = call.child("function")
        if kind != "function":
            raise unsupported_value(call.at("type"), clip(kind))
        if function is None:
            raise missing(call.at("function"))
        return ToolCallPart(
            call.text("id"), function.text("name"), decoded_arguments(function.text("arguments"))
        )

    def _tool_result(self, node: Node) -> ToolResultPart:
        return tool_result(node.text("tool_call_id"), self._texts(node))

    def _tools(self, body: Node) -> tuple[Tool, ...]:
        return tuple(self._tool(node) for node in body.children("tools"))

    def _tool(self, node: Node) -> Tool:
        kind = node.text_or("type", "function")
        if kind != "function":
            raise unsupported_value(node.at("type"), clip(kind))
        function = node.child("function")
        if function is None:
            raise missing(node.at("function"))
        return function_tool(function, cache_control(node) or cache_control(function))

    def _mark(self, part: Node) -> CacheMark | None:
        return breakpoint_mark(part, self.ttl)


def tool_result(call_id: str, texts: Sequence[TextPart]) -> ToolResultPart:
    """Text parts join with line breaks; a mark on any of them is one at the end of the result."""
    marks = [part.cache for part in texts if part.cache is not None]
    mark = max(marks, key=lambda mark: mark.ttl_s, default=None)
    return ToolResultPart(call_id, "\n".join(part.text for part in texts), cache=mark)


def function_tool(function: Node, mark: CacheMark | None) -> Tool:
    """A function's name, description and parameters, wherever they stand. Without parameters it
    takes none."""
    name = function.text("name")
    if not TOOL_NAME.fullmatch(name):
        message = (
            f"Invalid '{param(function.at('name'))}': string does not match pattern. Expected a "
            "string that "
            f"matches the pattern '^{TOOL_NAME.pattern}$'."
        )
        raise invalid(function.at("name"), message, "invalid_value")
    parameters = (
        function.json_object("parameters") if function.has("parameters") else dict(NO_PARAMETERS)
    )
    return Tool(name, function.text_or("description", ""), parameters, mark)


def decoded_arguments(text: str) -> dict[str, Any] | str:
    """A call's arguments as an object, or the text as it is where it is none (or one nested beyond
    reason). Blank texts, quoted or not, and null are no arguments."""
    if not text.strip():
        return {}
    try:
        value = json_text.loads(text)
    except orjson.JSONDecodeError:
        return text
    if value is None or (type(value) is str and not value.strip()):
        return {}
    if type(value) is not dict or deeper_than(value, MAX_DEPTH):
        return text
    return value


def _no_content(node: Node) -> InvalidRequest:
    return invalid(
        node.at("content"),
        "Invalid value for 'content': expected a string, got null.",
        "invalid_type",
    )
