"""Input items of the Responses API into a `Prompt`.

Source: openai 3.57 `types/responses/response_input_item_param.py`.

Ids, statuses and whatever else a client puts on an item are never rendered: fresh ids leave the
prefix as it is. A run of reasoning, text and calls is one assistant turn, as it was when the model
wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from engine.prompt.types import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from gateway.wire.fields import Node, Path, clip
from gateway.wire.openai.caching import breakpoint_mark, cache_control
from gateway.wire.openai.errors import invalid, unsupported_value
from gateway.wire.openai.messages import INSTRUCTION_ROLES, decoded_arguments, empty_array, missing
from gateway.wire.openai.responses.sealed import MAX_NBYTES, unsealed

ROLES: Final = ("user", "assistant", "system", "developer")
SUMMARY: Final = "Summary of the conversation so far:"
TEXT_TYPES: Final = frozenset({"input_text", "output_text", "text"})


@dataclass(slots=True)
class InputItems:
    """Reads the items of one body. `ttl` is for breakpoints that name none.

    With `continues` the items follow an earlier conversation: instructions among them stay where
    they are. `sealed_room` is how many bytes of sealed items may still be unpacked. `referred` are
    items that are only named, and where: they are left out.

    The assistant's turn that is being read is kept as a list of parts: joined to a message with
    every item, a long run of items would cost the square of its length.
    """

    ttl: str
    continues: bool
    system: list[TextPart] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    sealed_room: int = MAX_NBYTES
    referred: dict[str, Path] = field(default_factory=dict)
    _run: list[Part] = field(default_factory=list)
    _only_thoughts: bool = True

    def read(self, body: Node) -> None:
        """Raises `InvalidRequest` or `FieldError` with the path of the field."""
        value = body.value.get("input")
        if type(value) is str:
            self._add(Message("user", (TextPart(value),)))
            return
        if value is None:
            raise missing(body, "input")
        if not value and type(value) is list:
            raise empty_array(body, "input")
        if self.messages and self.messages[-1].role == "assistant":
            self._assistant(*self.messages.pop().parts)
        for node in body.children("input"):
            self._item(node)
        self._close()

    def _item(self, node: Node) -> None:
        kind = node.text_or("type", "message")
        match kind:
            case "message":
                self._message(node)
            case "function_call":
                self._assistant(
                    ToolCallPart(
                        node.text("call_id"),
                        node.text("name"),
                        decoded_arguments(node.text("arguments")),
                    )
                )
            case "custom_tool_call":
                self._assistant(
                    ToolCallPart(
                        node.text("call_id"), node.text("name"), {"input": node.text("input")}
                    )
                )
            case "function_call_output" | "custom_tool_call_output":
                self._add(Message("tool", (self._result(node),)))
            case "reasoning":
                if text := self._reasoning(node):
                    self._assistant(ThinkingPart(text))
            case "compaction":
                self._compaction(node)
            case "item_reference":
                self._refer(node)
            case _:
                raise unsupported_value(node.at("type"), clip(kind))

    def _refer(self, node: Node) -> None:
        """An item stands in a conversation once: a short body must not name a long item many
        times."""
        name = node.text("id")
        if name in self.referred:
            message = (
                f"Duplicate item found with id {clip(name)}. Remove duplicate items from "
                "your input and try again."
            )
            raise invalid(node.at("id"), message)
        self.referred[name] = node.at("id")

    def _compaction(self, node: Node) -> None:
        """What was said before, as `/v1/responses/compact` summed it up."""
        text = self._unsealed(node.text("encrypted_content"))
        if not text:
            message = "This compaction item was not made here, and cannot be read."
            raise invalid(node.at("encrypted_content"), message, "invalid_encrypted_content")
        part = TextPart(f"{SUMMARY}\n{text}")
        if self._begun or self.continues:
            self._add(Message("system", (part,)))
        else:
            self.system.append(part)

    def _reasoning(self, node: Node) -> str:
        """The reasoning as text, in the open or as we sealed it; empty where another provider
        sealed it or there is none."""
        found = "".join(part.text("text") for part in node.children("content"))
        if found:
            return found
        return self._unsealed(node.text_or("encrypted_content", ""))

    def _unsealed(self, content: str) -> str:
        found = unsealed(content, self.sealed_room)
        self.sealed_room -= found.nbytes
        return found.text

    def _message(self, node: Node) -> None:
        role = node.choice("role", ROLES)
        texts = self._texts(node, "content")
        if role in INSTRUCTION_ROLES and not self._begun and not self.continues:
            self.system += texts
        elif role == "assistant":
            self._assistant(*texts)
        else:
            self._add(Message("user" if role == "user" else "system", tuple(texts)))

    @property
    def _begun(self) -> bool:
        """Whether anything but instructions has been read."""
        return bool(self.messages or self._run)

    def _add(self, message: Message) -> None:
        """A turn of somebody else's ends the assistant's."""
        self._close()
        self.messages.append(message)

    def _assistant(self, *parts: Part) -> None:
        """More of the turn that is being read; text after text, and reasoning after anything,
        begins another."""
        if not (self._only_thoughts or isinstance(parts[0], ToolCallPart)):
            self._close()
        self._run += parts
        self._only_thoughts = self._only_thoughts and all(
            isinstance(part, ThinkingPart) for part in parts
        )

    def _close(self) -> None:
        """The assistant's turn that was being read, if any, is whole."""
        if self._run:
            self.messages.append(Message("assistant", tuple(self._run)))
        self._run, self._only_thoughts = [], True

    def _texts(self, node: Node, key: str) -> list[TextPart]:
        """A string or a list of text parts. Never empty."""
        value = node.value.get(key)
        mark = cache_control(node)
        if type(value) is str:
            return [TextPart(value, mark)]
        if value is None:
            raise missing(node, key)
        parts = [self._text(part) for part in node.children(key)]
        if not parts:
            raise empty_array(node, key)
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
        """Text parts join with line breaks; a mark on any of them is a mark at the end of the
        result."""
        value = node.value.get("output")
        if type(value) is list and not value:
            return ToolResultPart(node.text("call_id"), "")
        texts = self._texts(node, "output")
        marks = [part.cache for part in texts if part.cache is not None]
        mark = max(marks, key=lambda mark: mark.ttl_s, default=None)
        return ToolResultPart(
            node.text("call_id"), "\n".join(part.text for part in texts), cache=mark
        )


def listed(body: Node, owner: str) -> list[dict[str, Any]]:
    """The input as `GET /v1/responses/{id}/input_items` shows it: items with ids, message content
    as a list of parts."""
    value = body.value.get("input")
    items = [{"role": "user", "content": value}] if type(value) is str else value
    return [_listed(item, f"{owner}_i{i}") for i, item in enumerate(items or [])]


def _listed(item: dict[str, Any], owner: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
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
