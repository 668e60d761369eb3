"""Bringing a matched prefix into a lease's block table: what is on the device is used, what is below is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.cache.block import Block
from engine.cache.device import PageDevice
from engine.cache.lease import Lease
from engine.cache.radix import Match, RadixIndex
from engine.cache.spill import Spill
from engine.cache.stats import CacheCounters
from engine.cache.supply import PageSupply


@dataclass(frozen=True, slots=True)
class Loaded:
    """`num_tokens` came from the lower tier; `lost`: it failed to give back more, and the match ends there."""

    num_tokens: int
    lost: bool


@dataclass(slots=True, repr=False)
class _Plan:
    """What of a match is brought in: the blocks of `path`, then a copy of `num_tail` tokens of `tail`."""

    path: list[Block]
    tail: Block | None
    num_tail: int
    payloads: list[bytes] = field(default_factory=list)
    """The bytes of the blocks of `path`, then of `tail`, that have no page."""


class Loader:
    """Pins, loads and copies; the pages come from the lease's reservation."""

    def __init__(
        self, index: RadixIndex, supply: PageSupply, device: PageDevice, spill: Spill | None, counters: CacheCounters
    ) -> None:
        self._index = index
        self._supply = supply
        self._device = device
        self._spill = spill
        self._counters = counters

    def load(self, lease: Lease, match: Match) -> Loaded:
        """Afterwards the lease holds the matched blocks and its table covers its `num_cached` tokens."""
        for block in match.path:
            self._supply.pin(block)
        plan = _Plan(list(match.path), match.tail, match.num_tail)
        lost = self._fetch(plan)
        below = [block for block in plan.path if block.page is None]
        if below:
            num_above = len(plan.path) - len(below)
            self._supply.load(below, plan.payloads[: len(below)], plan.path[num_above - 1].page if num_above else None)
        lease.held = plan.path
        lease.end = lease.last
        lease.block_table = [block.page for block in plan.path if block.page is not None]
        lease.num_cached = len(plan.path) * self._index.block_size + plan.num_tail
        num_tokens = len(below) * self._index.block_size
        if plan.tail is not None:
            from_below = plan.payloads[len(below) :]
            self._copy(lease, plan.tail, plan.num_tail, from_below)
            num_tokens += plan.num_tail if from_below else 0
        return Loaded(num_tokens, lost)

    def _fetch(self, plan: _Plan) -> bool:
        """Get the bytes of all blocks without a page. The first that is lost or damaged is dropped, and cuts the plan."""
        below = [block for block in plan.path if block.page is None]
        if plan.tail is not None and plan.tail.page is None:
            below.append(plan.tail)
        if not below:
            return False
        assert self._spill is not None, "blocks without a page are in the tier below"
        for block, payload in zip(below, self._spill.load(below, self._supply.now_s), strict=True):
            if payload is None:
                self._cut(plan, block)
                return True
            plan.payloads.append(payload)
        return False

    def _cut(self, plan: _Plan, lost: Block) -> None:
        num_left = len(plan.path) if lost is plan.tail else lost.start // self._index.block_size
        for block in reversed(plan.path[num_left:]):
            self._supply.unpin(block)
        self._supply.reserve(len(plan.path) - num_left)
        self._counters.num_lost_blocks += self._supply.drop(lost)
        del plan.path[num_left:]
        plan.tail, plan.num_tail = None, 0

    def _copy(self, lease: Lease, tail: Block, num_tokens: int, payload: Sequence[bytes]) -> None:
        """Put the first tokens of `tail` into a page of the lease's own.

        Taking that page may evict `tail` itself, but only when no page is free: then it is the very page taken.
        """
        table, source = lease.block_table, tail.page
        table += self._supply.take(1, table[-1] if table else None, lease.num_pages - len(table))
        if payload:
            self._device.write_pages(table[-1:], payload)
        elif source is not None and source != table[-1]:
            self._device.copy_page(source, table[-1], num_tokens)
        self._counters.num_copied_tokens += num_tokens
        if tail.parent is not None:
            lease.end = tail
