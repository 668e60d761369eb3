"""The blocks that may leave the device, and a queue that finds the one with the lowest score.

Evicts nothing itself.
"""

from __future__ import annotations

from typing import TypeAlias

from engine.cache.tree.block import ATTENTION_TOKENS, Block
from engine.store.base import PINNED_UNTIL_S
from engine.structures.lazy_heap import LazyHeap
from engine.structures.scores import score_named

Rank: TypeAlias = tuple[bool, bool, float, float]
"""Under a live entry or not, under a pinned one or not, then the score."""


def prefill_tokens(start: int, end: int) -> float:
    """Prefill time of tokens `[start, end)`, in tokens at a prompt's begin; see `Block.worth`."""
    return (end - start) * (1.0 + (start + end) / 2 / ATTENTION_TOKENS)


class EvictionQueue:
    """Blocks that may leave the device: unpinned leaves of the tree.

    Blocks under no live entry come first, then the others, each by score; those under a pinned
    entry last of all. Uses, pins and promises are seen when a block comes up.
    """

    def __init__(self, score: str) -> None:
        """Raises ValueError for a score of another name."""
        self.clock = 0.0
        """Never falls: the first number of the highest score evicted so far."""
        self._now_s = 0.0
        self._score = score_named(score)
        self._queue: LazyHeap[Block, Rank] = LazyHeap(self._rank)
        self._lapses: LazyHeap[Block, float] = LazyHeap(lambda block: block.promised_until_s)
        """Blocks of the queue under live entries, by when the last of those expires."""

    def add(self, block: Block, now_s: float) -> None:
        """Let the block be popped, if it may leave the device. Needed again where it is promised
        for less time than before."""
        self._now_s = now_s
        self._queue.add(block)

    def discard(self, block: Block) -> None:
        """Let a block not be popped that leaves the tree."""
        self._queue.discard(block)
        self._lapses.discard(block)

    def pop(self, now_s: float) -> Block | None:
        """Take out the block that should leave the device next; None if none may."""
        self._now_s = now_s
        while (lapsed := self._lapses.pop(now_s)) is not None:
            self._queue.add(lapsed)
        block = self._queue.pop()
        if block is not None:
            self._lapses.discard(block)
            self.clock = max(self.clock, self._score(block)[0])
        return block

    def check(self, blocks: list[Block]) -> None:
        """Raise AssertionError unless every block that may leave the device has a record."""
        for block in blocks:
            assert block in self._queue or not may_leave(block), "a page could not be reclaimed"

    def _rank(self, block: Block) -> Rank | None:
        if not may_leave(block):
            return None
        promised_until_s = block.promised_until_s
        if promised_until_s > self._now_s:
            self._lapses.add(block)  # its rank falls then
        is_pinned = promised_until_s >= PINNED_UNTIL_S
        return (promised_until_s > self._now_s, is_pinned, *self._score(block))


def may_leave(block: Block) -> bool:
    """Whether the block is in the tree and nothing pins it or hangs on it."""
    return block.parent is not None and not block.pins and not block.children
