"""The places of a prompt where a cache breakpoint may stand, and the marks on them.

Knows no provider's limits.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def can_bear_mark(part: Tool | Part) -> bool:
    """Whether a breakpoint may stand at its end: not on reasoning and not on empty text."""
    if isinstance(part, ThinkingPart):
        return False
    return not (isinstance(part, TextPart) and part.text == "")


def last_eligible(prompt: Prompt) -> Position | None:
    """The last place in wire order that can bear a mark."""
    backwards = reversed(list(prompt.parts()))
    return next((position for position, part in backwards if can_bear_mark(part)), None)


def marks_of(prompt: Prompt) -> dict[Position, float]:
    """Marked positions and the TTL each asks for, in wire order."""
    return {position: mark.ttl_s for position, mark in prompt.positions() if mark is not None}


def with_marks(prompt: Prompt, wanted: Mapping[Position, float]) -> Prompt:
    """The prompt with exactly the `wanted` marks, none of which may stand on reasoning. Other parts
    stay the same objects."""
    current = marks_of(prompt)
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
