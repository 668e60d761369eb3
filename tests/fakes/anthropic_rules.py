"""Anthropic's caching rules once more, written from its pages and not from our code: what is read,
written and billed.

Sources: pages "Prompt caching" and "Tool use with prompt caching" (2026-08). It keeps whole
prefixes in a dictionary and knows no blocks, pages or plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LOOKBACK = 20
SECONDS = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True)
class Said:
    """One tool, system block or message block: its tokens, its level, and the TTL class of its
    mark, if it bears one."""

    level: str
    tokens: tuple[int, ...]
    mark: str | None = None


@dataclass(frozen=True)
class Asked:
    """A request: blocks in the order tools, system, messages, what comes after the last, and what
    is not in the prompt."""

    blocks: tuple[Said, ...]
    end: tuple[int, ...] = ()
    automatic: str | None = None
    speed: str = "standard"
    tool_choice: str = "auto"


@dataclass(frozen=True)
class Billed:
    """Tokens of the prompt in disjoint parts."""

    read: int
    five_minutes: int
    hour: int
    rest: int


@dataclass
class Entry:
    """A prefix that was marked: it lives `ttl_s` from the start of the request that last wrote or
    read it."""

    ttl_s: float
    ends_s: float


@dataclass
class Rules:
    """One workspace of one model with a minimum of `minimum` tokens."""

    minimum: int
    entries: dict[tuple[tuple[int, ...], tuple[str, ...]], Entry] = field(default_factory=dict)

    def serve(self, asked: Asked, now_s: float) -> Billed:
        """Read, refresh, write, bill."""
        marks = self._marks(asked)
        ends = self._ends(asked)
        hit = self._find(asked, sorted(marks, reverse=True), ends, now_s)
        a = 0 if hit is None else ends[hit]
        for i, end in enumerate(ends):
            entry = self._live(asked, i, end, now_s)
            if entry is not None and end <= a:
                entry.ends_s = max(entry.ends_s, now_s + entry.ttl_s)
        long_enough = {i: ttl for i, ttl in marks.items() if ends[i] >= max(self.minimum, 1)}
        for i, ttl in long_enough.items():
            entry = self._live(asked, i, ends[i], now_s)
            if entry is None:
                self.entries[self._key(asked, i, ends[i])] = Entry(
                    SECONDS[ttl], now_s + SECONDS[ttl]
                )
            else:
                entry.ttl_s = max(entry.ttl_s, SECONDS[ttl])
                entry.ends_s = max(entry.ends_s, now_s + entry.ttl_s)
        b = max([a, *(ends[i] for i, ttl in long_enough.items() if ttl == "1h")])
        c = max([b, *(ends[i] for i in long_enough)])
        total = sum(len(block.tokens) for block in asked.blocks) + len(asked.end)
        return Billed(read=a, hour=b - a, five_minutes=c - b, rest=total - c)

    def _marks(self, asked: Asked) -> dict[int, str]:
        """Marked blocks, the automatic mark on the last one included."""
        marks = {i: block.mark for i, block in enumerate(asked.blocks) if block.mark is not None}
        if asked.automatic is not None:
            marks.setdefault(len(asked.blocks) - 1, asked.automatic)
        return marks

    def _ends(self, asked: Asked) -> list[int]:
        """Tokens up to the end of each block. The last token of a prompt is never part of what is
        cached."""
        ends, total = [], 0
        for block in asked.blocks:
            total += len(block.tokens)
            ends.append(total)
        return [min(end, total + len(asked.end) - 1) for end in ends]

    def _find(self, asked: Asked, marks: list[int], ends: list[int], now_s: float) -> int | None:
        """Back from each mark, the last one first, over at most twenty blocks, the marked one
        counted."""
        for mark in marks:
            for i in range(mark, max(mark - LOOKBACK, -1), -1):
                if (
                    ends[i] >= max(self.minimum, 1)
                    and self._live(asked, i, ends[i], now_s) is not None
                ):
                    return i
        return None

    def _live(self, asked: Asked, i: int, end: int, now_s: float) -> Entry | None:
        entry = self.entries.get(self._key(asked, i, end))
        return entry if entry is not None and entry.ends_s > now_s else None

    def _key(self, asked: Asked, i: int, end: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The prefix, and what invalidates the level it ends in without being part of it."""
        tokens = tuple(token for block in asked.blocks for token in block.tokens) + asked.end
        speed = () if asked.speed == "standard" else (asked.speed,)
        choice = () if asked.tool_choice == "auto" else (asked.tool_choice,)
        unseen = {"tools": (), "system": speed, "messages": speed + choice}
        return tokens[:end], unseen[asked.blocks[i].level]
