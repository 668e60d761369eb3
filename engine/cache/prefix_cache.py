"""The prefix cache: leases pages to requests, finds what earlier ones computed, keeps what was promised. Knows no model.

The only class that ties index, pages, entries and tiers together. Owned by one thread; no call waits for anything but the
device and the store.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from engine.cache.block import Block, PromptKeys, pack, root_key
from engine.cache.device import PageDevice
from engine.cache.entries import Entry
from engine.cache.eviction import EvictionQueue
from engine.cache.explain import explain, is_best, refuse
from engine.cache.lease import Lease, Space, View
from engine.cache.loading import Loader
from engine.cache.pages import PagePool
from engine.cache.radix import Match, RadixIndex
from engine.cache.reading import Reading, boundaries, live_entries, read, writes
from engine.cache.sharing import Sharing
from engine.cache.spill import Spill
from engine.cache.stats import CacheCounters, CacheGauges, CacheStats
from engine.cache.supply import PageSupply
from engine.prompt.rendered import RenderedPrompt
from engine.store.base import BlockStore
from engine.types import CachePlan, CacheReport, Hit, PlannedEntry

DEVICE: Final = "device"
"""The name of the device's tier in reports."""

SWEEP_BLOCKS: Final = 512
SWEEP_ENTRIES: Final = 512
"""What one release or tick frees at most of what has expired."""

_NOTHING: Final = Match([], None, 0, 0)


