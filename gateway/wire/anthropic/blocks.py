"""Anthropic's tools, system text and messages into a `Prompt`'s parts, one to one:
positions are wire coordinates.

Knows where a cache mark may stand; how many there may be and in which order is the dialect's
business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.prompt.numerals import to_text
from engine.prompt.types import (
    CacheMark,
    Message,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from gateway.errors import InvalidRequest
from gateway.request import MarkerProblem, Unseen
from gateway.wire.anthropic.errors import invalid, unknown_tag
from gateway.wire.anthropic.media import UNSEEN, identity, readable_text
from gateway.wire.anthropic.signature import BadSignature, signed_text
from gateway.wire.fields import Node, Path, clip

TTLS_S: Final[Mapping[str, float]] = {"5m": 300.0, "1h": 3600.0}
DEFAULT_TTL: Final = "5m"
MAX_MESSAGES: Final = 100_000
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
MAX_REFERENCED: Final = 4 * 1024 * 1024
"""Characters of definitions that all references to deferred tools together stand for: a small body
must not become a large prompt."""
ROLES: Final[Mapping[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}

SUPPORTED: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("user", "assistant", "system"),
    "thinking": ("assistant",),
    "redacted_thinking": ("assistant",),
    "tool_use": ("assistant",),
    "tool_result": ("user",),
    "search_result": ("user",),
}
"""Block types that are understood, and the roles they may stand in."""


@dataclass(slots=True)
class Blocks:
    """Reads the parts of one body; `tools` first, which the messages may refer to.

    `problems` collects marks that stand where none may; they are left out of the prompt. `unseen`
    collects blocks that the model cannot see; their identity stands in their place. `first_version`
    is API version 2023-06-01: a user's text may cite, and an assistant's message may hold
    documents. `deferred` are tools that stand nowhere until a message refers to them. `citing`:
    some document is to be cited from.
    """

    first_version: bool
    problems: list[MarkerProblem] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    deferred: dict[str, Tool] = field(default_factory=dict)
    citing: bool = False
    _definitions: dict[str, str] = field(default_factory=dict)
    _referenced_room: int = MAX_REFERENCED

    def tools(self, body: Node) -> tuple[Tool, ...]:
        """The definitions at the head of the prompt: all but the deferred ones."""
        nodes = body.children("tools")
        found = [self._tool(node) for node in nodes]
        if len({tool.name for tool in found}) < len(found):
            raise invalid(body.at("tools"), "Tool names must be unique.")
        self.deferred = {
            tool.name: tool
            for node, tool in zip(nodes, found, strict=True)
            if node.flag("defer_loading")
        }
        return tuple(tool for tool in found if tool.name not in self.deferred)

    def system(self, body: Node) -> tuple[TextPart, ...]:
        """`system` as text blocks; a string is one block, an empty one is none."""
        if isinstance(body.value.get("system"), str):
            text = body.text("system")
            return (TextPart(text),) if text else ()
        nodes = body.children("system")
        for node in nodes:
            node.choice("type", ("text",))
        return tuple(self._text(node) for node in nodes)

    def messages(self, body: Node) -> tuple[Message, ...]:
        """Turns in place, `system` turns included. Only the last assistant turn may be empty; then
        it is left out."""
        if "messages" not in body.value:
            raise invalid(body.at("messages"), "Field required")
        nodes = body.children("messages")
        if not nodes:
            raise invalid(body.at("messages"), "at least one message is required")
        if len(nodes) > MAX_MESSAGES:
            raise invalid(
                body.at("messages"), f"too many messages: {len(nodes)} > {MAX_MESSAGES} maximum"
            )
        messages = [self._message(node, last=i == len(nodes) - 1) for i, node in enumerate(nodes)]
        _check_system_turns(messages)
        return tuple(message for message in messages if message.parts)

    def _message(self, node: Node, *, last: bool) -> Message:
        role = ROLES[node.choice("role", tuple(ROLES))]
        if isinstance(node.value.get("content"), str):
            text = node.text("content")
            parts: tuple[Part, ...] = (TextPart(text),) if text else ()
        elif "content" not in node.value:
            raise invalid(node.at("content"), "Field required")
        else:
            parts = tuple(self._block(block, role) for block in node.children("content"))
        if not parts and not (last and role == "assistant"):
            message = (
                "all messages must have non-empty content except for the optional final "
                "assistant message"
            )
            raise invalid(node.path, message)
        return Message(role, parts)

    def _block(self, node: Node, role: Role) -> Part:
        kind = node.text("type")
        if kind in UNSEEN:
            if kind == "document" and role == "assistant" and not self.first_version:
                raise invalid(node.path[:2], "`document` blocks can only be in `user` messages")
            return TextPart(self._other(node, kind), self.mark(Node(node.value, node.at(kind))))
        if role not in SUPPORTED.get(kind, ()):
            raise _refused_block(node.path, kind)
        if (
            kind in ("text", "search_result")
            and role == "user"
            and not self.first_version
            and _cites(node)
        ):
            raise invalid(node.at(kind, "citations"), "Extra inputs are not permitted")
        return _READERS[kind](self, Node(node.value, node.at(kind)))

    def _other(self, node: Node, kind: str) -> str:
        """A block that is not of the model's language, as text if it is text, else as the name of
        what it shows."""
        inner = Node(node.value, node.at(kind))
        self._note_citations(inner)
        text = readable_text(inner, kind)
        if text is not None:
            return text
        self.refuse(node.path, f"`{kind}` blocks are not supported by this model")
        return f"[{identity(inner, kind)}]"

    def _note_citations(self, node: Node) -> None:
        citations = node.child("citations")
        self.citing |= citations is not None and citations.flag("enabled")

    def refuse(self, path: Path, message: str, code: str | None = None) -> None:
        """The request cannot be served because of `path`, but may still break other rules, which
        come first. `code` is the word for it that clients know."""
        unsupported = (str(path[0]),) if code is not None else ()
        self.unseen.append(Unseen(".".join(map(str, path)), message, code, unsupported))

    def _text(self, node: Node) -> TextPart:
        return TextPart(node.text("text"), self.mark(node))

    def _thinking(self, node: Node) -> ThinkingPart:
        self._no_mark(node)
        signature = node.text_or("signature", "")
        try:
            return ThinkingPart(signed_text(node.text("thinking"), signature), signature)
        except BadSignature:
            raise invalid(node.path[:-1], "Invalid `signature` in `thinking` block") from None

    def _redacted_thinking(self, node: Node) -> ThinkingPart:
        """Nothing to render, but a block of the wire: it keeps its place as empty reasoning."""
        self._no_mark(node)
        node.text("data")
        return ThinkingPart("")

    def _tool_use(self, node: Node) -> ToolCallPart:
        return ToolCallPart(
            node.text("id"), node.text("name"), node.json_object("input"), self.mark(node)
        )

    def _tool_result(self, node: Node) -> ToolResultPart:
        """Blocks inside join with line breaks; a mark on any of them is a mark at the end of the
        whole result."""
        call_id, is_error, mark = node.text("tool_use_id"), node.flag("is_error"), self.mark(node)
        if isinstance(node.value.get("content"), str):
            return ToolResultPart(call_id, node.text("content"), is_error, mark)
        texts: list[str] = []
        for inner in node.children("content"):
            part = self._inner(inner, inner.text("type"))
            texts.append(part.text)
            mark = _longer(mark, part.cache)
            if part.cache is not None and not part.text:
                message = "cache_control cannot be set for empty text blocks"
                self._misplaced(inner.at("text"), message, "cache_control-moved")
        return ToolResultPart(call_id, "\n".join(texts), is_error, mark)

    def _inner(self, node: Node, kind: str) -> TextPart:
        """One block inside a tool result."""
        inner = Node(node.value, node.at(kind))
        if kind == "text":
            return self._text(inner)
        if kind == "search_result":
            return self._search_result(inner)
        if kind == "tool_reference":
            return TextPart(self._referenced(inner), self.mark(inner))
        if kind in UNSEEN:
            return TextPart(self._other(node, kind), self.mark(inner))
        raise _refused_block(node.path, kind)

    def _search_result(self, node: Node) -> TextPart:
        self._note_citations(node)
        return TextPart(readable_text(node, "search_result") or "", self.mark(node))

    def _referenced(self, node: Node) -> str:
        """The definition of a deferred tool where it was found: the prompt's head stays as it
        was."""
        name = node.text("tool_name")
        tool = self.deferred.get(name)
        if tool is None:
            return name
        if name not in self._definitions:
            definition = {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            }
            self._definitions[name] = to_text(definition, ensure_ascii=False)
        self._referenced_room -= len(self._definitions[name])
        if self._referenced_room < 0:
            message = (
                f"the definitions of all referenced tools together exceed {MAX_REFERENCED} "
                "characters"
            )
            raise invalid(node.at("tool_name"), message)
        return self._definitions[name]

    def _tool(self, node: Node) -> Tool:
        kind = node.text_or("type", "custom")
        if kind != "custom":
            self.refuse(node.path, f"tools of type '{clip(kind)}' are not supported by this model")
            return Tool(node.text_or("name", kind), kind, {}, self.mark(node))
        node = Node(node.value, node.at("custom"))
        name = node.text("name")
        if not TOOL_NAME.fullmatch(name):
            raise invalid(node.at("name"), f"String should match pattern '^{TOOL_NAME.pattern}$'")
        return Tool(
            name, node.text_or("description", ""), node.json_object("input_schema"), self.mark(node)
        )

    def mark(self, node: Node) -> CacheMark | None:
        """The object's `cache_control`. Members beyond `type` and `ttl` are ignored: betas add
        some."""
        control = node.child("cache_control")
        if control is None:
            return None
        kind = control.text("type")
        if kind != "ephemeral":
            raise unknown_tag(control.path, kind, ("ephemeral",))
        control = Node(control.value, control.at(kind))
        return CacheMark(TTLS_S[control.choice("ttl", tuple(TTLS_S), DEFAULT_TTL)])

    def _no_mark(self, node: Node) -> None:
        if self.mark(node) is not None:
            self._misplaced(
                node.at("cache_control"),
                "Extra inputs are not permitted",
                "cache_control-removed-from-thinking",
            )

    def _misplaced(self, path: Path, message: str, repair: str) -> None:
        self.problems.append(MarkerProblem(".".join(map(str, path)), message, repair))


_READERS: Final[Mapping[str, Callable[[Blocks, Node], Part]]] = {
    "text": Blocks._text,
    "thinking": Blocks._thinking,
    "redacted_thinking": Blocks._redacted_thinking,
    "tool_use": Blocks._tool_use,
    "tool_result": Blocks._tool_result,
    "search_result": Blocks._search_result,
}


def _longer(one: CacheMark | None, other: CacheMark | None) -> CacheMark | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda mark: mark.ttl_s)


def _cites(node: Node) -> bool:
    return any(
        bool(block.value.get("citations"))
        for block in [node, *_contents(node)]
        if block.value.get("type") == "text"
    )


def _contents(node: Node) -> list[Node]:
    return node.children("content") if node.value.get("type") == "search_result" else []


def _refused_block(path: Path, kind: str) -> InvalidRequest:
    if kind in SUPPORTED and path[-2] == "content" and len(path) == 4:
        allowed = " or ".join(f"`{name}`" for name in SUPPORTED[kind])
        return invalid(path[:2], f"`{kind}` blocks can only be in {allowed} messages")
    if kind in SUPPORTED or kind == "tool_reference":
        return invalid(path, f"`{kind}` blocks cannot stand here")
    return unknown_tag(path, kind, sorted([*SUPPORTED, *UNSEEN]))


def _check_system_turns(messages: list[Message]) -> None:
    """Page "Mid-conversation system messages": after a user turn, and last or before an assistant
    turn."""
    for i, message in enumerate(messages):
        if message.role != "system":
            continue
        before = messages[i - 1].role if i else None
        after = messages[i + 1].role if i + 1 < len(messages) else None
        if before is None:
            raise invalid(
                ("messages", i, "role"),
                "the first message cannot have the role 'system'; use the `system` parameter",
            )
        if before == "assistant" or after == "user":
            raise invalid(
                ("messages", i, "role"),
                "a 'system' message must follow a 'user' message and must be last or be followed "
                "by an 'assistant' message",
            )
