"""A prefix cache over a fake device, driven one whole request at a time, as the step loop would."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from engine.cache.prefix_cache import Lease, PrefixCache
from engine.cache.tiers.io import InlineIo, Io
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.store.base import BlockStore
from engine.types import CachePlan, CacheReport, PlannedEntry
from tests.fakes.device import FakeDevice
from tests.fakes.tier_io import StillClock, manual_tiers

SECRET = b"0123456789abcdef"
START_S = 1000.0
TOOLS, SYSTEM = Position("tools", 0), Position("system", 0)


def turn(index: int) -> Position:
    """The only part of message `index`."""
    return Position("messages", index)


def marked(*marks: tuple[Position, float] | Position, **changes: Any) -> CachePlan:
    """A plan that writes each marked position (for 300 s unless said) and reads them back, last
    first."""
    pairs = [mark if isinstance(mark, tuple) else (mark, 300.0) for mark in marks]
    written = tuple(PlannedEntry(position, ttl_s) for position, ttl_s in pairs)
    return CachePlan(
        **{"readable": tuple(p for p, _ in reversed(pairs)), "writable": written, **changes}
    )


class Rig:
    """`now_s` is the time of the next call. Every step is checked: invariants and the KV of every
    token.

    With a `store` there is a tier `ram` below the device, read and written at once unless a
    `writer` decides, in spans of two blocks.
    """

    def __init__(
        self,
        num_pages: int = 64,
        block_size: int = 4,
        store: BlockStore | None = None,
        writer: Io | None = None,
        **options: Any,
    ) -> None:
        self.device = FakeDevice(num_pages, block_size)
        self.clock = StillClock()
        self.cache = PrefixCache(
            device=self.device,
            num_pages=num_pages,
            page_nbytes=self.device.page_nbytes,
            block_size=block_size,
            tiers=None
            if store is None
            else manual_tiers(("ram", store, InlineIo(), writer or InlineIo()), clock=self.clock),
            **{
                "fingerprint": "model",
                "root_secret": SECRET,
                "span_tokens": 2 * block_size,
                **options,
            },
        )
        self.now_s = START_S

    def admit(
        self,
        token_ids: Sequence[int],
        plan: CachePlan,
        offsets: Mapping[Position, int] | None = None,
        *,
        tenant: str = "default",
        room: int = 1,
        preamble: int = 0,
    ) -> Lease:
        """Admit a request that there is room for, and restore what it reads. Without `offsets` the
        prompt is one message."""
        rendered = RenderedPrompt(tuple(token_ids), offsets or {turn(0): len(token_ids)}, preamble)
        lookup = self.cache.lookup(tenant, rendered, plan, self.now_s)
        fetch = self.cache.fetch(lookup)
        assert fetch is None or fetch.is_over
        lease = self.cache.admit(lookup, len(token_ids) + room, fetch=fetch)
        assert lease is not None
        self.cache.check()
        while lease.arrivals:
            assert self.cache.restore(lease, self.device.page_nbytes) > 0
            self.cache.check()
        assert self.device.holds(lease.block_table, token_ids, lease.num_cached)
        return lease

    def compute(self, lease: Lease, token_ids: Sequence[int], start: int, end: int) -> None:
        """Compute and commit tokens `[start, end)`."""
        self.cache.grow(lease, end)
        self.device.compute(lease.block_table, token_ids, start, end)
        self.cache.insert(lease, list(token_ids), end)
        self.cache.check()

    def prefill(self, lease: Lease) -> None:
        """Compute the rest of the prompt and promise what was planned."""
        token_ids = lease.prompt.rendered.token_ids
        self.compute(lease, token_ids, lease.num_cached, len(token_ids))
        self.cache.write_entries(lease)
        self.cache.check()

    def release(self, lease: Lease, token_ids: Sequence[int]) -> None:
        """End a request whose KV of all `token_ids` is there, and write down what the tier should
        have."""
        assert self.device.holds(lease.block_table, token_ids, len(token_ids))
        self.cache.release(lease, list(token_ids), len(token_ids))
        self.cache.check()
        self.settle()

    def run(
        self,
        token_ids: Sequence[int],
        plan: CachePlan,
        offsets: Mapping[Position, int] | None = None,
        *,
        output: Sequence[int] = (),
        **options: Any,
    ) -> CacheReport:
        """One request from start to end; `output` are tokens whose KV is computed after the
        prompt."""
        lease = self.admit(token_ids, plan, offsets, room=len(output) + 1, **options)
        self.prefill(lease)
        whole = [*token_ids, *output]
        for end in range(len(token_ids) + 1, len(whole) + 1):
            self.compute(lease, whole, end - 1, end)
        self.release(lease, whole)
        return lease.report

    def settle(self) -> None:
        """Tell the tier everything it should know by now."""
        self.cache.write_back.copy(sys.maxsize)
        self.clock.advance(1.0)
        self.cache.tiers.poll()
        self.cache.check()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self.cache.tick(self.now_s)
        self.cache.check()
