"""A prompt in no provider's dialect: tools, system text, messages.

Knows no wire format and no tokens.

None of it can be part of a cycle, so the garbage collector has nothing to do with it (`gc=False`):
of a long conversation it would look at every part, again and again, while all threads wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

Level: TypeAlias = Literal["tools", "system", "messages"]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

LEVELS: Final[tuple[Level, ...]] = ("tools", "system", "messages")
"""Levels in the order every prompt is hashed and billed."""


class Position(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A place in the request: the *end* of one tool, system block or message part.

    `str(position)` is the form used in headers and logs: `tools/2`, `system/0`, `messages/4/1`.
    Plain string content is part 0. Sort positions by `order`: the levels do not sort
    alphabetically.
    """

    level: Level
    index: int
    part: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key of the wire order tools -> system -> messages."""
        return (LEVELS.index(self.level), self.index, self.part)

    def __str__(self) -> str:
        if self.level == "messages":
            return f"messages/{self.index}/{self.part}"
        return f"{self.level}/{self.index}"


class CacheMark(msgspec.Struct, frozen=True, gc=False):
    """A client's request to cache the prompt up to the end of this part for `ttl_s` seconds."""

    ttl_s: float


class Tool(msgspec.Struct, frozen=True, gc=False):
    """A function the model may call. `parameters` is a JSON Schema whose key order is the
    client's."""

    name: str
    description: str
    parameters: dict[str, Any]
    cache: CacheMark | None = None


class TextPart(msgspec.Struct, frozen=True, gc=False, tag="text"):
    text: str
    cache: CacheMark | None = None


class ThinkingPart(msgspec.Struct, frozen=True, gc=False, tag="thinking"):
    """Reasoning the model wrote in an earlier turn. Never carries a mark, only cached along with
    what follows."""

    text: str
    signature: str = ""

    @property
    def cache(self) -> None:
        return None


class ToolCallPart(msgspec.Struct, frozen=True, gc=False, tag="tool_call"):
    """A call the assistant made. `arguments` is the decoded object, or the raw text when it was no
    JSON object."""

    call_id: str
    name: str
    arguments: dict[str, Any] | str
    cache: CacheMark | None = None


class ToolResultPart(msgspec.Struct, frozen=True, gc=False, tag="tool_result"):
    """The result of a call; nested content blocks are already joined to text."""

    call_id: str
    text: str
    is_error: bool = False
    cache: CacheMark | None = None


Part: TypeAlias = TextPart | ThinkingPart | ToolCallPart | ToolResultPart
PartT = TypeVar("PartT", bound=Tool | Part)


class Message(msgspec.Struct, frozen=True, gc=False):
    """One turn. Tool results may stand in a `user` message (Anthropic) or in a `tool` message
    (OpenAI): both render alike."""

    role: Role
    parts: tuple[Part, ...]


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """Everything the model is asked.

    `template_options` are passed to the chat template by name (for example `enable_thinking`). With
    `continue_final` the last message is an assistant message that generation continues instead of a
    new turn. With `raw` (a text, or token ids) the model is given exactly that and no template;
    `messages` then hold one part, so that the prompt has a position.
    """

    messages: tuple[Message, ...]
    system: tuple[TextPart, ...] = ()
    tools: tuple[Tool, ...] = ()
    template_options: dict[str, Any] = {}
    continue_final: bool = False
    raw: str | tuple[int, ...] | None = None

    def parts(self) -> Iterator[tuple[Position, Tool | Part]]:
        """Every position with the tool, system block or message part that ends there, in wire
        order."""
        for i, tool in enumerate(self.tools):
            yield Position("tools", i), tool
        for i, block in enumerate(self.system):
            yield Position("system", i), block
        for i, message in enumerate(self.messages):
            for j, part in enumerate(message.parts):
                yield Position("messages", i, j), part

    def positions(self) -> Iterator[tuple[Position, CacheMark | None]]:
        """Every position with its mark, in wire order."""
        return ((position, part.cache) for position, part in self.parts())

    def role_at(self, position: Position) -> Role | None:
        """The role of the turn that the position is in; None in tools and system text."""
        return self.messages[position.index].role if position.level == "messages" else None


def unmarked(part: PartT) -> PartT:
    """The same tool or part without its cache mark."""
    return part if part.cache is None else msgspec.structs.replace(part, cache=None)


def num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """The number of items at the head of two sequences that are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
