"""The prefix cache: looks prompts up, leases pages to requests and keeps what they computed.

Knows no model.

The only class that ties index, pages, entries and tiers together. Owned by one thread; no call
waits for anything but the device, and `close`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from engine.cache.allocator import PageAllocator
from engine.cache.fetches import Fetches
from engine.cache.hit import writes
from engine.cache.inserter import TreeInserter
from engine.cache.lease import Lease
from engine.cache.loading import Loader
from engine.cache.lookup import Lookup
from engine.cache.pins import UNLIMITED, Pins
from engine.cache.promises import Promises
from engine.cache.tiers.client import TierClients
from engine.cache.tiers.fetch import Fetch
from engine.cache.tiers.object_format import SPAN_TOKENS
from engine.cache.tiers.tiers import Tiers
from engine.cache.tiers.writeback import WriteBack
from engine.cache.tree.block import PromptKeys, pack
from engine.cache.tree.device import PageDevice
from engine.cache.tree.eviction import EvictionQueue
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.pages import PagePool
from engine.cache.tree.prompt import PlannedPrompt
from engine.cache.tree.radix import Match, RadixIndex
from engine.cache.tree.stats import CacheCounters, CacheGauges, CacheStats
from engine.cache.tree.tenant import TenantCache, TenantCaches
from engine.prompt.rendered import RenderedPrompt
from engine.types import CachePlan, PinOutcome

SWEEP_BLOCKS: Final = 512
SWEEP_ENTRIES: Final = 512
"""Expired blocks and entries that one release or tick frees at most."""

_NOTHING: Final = Match([], None, 0, 0)


class PrefixCache:
    """The cache of one device. Leases are in `lease.py`, plans and reports in `engine/types.py`.

    A request's life: `lookup`, `fetch`, `admit` with the fetch once that is over, `restore` until
    done; then `grow`, `insert` and `write_entries` as it is computed; `release`.

    `tiers` are below the device; their owner polls them. `write_back` copies for them. With
    `force_store` a released block leaves the device at once, so that every hit is read from the
    tiers. `eviction` names a score of `engine/structures/scores.py`. Pinned entries may take
    `pin_nbytes`.
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
        tiers: TierClients | None = None,
        eviction: str = "lru",
        force_store: bool = False,
        span_tokens: int = SPAN_TOKENS,
        pin_nbytes: int = UNLIMITED,
    ) -> None:
        if force_store and tiers is None:
            raise ValueError("force_store needs a tier below the device")
        self._force_store = force_store
        self._counters = counters = CacheCounters()
        self._index = index = RadixIndex(block_size)
        self._pool = PagePool(num_pages)
        self._geometry = geometry = Geometry(
            block_size, page_nbytes, max(span_tokens - span_tokens % block_size, block_size)
        )
        self.tiers = lower_tiers = Tiers(
            TierClients() if tiers is None else tiers, geometry, counters
        )
        self.write_back = WriteBack(lower_tiers, device, geometry, counters, lambda: self.now_s)
        self._allocator = allocator = PageAllocator(
            index, self._pool, EvictionQueue(eviction), counters, self.write_back.rescue
        )
        self._inserter = inserter = TreeInserter(index, allocator, counters)
        self._loader = Loader(geometry, allocator, inserter, device, counters)
        self._fetches = Fetches(lower_tiers, geometry)
        self._promises = Promises(
            index, allocator, inserter, counters, lower_tiers, self.write_back
        )
        self._pins = Pins(allocator, geometry, lower_tiers, self.write_back, pin_nbytes)
        self._tenants = TenantCaches(root_secret, fingerprint, block_size)
        self._leases: dict[Lease, None] = {}

    @property
    def now_s(self) -> float:
        """The largest time seen: a block that has expired by then is not matched."""
        return self._allocator.now_s

    @property
    def has_work(self) -> bool:
        """Whether there is something to poll of the tiers, or to copy for them."""
        return self.tiers.has_news or self.write_back.may_copy

    # A request's life -----------------------------------------------------------------------------

    def lookup(
        self, tenant: str, rendered: RenderedPrompt, plan: CachePlan, now_s: float
    ) -> Lookup:
        """Pack a prompt and find its longest live prefix on the device. Refreshes nothing.

        `now_s` is the request's start, from which its TTLs count.
        """
        self._allocator.advance(now_s)
        cached, ids = self._tenants[tenant], pack(rendered.token_ids)
        match = self._match(cached, ids, len(rendered.token_ids) - 1, plan)
        keys = PromptKeys(cached.root, ids, self._index.block_size, match.path)
        prompt = PlannedPrompt(rendered, plan, ids, keys)
        planned = writes(prompt)
        if plan.store and plan.unmarked_ttl_s > 0:
            max_kept = sys.maxsize
        else:
            max_kept = max((prompt.offset(one.position) for one in planned), default=0)
        return Lookup(cached, prompt, now_s, planned, max_kept, match, self._index.version)

    def current(self, lookup: Lookup) -> Lookup:
        """The lookup as it is now: the same one, unless the tree has changed."""
        self._allocator.advance(lookup.started_at_s)
        cached, match = self._tenants[lookup.tenant.name], lookup.match
        last = match.path[-1] if match.tail is None and match.path else match.tail
        # A block lives at least as long as those under it: the last one of a match speaks for all.
        is_live = last is None or last.live(self.now_s)
        if is_live and lookup.version == self._index.version and lookup.tenant is cached:
            return lookup
        prompt = lookup.prompt
        match = self._match(cached, prompt.ids, prompt.limit, prompt.plan)
        return replace(lookup, tenant=cached, match=match, version=self._index.version)

    def fetch(self, lookup: Lookup) -> Fetch | None:
        """Start to read from the tiers the part of a prompt that the device lacks.

        None where there are no tiers, or nothing may be read. The fetch must be given to `admit`
        or to `abandon`; it may be over already.
        """
        prompt = lookup.prompt
        if self.tiers.is_empty or not prompt.plan.read or not prompt.num_prompt:
            return None
        return self._fetches.start(self.current(lookup), self.now_s)

    def abandon(self, fetch: Fetch) -> None:
        """Close a fetch that is not needed any more. Idempotent."""
        self._fetches.abandon(fetch)

    def admit(
        self,
        lookup: Lookup,
        num_reserve: int,
        *,
        fetch: Fetch | None = None,
        spare_pages: int = 0,
        num_known: int | None = None,
    ) -> Lease | None:
        """Pin the longest live prefix, on the device and in the fetch, and report the plan's finds.

        None means not enough pages now, or fewer than `spare_pages` left: nothing has changed.
        Otherwise pages for `num_reserve` tokens, prompt included, can always be had until
        `release`; nothing may be computed until `restore` is done. `num_known` tokens were there
        before the request waited for another one that computed the same; None when it did not.
        Raises `ValueError` if the pages never could be had, or if the prompt is empty or longer
        than `num_reserve`.
        """
        num_pages = self._num_pages(lookup.prompt.num_prompt, num_reserve)
        lookup = self.current(lookup)
        match, tenant = lookup.match, lookup.tenant
        spans = [] if fetch is None else self._fetches.arrived(fetch, lookup, self.now_s)
        if spans:
            match = Match(match.path, None, 0, len(match.path) * self._index.block_size)
        if not self._has_room(num_pages, match, spare_pages):
            return None
        lease = Lease(tenant, lookup.prompt, lookup.started_at_s, num_pages, lookup.planned)
        lease.num_kept = lookup.max_kept
        self._open(lease, match)
        if spans:
            self._loader.expect(lease, spans)
        lease.report = self._promises.report(lease, fetch, num_known)
        lease.fetch = fetch
        self.write_back.spans(tenant, lease.held)
        if not lease.arrivals:
            self._use_up(lease)
        return lease

    def resume(
        self,
        lease: Lease,
        token_ids: Sequence[int],
        *,
        num_reserve: int,
        num_reusable: int,
        spare_pages: int = 0,
    ) -> Lease | None:
        """A new lease for a request that gave up its pages with `release` and goes on from
        `token_ids`: prompt and answer.

        The KV of the first `num_reusable` tokens is found again as far as it is on the device.
        Plan, report, entries and time are those of the old `lease`, and nothing is counted or
        renewed twice. None as for `admit`.
        """
        assert lease.released
        cached, prompt = self._tenants[lease.tenant.name], lease.prompt
        ids = prompt.ids + pack(token_ids[prompt.num_prompt :])
        match = self._match(cached, ids, min(num_reusable, len(token_ids) - 1), prompt.plan)
        num_pages = self._geometry.num_pages(num_reserve)
        if not self._has_room(num_pages, match, spare_pages):
            return None
        again = Lease(cached, prompt, lease.started_at_s, num_pages, lease.planned)
        # A tenant that was flushed meanwhile stays flushed.
        again.num_kept = lease.num_kept if cached is lease.tenant else 0
        again.report, again.num_written_entries = lease.report, lease.num_written_entries
        self._open(again, match)
        self.write_back.spans(cached, again.held)
        return again

    def reserve(self, lease: Lease, num_tokens: int) -> bool:
        """Set aside the pages that the lease lacks for `num_tokens` tokens; False where there are
        not enough now."""
        num_more = self._geometry.num_pages(num_tokens) - lease.num_pages
        if num_more > self._allocator.num_available:
            return False
        if num_more > 0:
            self._allocator.reserve(num_more)
            lease.num_pages += num_more
        return True

    def restore(self, lease: Lease, max_nbytes: int) -> int:
        """Put up to `max_nbytes` of the spans that were read onto the device; the bytes put. Done
        when there are no more `lease.arrivals`."""
        nbytes = self._loader.restore(lease, max_nbytes) if lease.arrivals else 0
        if not lease.arrivals:
            self._use_up(lease)
        return nbytes

    def grow(self, lease: Lease, num_tokens: int) -> None:
        """Make the block table cover `num_tokens` tokens. Raises `ValueError` beyond the
        reservation."""
        num_pages = self._geometry.num_pages(num_tokens)
        if num_pages > lease.num_pages:
            raise ValueError(
                f"{num_tokens} tokens need {num_pages} pages, {lease.num_pages} are reserved"
            )
        table = lease.block_table
        missing = num_pages - len(table)
        if missing > 0:
            last = table[-1] if table else None
            table += self._allocator.allocate(missing, last, lease.num_pages - len(table))

    def insert(self, lease: Lease, token_ids: list[int], num_computed: int) -> None:
        """Let others match the computed tokens: every full block, and while prefilling the tokens
        after it too."""
        is_decoding = num_computed > lease.prompt.num_prompt
        if is_decoding and num_computed // self._index.block_size == len(lease.held):
            return
        self._inserter.insert(lease, token_ids, num_computed)

    def write_entries(self, lease: Lease, num_computed: int = sys.maxsize) -> None:
        """Write or renew, each once, the plan's entries within the first `num_computed` tokens,
        which are all computed.

        For a part of them when a request waited for it, for the rest when the first token exists.
        """
        boundaries, first = lease.report.boundaries, lease.num_written_entries
        num_due = sum(boundary.offset <= num_computed for boundary in boundaries)
        if lease.released or 0 < num_due == first:
            return
        due = slice(first, num_due)
        assert not lease.arrivals, "not restored yet"
        num_prompt = lease.prompt.num_prompt
        self._inserter.insert(lease, lease.prompt.rendered.token_ids, min(num_prompt, num_computed))
        lease.num_written_entries = num_due
        if lease.num_kept:
            self._promises.touch(lease, lease.started_at_s)
            # An entry's object is never written before its KV.
            self.write_back.spans(lease.tenant, lease.held)
            for planned, boundary in zip(lease.planned[due], boundaries[due], strict=True):
                self._promises.write(lease, planned, existed=boundary.existed)
            self.write_back.spans(lease.tenant, lease.held)

    def release(self, lease: Lease, token_ids: list[int], num_reusable: int) -> None:
        """End the lease: keep the KV of the first `num_reusable` tokens as long as the plan says,
        give back the rest."""
        if lease.released:
            return
        if lease.arrivals:
            num_reusable = min(num_reusable, lease.num_there)
            lease.arrivals.clear()
        self._use_up(lease)
        self._inserter.insert(lease, token_ids, num_reusable)
        lease.released = True
        del self._leases[lease]
        self._allocator.use(lease.held if lease.tail is None else [*lease.held, lease.tail], 0)
        if lease.num_kept:
            self._promises.touch(lease, self.now_s)
            self.write_back.spans(lease.tenant, lease.held)
        self._inserter.release(lease)
        self._allocator.sweep(SWEEP_BLOCKS)
        if self._force_store:
            self._allocator.evict_all()

    # All tenants ----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Advance the time, and free some of the expired blocks and entries."""
        self._allocator.advance(now_s)
        self._allocator.sweep(SWEEP_BLOCKS)
        self.tiers.expire(self.now_s)
        for name, cached in list(self._tenants.items()):
            cached.entries.sweep(self.now_s, SWEEP_ENTRIES)
            used = [*(lease.tenant for lease in self._leases), *self._fetches.tenants]
            if cached.is_empty and cached not in used:
                del self._tenants[name]

    def flush(
        self, tenant: str | None, then: Callable[[int | None], None] = lambda num: None
    ) -> int:
        """Delete the cache of `tenant`, or of everyone, in every tier; the number of blocks deleted
        at once.

        Running requests keep their pages until they end, but nothing they computed stays. `then` is
        called when the tiers have done so too, with the number of blocks and of their objects; or
        with None where one of them failed. It is asked again until it has, and not read for the
        tenant before.
        """
        num_blocks = 0
        for name in list(self._tenants) if tenant is None else [tenant]:
            cached = self._tenants.pop(name, None)
            if cached is None:
                continue
            self.write_back.forget(cached)
            for lease in self._leases:
                if lease.tenant is cached:
                    lease.num_kept = 0
            blocks = list(self._index.walk(cached.root))
            for block in blocks:
                block.expires_at_s = block.promised_until_s = 0.0
                if not block.pins:
                    self._allocator.drop(block)
            num_blocks += len(blocks)
        self._counters.num_flushed_blocks += num_blocks
        prefix = b"" if tenant is None else self._tenants.namespace(tenant)
        self.tiers.purge(
            prefix,
            lambda num_objects: then(None if num_objects is None else num_blocks + num_objects),
        )
        self.tiers.poll()
        return num_blocks

    def pin(self, key: bytes, *, pinned: bool) -> tuple[PinOutcome, int, int]:
        """Keep the live entry whose object has this key until it is unpinned (`pinned` False), or
        say why not; with the bytes of KV under pinned entries now, and those there may be.

        A pinned entry does not expire, its KV leaves the device only where a running request needs
        its page and nothing else is left to give up, and its objects are given up last in the
        tiers.
        """
        tenants = self._tenants.values()
        outcome = self._pins.pin(tenants, key) if pinned else self._pins.unpin(tenants, key)
        return outcome, self._pins.used_nbytes(tenants), self._pins.budget_nbytes

    def stats(self) -> CacheStats:
        """Counters since the start and gauges now."""
        pool, allocator, tenants = self._pool, self._allocator, self._tenants.values()
        gauges = CacheGauges(
            num_pages=pool.num_pages,
            num_free_pages=pool.num_free,
            num_pinned_pages=allocator.num_in_use,
            num_reserved_pages=allocator.num_reserved,
            num_blocks=self._index.num_blocks,
            num_entries=sum(len(cached.entries) for cached in tenants),
            num_tombstones=sum(cached.entries.num_tombstones for cached in tenants),
            num_leases=len(self._leases),
            device_nbytes=(pool.num_pages - pool.num_free) * self._geometry.page_nbytes,
            staged_nbytes=self.tiers.reads.staged_nbytes,
            num_unwritten=self.write_back.num_wanted + self.tiers.num_refreshing,
            num_pinned_entries=len(self._pins.entries(tenants)),
            pin_nbytes=self._pins.used_nbytes(tenants),
        )
        return CacheStats(replace(self._counters), gauges, self.tiers.stats())

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        """Learn how fast the model computes prompts: loads that would take longer are not made."""
        if seconds > 0:
            self.tiers.reads.speed.average.add(num_tokens / seconds)

    def close(self, timeout_s: float) -> bool:
        """Write what is due to the tiers, for so long at most; False when some of it was given up.
        Nothing may be called afterwards but `stats` and `check`."""
        self.write_back.copy(sys.maxsize)
        return self.tiers.close(timeout_s) and not self.write_back.num_wanted

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds. Walks everything: for tests."""
        leases = list(self._leases)
        tenants = list(dict.fromkeys([*self._tenants.values(), *(one.tenant for one in leases)]))
        self._index.check([cached.root for cached in tenants])
        blocks = [block for cached in tenants for block in self._index.walk(cached.root)]
        self._allocator.check(blocks, self._inserter.check(leases, blocks))
        assert self._allocator.num_reserved == sum(
            lease.num_pages - len(lease.block_table) for lease in leases
        )
        for cached in self._tenants.values():
            cached.entries.check(self.now_s)
        self._fetches.check(leases)

    # Inside ---------------------------------------------------------------------------------------

    def _match(self, cached: TenantCache, ids: bytes, limit: int, plan: CachePlan) -> Match:
        """The longest live prefix of at most `limit` tokens that the plan may read."""
        return self._index.match(cached.root, ids, limit, self.now_s) if plan.read else _NOTHING

    def _num_pages(self, num_prompt: int, num_reserve: int) -> int:
        """Pages for `num_reserve` tokens. Raises `ValueError` as `admit` does."""
        num_pages = self._geometry.num_pages(num_reserve)
        if not 1 <= num_prompt <= num_reserve:
            raise ValueError(
                f"a prompt of {num_prompt} tokens needs a reserve of at least as many, and of "
                f"one; not {num_reserve}"
            )
        if num_pages > self._pool.num_pages:
            raise ValueError(
                f"{num_reserve} tokens need {num_pages} pages, the pool has {self._pool.num_pages}"
            )
        return num_pages

    def _has_room(self, num_pages: int, match: Match, spare_pages: int) -> bool:
        """Whether a lease of so many pages that begins with `match` can be had, with `spare_pages`
        left for others."""
        num_new = num_pages - len(match.path) + sum(not block.pins for block in match.path)
        if num_new + spare_pages <= self._allocator.num_available:
            return True
        self._counters.num_refused += 1
        return False

    def _open(self, lease: Lease, match: Match) -> None:
        """Give a new lease its pages: those of the match, and the right to the rest."""
        self._leases[lease] = None
        self._allocator.reserve(lease.num_pages - len(match.path))
        self._loader.load(lease, match)
        self._allocator.use(match.path if match.tail is None else [*match.path, match.tail], 1)
        if lease.num_kept:
            self._promises.touch(lease, lease.started_at_s)

    def _use_up(self, lease: Lease) -> None:
        """The lease needs nothing more of its fetch."""
        fetch, lease.fetch = lease.fetch, None
        if fetch is not None:
            self.abandon(fetch)