class PrefixCache:
    """See `engine/cache/lease.py` for what a lease holds and `engine/types.py` for plan and report.

    `store` is the tier below the device. With `force_store` a released block leaves the device for it at once, so that
    every hit is loaded from there. `eviction` names a score of `engine/cache/eviction.py`.
    """

    def __init__(
        self,
        *,
        device: PageDevice,
        num_pages: int,
        page_nbytes: int,
        block_size: int,
        fingerprint: str,
        root_secret: bytes,
        store: BlockStore | None = None,
        eviction: str = "lru",
        force_store: bool = False,
    ) -> None:
        if force_store and store is None:
            raise ValueError("force_store needs a store")
        self._block_size = block_size
        self._page_nbytes = page_nbytes
        self._fingerprint = fingerprint
        self._root_secret = root_secret
        self._force_store = force_store
        self._counters = CacheCounters()
        self._index = RadixIndex(block_size)
        self._pool = PagePool(num_pages)
        self._queue = EvictionQueue(eviction)
        self._spill = None if store is None else Spill(store, device, fingerprint, page_nbytes)
        self._supply = PageSupply(self._index, self._pool, self._queue, device, self._spill, self._counters)
        self._loader = Loader(self._index, self._supply, device, self._spill, self._counters)
        self._sharing = Sharing(self._index, self._supply, self._counters)
        self._spaces: dict[str, Space] = {}
        self._leases: dict[Lease, None] = {}

    @property
    def now_s(self) -> float:
        """The largest time seen: what has expired by then may not be matched."""
        return self._supply.now_s

    # A request's life -----------------------------------------------------------------------------------------------------

    def admit(self, tenant: str, rendered: RenderedPrompt, plan: CachePlan, now_s: float, *, num_reserve: int) -> Lease | None:
        """Find the longest live prefix, pin and load it, and report what the plan found.

        `now_s` is the request's start, from which its TTLs count. None means not enough pages now: nothing has changed.
        Otherwise pages for `num_reserve` tokens, prompt included, can always be had until `release`. Raises `ValueError`
        if they never could, or if the prompt is empty or longer than `num_reserve`.
        """
        num_prompt = len(rendered.token_ids)
        num_pages = -(-num_reserve // self._block_size)
        if not 1 <= num_prompt <= num_reserve:
            raise ValueError(
                f"a prompt of {num_prompt} tokens needs a reserve of at least as many, and of one; not {num_reserve}"
            )
        if num_pages > self._pool.num_pages:
            raise ValueError(f"{num_reserve} tokens need {num_pages} pages, the pool has {self._pool.num_pages}")
        self._advance(now_s)
        space = self._space(tenant)
        ids = pack(rendered.token_ids)
        match = self._index.match(space.root, ids, num_prompt - 1, self.now_s) if plan.read else _NOTHING
        num_own = num_pages - len(match.path)
        if num_own + sum(not block.pins for block in match.path) > self._supply.num_available:
            self._counters.num_refused += 1
            return None
        view = View(rendered, plan, ids, PromptKeys(space.root, ids, self._block_size, match.path))
        lease = Lease(space, view, now_s, num_pages, writes(view))
        lease.num_kept = self._num_kept(lease)
        self._leases[lease] = None
        self._supply.reserve(num_own)
        loaded = self._loader.load(lease, match)
        self._use(match.path if match.tail is None else [*match.path, match.tail], 1)
        if lease.num_kept:
            self._touch(lease, lease.started_at_s)
        lease.report = self._report(lease, {Spill.tier: loaded.num_tokens}, lost=loaded.lost)
        self._count(lease.report)
        return lease

    def grow(self, lease: Lease, num_tokens: int) -> None:
        """Make the block table cover `num_tokens` tokens. Raises `ValueError` beyond what was reserved."""
        num_pages = -(-num_tokens // self._block_size)
        if num_pages > lease.num_pages:
            raise ValueError(f"{num_tokens} tokens need {num_pages} pages, {lease.num_pages} are reserved")
        table = lease.block_table
        missing = num_pages - len(table)
        if missing > 0:
            table += self._supply.take(missing, table[-1] if table else None, lease.num_pages - len(table))

    def commit(self, lease: Lease, token_ids: list[int], num_computed: int) -> None:
        """Let others match what is computed: every full block, and while prefilling the tokens after it too."""
        is_decoding = num_computed > lease.view.num_prompt
        if is_decoding and num_computed // self._block_size == len(lease.held):
            return
        self._sharing.put(lease, token_ids, num_computed)

    def promise(self, lease: Lease) -> None:
        """Write or refresh the plan's entries, once. Called when the first token exists: all of the prompt is computed."""
        if lease.promised or lease.released:
            return
        lease.promised = True
        self._sharing.put(lease, lease.view.rendered.token_ids, lease.view.num_prompt)
        if lease.num_kept:
            for planned, boundary in zip(lease.planned, lease.report.boundaries, strict=True):
                self._write(lease, planned, existed=boundary.existed)

    def release(self, lease: Lease, token_ids: list[int], num_reusable: int) -> None:
        """End the lease: keep the KV of the first `num_reusable` tokens as long as the plan says, give back the rest."""
        if lease.released:
            return
        self._sharing.put(lease, token_ids, num_reusable)
        lease.released = True
        del self._leases[lease]
        self._use(lease.held if lease.tail is None else [*lease.held, lease.tail], 0)
        if lease.num_kept:
            self._touch(lease, self.now_s)
        self._sharing.let_go(lease)
        self._supply.sweep(SWEEP_BLOCKS)
        if self._force_store:
            self._supply.empty_device()

    # Everyone -------------------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Tell the time, and free some of what has expired."""
        self._advance(now_s)
        self._supply.sweep(SWEEP_BLOCKS)
        for tenant, space in list(self._spaces.items()):
            space.entries.sweep(self.now_s, SWEEP_ENTRIES)
            if space.is_empty and not any(lease.space is space for lease in self._leases):
                del self._spaces[tenant]

    def flush(self, tenant: str | None) -> int:
        """Forget what is cached for `tenant`, or for everyone, in every tier; the number of blocks forgotten.

        Running requests keep their pages until they end, but nothing they computed stays.
        """
        num_blocks = 0
        for name in list(self._spaces) if tenant is None else [tenant]:
            space = self._spaces.pop(name, None)
            if space is None:
                continue
            for lease in self._leases:
                if lease.space is space:
                    lease.num_kept = 0
            blocks = list(self._index.walk(space.root))
            self._supply.forget(blocks)
            for block in blocks:
                block.expires_at_s = block.promised_until_s = 0.0
                if not block.pins:
                    self._supply.drop(block)
            num_blocks += len(blocks)
        self._counters.num_flushed_blocks += num_blocks
        return num_blocks

    def stats(self) -> CacheStats:
        """Counters since the start and gauges now."""
        pool, supply, spaces = self._pool, self._supply, self._spaces.values()
        gauges = CacheGauges(
            num_pages=pool.num_pages,
            num_free_pages=pool.num_free,
            num_pinned_pages=supply.num_in_use,
            num_reserved_pages=supply.num_reserved,
            num_blocks=self._index.num_blocks,
            num_entries=sum(len(space.entries) for space in spaces),
            num_tombstones=sum(space.entries.num_tombstones for space in spaces),
            num_leases=len(self._leases),
            device_nbytes=(pool.num_pages - pool.num_free) * self._page_nbytes,
            ram_nbytes=0 if self._spill is None else self._spill.nbytes,
        )
        return CacheStats(replace(self._counters), gauges)

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds. Walks everything: for tests."""
        spaces = list(dict.fromkeys([*self._spaces.values(), *(lease.space for lease in self._leases)]))
        self._index.check([space.root for space in spaces])
        blocks = [block for space in spaces for block in self._index.walk(space.root)]
        self._supply.check(blocks, self._sharing.check(list(self._leases), blocks))
        assert self._supply.num_reserved == sum(lease.num_pages - len(lease.block_table) for lease in self._leases)
        for space in self._spaces.values():
            space.entries.check(self.now_s)

    # Inside ---------------------------------------------------------------------------------------------------------------

    def _num_kept(self, lease: Lease) -> int:
        """How many of the request's tokens may stay: all, none, or those under a planned entry."""
        plan = lease.view.plan
        if not plan.store:
            return 0
        if plan.unmarked_ttl_s > 0:
            return sys.maxsize
        return max((lease.view.offset(planned.position) for planned in lease.planned), default=0)

    def _report(self, lease: Lease, loaded: dict[str, int], *, lost: bool) -> CacheReport:
        """What the plan found. Reading is use: the entries up to the hit are refreshed."""
        view, entries, skipped = lease.view, lease.space.entries, lease.num_cached
        reading = read(view, entries, skipped, self.now_s)
        found = boundaries(view, lease.planned, entries, self.now_s, skipped)
        miss = refuse(view)
        if miss is None and not is_best(view, reading):
            miss = explain(view, entries, reading, self._index.reach(lease.space.root, view.ids), lost=lost)
        for entry in live_entries(view, entries, reading.offset, self.now_s):
            if entry.refresh_on_read:
                entry.renew(lease.started_at_s)
                self._sharing.keep(entry, lease)
                self._counters.num_refreshed_entries += 1
        tiers = {DEVICE: skipped - sum(loaded.values()), **loaded}
        return CacheReport(
            num_prompt=view.num_prompt,
            skipped=skipped,
            hit=self._hit(lease, reading),
            boundaries=found,
            tiers={tier: num_tokens for tier, num_tokens in tiers.items() if num_tokens},
            miss=miss,
            broken_tokens=0 if reading.broken is None else view.offset(reading.broken) - reading.offset,
        )

    def _hit(self, lease: Lease, reading: Reading) -> Hit | None:
        if reading.position is None:
            return None
        entry = reading.entry
        if entry is not None:
            entry.hits += 1
        assert lease.end is not None
        expires_at_s = lease.end.expires_at_s if entry is None else entry.expires_at_s
        return Hit(reading.position, reading.offset, max(0.0, expires_at_s - lease.started_at_s))

    def _write(self, lease: Lease, planned: PlannedEntry, *, existed: bool) -> None:
        """Make the planned entry, or take the longer class and the later expiry where it is there already."""
        view, entries = lease.view, lease.space.entries
        key, offset = view.key(planned.position), view.offset(planned.position)
        entry = entries.find_live(key, self.now_s)
        if entry is None:
            expires_at_s = lease.started_at_s + planned.ttl_s
            place = view.keys.ancestor(offset), view.keys.tail(offset)
            entry = Entry(key, *place, planned.position, offset, planned.ttl_s, expires_at_s, planned.refresh_on_read)
            entries.add(entry)
            self._counters.num_written_entries += 1
        elif existed and not entry.refresh_on_read and planned.ttl_s <= entry.ttl_s:
            return
        else:
            entry.refresh_on_read |= planned.refresh_on_read
            entry.renew(lease.started_at_s, planned.ttl_s)
        self._sharing.keep(entry, lease)

    def _touch(self, lease: Lease, used_at_s: float) -> None:
        """Keep the lease's path as long after its use as the plan says."""
        until_s = used_at_s + lease.view.plan.unmarked_ttl_s
        self._supply.extend(lease.last, until_s)
        if lease.end is not None:
            self._supply.extend(lease.end, until_s)

    def _use(self, blocks: Iterable[Block], num_uses: int) -> None:
        """Note that the blocks are used now."""
        now_s, clock = self.now_s, self._queue.clock
        for block in blocks:
            block.last_used_s = now_s
            block.credit = clock
            block.num_uses += num_uses

    def _count(self, report: CacheReport) -> None:
        counters = self._counters
        counters.num_requests += 1
        counters.num_hits += report.hit is not None
        counters.num_misses += report.hit is None
        counters.num_prompt_tokens += report.num_prompt
        counters.num_skipped_tokens += report.skipped
        if report.miss is not None and report.miss.cause == "broken_promise":
            counters.num_broken_lost_tokens += report.broken_tokens
        else:
            counters.num_broken_evicted_tokens += report.broken_tokens

    def _advance(self, now_s: float) -> None:
        self._supply.now_s = max(self._supply.now_s, now_s)

    def _space(self, tenant: str) -> Space:
        space = self._spaces.get(tenant)
        if space is None:
            key = root_key(self._root_secret, tenant, self._fingerprint, self._block_size)
            space = self._spaces[tenant] = Space(Block(key, None, b"", 0))
        return space
