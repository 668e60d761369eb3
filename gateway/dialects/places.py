"""The prompt as the list of places where a cache breakpoint may stand.

Knows no provider's limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from engine.prompt.types import (
    CacheMark,
    Message,
    Part,
    Position,
    Prompt,
    TextPart,
    ThinkingPart,
    Tool,
)


@dataclass(frozen=True, slots=True)
class Place:
    """One position of the request and what ends there."""

    position: Position
    part: Tool | Part

    @property
    def eligible(self) -> bool:
        """Whether a breakpoint may stand here: not on reasoning and not on empty text."""
        if isinstance(self.part, ThinkingPart):
            return False
        return not (isinstance(self.part, TextPart) and self.part.text == "")


def places(prompt: Prompt) -> list[Place]:
    """Every place in wire order; the same positions as `prompt.positions()`."""
    found = [Place(Position("tools", i), tool) for i, tool in enumerate(prompt.tools)]
    found += [Place(Position("system", i), block) for i, block in enumerate(prompt.system)]
    for i, message in enumerate(prompt.messages):
        found += [Place(Position("messages", i, j), part) for j, part in enumerate(message.parts)]
    return found


def marks(prompt: Prompt) -> dict[Position, float]:
    """Marked positions and the TTL each asks for, in wire order."""
    return {position: mark.ttl_s for position, mark in prompt.positions() if mark is not None}


def with_marks(prompt: Prompt, wanted: Mapping[Position, float]) -> Prompt:
    """The prompt with exactly the `wanted` marks, none of which may stand on reasoning. Touches
    only what changes."""
    current = marks(prompt)
    tools, system, turns = list(prompt.tools), list(prompt.system), dict[int, list[Part]]()
    for position in current.keys() | wanted.keys():
        ttl_s = wanted.get(position)
        if ttl_s == current.get(position):
            continue
        mark = None if ttl_s is None else CacheMark(ttl_s)
        i = position.index
        match position.level:
            case "tools":
                tools[i] = msgspec.structs.replace(tools[i], cache=mark)
            case "system":
                system[i] = msgspec.structs.replace(system[i], cache=mark)
            case "messages":
                if i not in turns:
                    turns[i] = list(prompt.messages[i].parts)
                turns[i][position.part] = msgspec.structs.replace(
                    turns[i][position.part], cache=mark
                )
    messages = list(prompt.messages)
    for i, parts in turns.items():
        messages[i] = Message(messages[i].role, tuple(parts))
    return msgspec.structs.replace(
        prompt, tools=tuple(tools), system=tuple(system), messages=tuple(messages)
    )
