"""Input items of the Responses API: JSON -> a tree of items -> a conversation.

Source: openai 3.57 `types/responses/response_input_item_param.py`.

Ids, statuses and other fields that a client puts on an item are never rendered: fresh ids leave the
prefix as it is. A run of reasoning, text and calls is one assistant turn, as it was when the model
wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from engine.prompt.types import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from gateway.wire.fields import Node, clip
from gateway.wire.openai.caching import breakpoint_mark, cache_control
from gateway.wire.openai.errors import empty_array, invalid, missing, unsupported_value
from gateway.wire.openai.messages import INSTRUCTION_ROLES, decoded_arguments, tool_result
from gateway.wire.openai.responses.options import InputItem, Referred
from gateway.wire.openai.responses.sealed import MAX_NBYTES, unsealed
from gateway.wire.openai.responses.tools import joined_name

ROLES: Final = ("user", "assistant", "system", "developer")
SUMMARY: Final = "Summary of the conversation so far:"
TEXT_TYPES: Final = frozenset({"input_text", "output_text", "text"})


@dataclass(slots=True)
class ItemReader:
    """Reads items one by one. `ttl` is for breakpoints that name none; `sealed_room` is the number
    of bytes of sealed items that may still be unpacked, `referred` holds the ids of items that are
    only named."""

    ttl: str
    sealed_room: int = MAX_NBYTES
    referred: set[str] = field(default_factory=set)

    def read(self, body: Node) -> tuple[InputItem, ...]:
        """The field `input`. Raises `InvalidRequest` or `FieldError` with the path of the field."""
        value = body.value.get("input")
        if type(value) is str:
            return (Message("user", (TextPart(value),)),)
        if value is None:
            raise missing(body.at("input"))
        if not value and type(value) is list:
            raise empty_array(body.at("input"))
        found = (self.item(node, i) for i, node in enumerate(body.children("input")))
        return tuple(item for item in found if item is not None)

    def item(self, node: Node, index: int) -> InputItem | None:
        """Item number `index`; None for reasoning that cannot be read."""
        match kind := node.text_or("type", "message"):
            case "message":
                return self._message(node)
            case "function_call":
                call_id, name = node.text("call_id"), self._called(node)
                arguments = decoded_arguments(node.text("arguments"))
                return Message("assistant", (ToolCallPart(call_id, name, arguments),))
            case "custom_tool_call":
                call_id, name = node.text("call_id"), self._called(node)
                free = {"input": node.text("input")}
                return Message("assistant", (ToolCallPart(call_id, name, free),))
            case "function_call_output" | "custom_tool_call_output":
                return Message("tool", (self._result(node),))
            case "reasoning":
                text = self._reasoning(node)
                return Message("assistant", (ThinkingPart(text),)) if text else None
            case "compaction":
                return self._compaction(node)
            case "item_reference":
                return self._reference(node, index)
        raise unsupported_value(node.at("type"), clip(kind))

    @staticmethod
    def _called(node: Node) -> str:
        """The name by which the model knows the tool that a call was of."""
        return joined_name(node.text_or("namespace", ""), node.text("name"))

    def _reference(self, node: Node, index: int) -> Referred:
        """An item may be named once: a short body must not name a long item many times."""
        name = node.text("id")
        if name in self.referred:
            message = (
                f"Duplicate item found with id {clip(name)}. Remove duplicate items from "
                "your input and try again."
            )
            raise invalid(node.at("id"), message)
        self.referred.add(name)
        return Referred(name, index)

    def _compaction(self, node: Node) -> Message:
        """The summary of an earlier conversation, made by `/v1/responses/compact`."""
        text = self._unsealed(node.text("encrypted_content"))
        if not text:
            message = "This compaction item was not made here, and cannot be read."
            raise invalid(node.at("encrypted_content"), message, "invalid_encrypted_content")
        return Message("system", (TextPart(f"{SUMMARY}\n{text}"),))

    def _reasoning(self, node: Node) -> str:
        """The reasoning as text, open or sealed here; empty where another provider sealed it or
        there is none."""
        found = "".join(part.text("text") for part in node.children("content"))
        return found or self._unsealed(node.text_or("encrypted_content", ""))

    def _unsealed(self, content: str) -> str:
        found = unsealed(content, self.sealed_room)
        self.sealed_room -= found.nbytes
        return found.text

    def _message(self, node: Node) -> Message:
        role = node.choice("role", ROLES)
        texts = tuple(self._texts(node, "content"))
        if role in INSTRUCTION_ROLES:
            return Message("system", texts)
        return Message("assistant" if role == "assistant" else "user", texts)

    def _texts(self, node: Node, key: str) -> list[TextPart]:
        """A string or a list of text parts. Never empty."""
        value = node.value.get(key)
        mark = cache_control(node)
        if type(value) is str:
            return [TextPart(value, mark)]
        if value is None:
            raise missing(node.at(key))
        parts = [self._text(part) for part in node.children(key)]
        if not parts:
            raise empty_array(node.at(key))
        if mark is not None and parts[-1].cache is None:
            parts[-1] = TextPart(parts[-1].text, mark)
        return parts

    def _text(self, part: Node) -> TextPart:
        kind = part.text("type")
        if kind in TEXT_TYPES:
            return TextPart(part.text("text"), breakpoint_mark(part, self.ttl))
        if kind == "refusal":
            return TextPart(part.text("refusal"))
        raise unsupported_value(part.at("type"), clip(kind))

    def _result(self, node: Node) -> ToolResultPart:
        value = node.value.get("output")
        if type(value) is list and not value:
            return ToolResultPart(node.text("call_id"), "")
        texts = self._texts(node, "output")
        return tool_result(node.text("call_id"), texts)


def conversation(
    items: Iterable[InputItem], *, continues: bool
) -> tuple[tuple[TextPart, ...], tuple[Message, ...]]:
    """The system blocks and the turns that the items make; references are left out.

    Instructions before the first turn are system blocks, unless the items continue an earlier
    conversation.
    """
    system: list[TextPart] = []
    turns = Turns()
    for item in items:
        if isinstance(item, Referred):
            continue
        if item.role == "system" and not turns.begun and not continues:
            system += (part for part in item.parts if isinstance(part, TextPart))
        else:
            turns.add(item)
    return tuple(system), turns.joined()


class Turns:
    """Turns made of items. An item of the assistant goes on with its last turn if it is a call, or
    follows nothing but reasoning.

    The turn that is still open is a list of parts: joined to a message with every item, a long run
    of items would cost the square of its length.
    """

    def __init__(self, earlier: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._open: list[Part] = []
        self._only_reasoning = True
        for message in earlier:
            self.add(message)

    @property
    def begun(self) -> bool:
        """Whether there is a turn."""
        return bool(self._messages or self._open)

    def add(self, turn: Message) -> None:
        """Append a turn, or go on with the last one."""
        if turn.role != "assistant":
            self._close()
            self._messages.append(turn)
            return
        if not (self._only_reasoning or isinstance(turn.parts[0], ToolCallPart)):
            self._close()
        self._open += turn.parts
        self._only_reasoning = self._only_reasoning and all(
            isinstance(part, ThinkingPart) for part in turn.parts
        )

    def joined(self) -> tuple[Message, ...]:
        """All turns, the open one included."""
        self._close()
        return tuple(self._messages)

    def _close(self) -> None:
        if self._open:
            self._messages.append(Message("assistant", tuple(self._open)))
        self._open, self._only_reasoning = [], True


def listed_input(body: Node, response_id: str) -> tuple[dict[str, Any], ...]:
    """The input as `GET /v1/responses/{id}/input_items` shows it: items with ids, message content
    as a list of parts."""
    value = body.value.get("input")
    items = [{"role": "user", "content": value}] if type(value) is str else value
    return tuple(listed_item(item, response_id, i) for i, item in enumerate(items or []))


def listed_item(item: dict[str, Any], response_id: str, index: int) -> dict[str, Any]:
    """Item number `index` of the input of a response as it is shown."""
    kind, owner = item.get("type") or "message", f"{response_id.removeprefix('resp_')}_i{index}"
    shown = {"type": kind} | item
    shown["id"] = item.get("id") or f"{'msg' if kind == 'message' else 'item'}_{owner}"
    if kind == "message":
        shown.setdefault("status", "completed")
        if type(item.get("content")) is str:
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            shown["content"] = [
                {"type": part, "text": item["content"]}
                | ({"annotations": []} if part == "output_text" else {})
            ]
    return shown
