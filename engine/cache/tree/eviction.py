"""The blocks that may leave the device, and a queue that finds the one with the lowest score.

Evicts nothing itself.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TypeAlias

from engine.cache.tree.block import ATTENTION_TOKENS, Block
from engine.store.base import PINNED_UNTIL_S
from engine.structures.deadlines import Deadlines
from engine.structures.scores import score_named

Rank: TypeAlias = tuple[bool, float, float]
"""Pinned or not, then the score."""


def prefill_tokens(start: int, end: int) -> float:
    """Prefill time of tokens `[start, end)`, in tokens at a prompt's begin; see `Block.worth`."""
    return (end - start) * (1.0 + (start + end) / 2 / ATTENTION_TOKENS)


class EvictionQueue:
    """Blocks that may leave the device: unpinned leaves of the tree.

    Blocks under no live entry come first, then the others, each by score; those under a pinned
    entry last of all. A record is not moved when its block is used, pinned or promised: it is
    looked at again when it comes up.
    """

    def __init__(self, score: str) -> None:
        """Raises ValueError for a score of another name."""
        self.clock = 0.0
        """Never falls: the first number of the highest score evicted so far."""
        self._score = score_named(score)
        self._plain: list[tuple[Rank, int, Block]] = []
        self._promised: list[tuple[Rank, int, Block]] = []
        self._lapses: Deadlines[Block] = Deadlines(lambda block: block.promised_until_s)
        """Promised blocks of the queue, by when their last entry expires."""
        self._serials = count(1)
        self._num_queued = 0

    def add(self, block: Block, now_s: float) -> None:
        """Let the block be popped, if it may leave the device; else, or if it is in the queue, do
        nothing."""
        if block.queued or not may_leave(block):
            return
        self._num_queued += 1
        self._push(block, now_s)
        if len(self._plain) + len(self._promised) > 64 + 4 * self._num_queued:
            self._compact()

    def pop(self, now_s: float) -> Block | None:
        """Take out the block that should leave the device next; None if none may."""
        self._lapse(now_s)
        for heap in (self._plain, self._promised):
            while heap:
                rank, serial, block = heapq.heappop(heap)
                if block.queued != serial:
                    continue
                if not may_leave(block):
                    self._forget(block)
                elif self._rank(block) > rank or (
                    heap is self._plain and block.promised_until_s > now_s
                ):
                    self._push(block, now_s)
                else:
                    self._forget(block)
                    self.clock = max(self.clock, rank[1])
                    return block
        return None

    def check(self, blocks: list[Block]) -> None:
        """Raise AssertionError unless every block that may leave the device has a record."""
        records = {serial for heap in (self._plain, self._promised) for _, serial, _ in heap}
        for block in blocks:
            assert block.queued or not may_leave(block), "a page that could never be reclaimed"
            assert not block.queued or block.queued in records

    def renew(self, block: Block, now_s: float) -> None:
        """Look at the block anew, if it is in the queue: it is promised for less time than
        before."""
        if block.queued:
            self._push(block, now_s)

    def _rank(self, block: Block) -> Rank:
        return (block.promised_until_s >= PINNED_UNTIL_S, *self._score(block))

    def _push(self, block: Block, now_s: float) -> None:
        serial = block.queued = next(self._serials)
        if block.promised_until_s > now_s:
            heapq.heappush(self._promised, (self._rank(block), serial, block))
            self._lapses.watch(block)
        else:
            heapq.heappush(self._plain, (self._rank(block), serial, block))

    def _forget(self, block: Block) -> None:
        block.queued = 0
        self._num_queued -= 1
        self._lapses.discard(block)

    def _lapse(self, now_s: float) -> None:
        """Move blocks whose last entry has expired to the others."""
        while (block := self._lapses.pop(now_s)) is not None:
            self._push(block, now_s)

    def _compact(self) -> None:
        """Drop records that no longer count, and those of blocks that are pinned or gone."""
        for _, serial, block in (*self._plain, *self._promised):
            if block.queued == serial and not may_leave(block):
                self._forget(block)
        self._plain = [record for record in self._plain if record[2].queued == record[1]]
        self._promised = [record for record in self._promised if record[2].queued == record[1]]
        heapq.heapify(self._plain)
        heapq.heapify(self._promised)


def may_leave(block: Block) -> bool:
    """Whether the block is in the tree and nothing pins it or hangs on it."""
    return block.parent is not None and not block.pins and not block.children
