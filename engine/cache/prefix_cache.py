"""The prefix cache: leases pages to requests, finds what earlier ones computed,
keeps what was promised.

Knows no model.

The only class that ties index, pages, entries and tiers together. Owned by one thread; no call
waits for anything but the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from engine.cache.allocator import PageAllocator
from engine.cache.device import PageDevice
from engine.cache.hit import writes
from engine.cache.inserter import TreeInserter
from engine.cache.lease import Lease
from engine.cache.loading import Loader
from engine.cache.lookup import CachePreview, PromptLookup, TenantCache
from engine.cache.lower_tiers import LowerTiers
from engine.cache.pins import UNLIMITED, Pins
from engine.cache.promises import Promises
from engine.cache.stats import CacheCounters, CacheGauges, CacheStats
from engine.cache.tiers.client import TierClients
from engine.cache.tiers.fetch import Fetch, SpanRead
from engine.cache.tiers.object_format import SPAN_TOKENS, ObjectNamespace, namespace
from engine.cache.tiers.tiers import Tiers
from engine.cache.tiers.writeback import WriteBack
from engine.cache.tree.block import Block, PromptKeys, pack, root_key
from engine.cache.tree.eviction import EvictionQueue
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.pages import PagePool
from engine.cache.tree.radix import Match, RadixIndex
from engine.prompt.rendered import RenderedPrompt
from engine.types import CachePlan, PinOutcome, PlannedEntry

SWEEP_BLOCKS: Final = 512
SWEEP_ENTRIES: Final = 512
"""What one release or tick frees at most of what has expired."""

_NOTHING: Final = Match([], None, 0, 0)


class PrefixCache:
    """See `engine/cache/lease.py` for what a lease holds and `engine/types.py` for plan and report.

    `tiers` are below the device. With `force_store` a released block leaves the device at once, so
    that every hit is read from them. `eviction` names a score of `engine/cache/tree/eviction.py`.
    `pin_nbytes`: what pinned entries may take.

    A request that may find something below: `seek`, `poll` until its fetch is over, `admit` with
    it, `restore` until done.
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
        self._block_size = block_size
        self._page_nbytes = page_nbytes
        self._fingerprint = fingerprint
        self._root_secret = root_secret
        self._force_store = force_store
        self._counters = CacheCounters()
        self._index = RadixIndex(block_size)
        self._pool = PagePool(num_pages)
        self._queue = EvictionQueue(eviction)
        self._geometry = Geometry(
            block_size, page_nbytes, max(span_tokens - span_tokens % block_size, block_size)
        )
        below = Tiers(TierClients() if tiers is None else tiers, self._geometry, self._counters)
        write_back = WriteBack(below, device, self._geometry, self._counters, lambda: self.now_s)
        self._below = LowerTiers(below, write_back, self._geometry)
        self._supply = PageAllocator(
            self._index, self._pool, self._queue, self._counters, self._below.rescue
        )
        self._sharing = TreeInserter(self._index, self._supply, self._counters)
        self._loader = Loader(self._geometry, self._supply, self._sharing, device, self._counters)
        self._spaces: dict[str, TenantCache] = {}
        self._leases: dict[Lease, None] = {}
        self._promises = Promises(
            self._index, self._supply, self._sharing, self._counters, self._below
        )
        self._pins = Pins(self._supply, self._geometry, self._below, pin_nbytes)

    @property
    def now_s(self) -> float:
        """The largest time seen: what has expired by then may not be matched."""
        return self._supply.now_s

    # A request's life -----------------------------------------------------------------------------

    def look(
        self, tenant: str, rendered: RenderedPrompt, plan: CachePlan, ids: bytes
    ) -> CachePreview:
        """What a request for a prompt, also given as packed `ids`, would find on the device now and
        leave there. Changes nothing."""
        space = self._space(tenant)
        view = self._view(space, rendered, plan, ids, _NOTHING)
        match = (
            self._index.match(space.root, ids, view.limit, self.now_s) if plan.read else _NOTHING
        )
        return CachePreview(match.num_tokens, min(_num_kept(view, writes(view)), view.num_prompt))

    def seek(
        self,
        tenant: str,
        rendered: RenderedPrompt,
        plan: CachePlan,
        now_s: float,
        ids: bytes | None = None,
    ) -> Fetch | None:
        """Start looking below the device for what it lacks of a prompt, packed already where `ids`
        are given. None where there is nothing below, or nothing may be read. The fetch must be
        given to `admit` or to `abandon`; it may be over already."""
        if self._below.is_empty or not plan.read or not rendered.token_ids:
            return None
        self._advance(now_s)
        space = self._space(tenant)
        ids = pack(rendered.token_ids) if ids is None else ids
        match = self._index.match(space.root, ids, len(rendered.token_ids) - 1, self.now_s)
        view = self._view(space, rendered, plan, ids, match)
        last = match.path[-1] if match.path else space.root
        fetch = Fetch(space, view, self.now_s, last, match.num_tokens)
        self._below.seek(fetch)
        return fetch

    def abandon(self, fetch: Fetch) -> None:
        """Nobody waits for the fetch any more. Idempotent."""
        self._below.abandon(fetch)

    def admit(
        self,
        tenant: str,
        rendered: RenderedPrompt,
        plan: CachePlan,
        now_s: float,
        *,
        num_reserve: int,
        fetch: Fetch | None = None,
        spare_pages: int = 0,
        num_known: int | None = None,
        ids: bytes | None = None,
    ) -> Lease | None:
        """Find the longest live prefix, on the device and in what was fetched, pin it, and report
        what the plan found.

        `now_s` is the request's start, from which its TTLs count. None means not enough pages now,
        or fewer than `spare_pages` left: nothing has changed. Otherwise pages for `num_reserve`
        tokens, prompt included, can always be had until `release`; nothing may be computed until
        `restore` is done. `num_known` tokens were there before the request waited for another one
        that computed the same; None when it did not. `ids` is the prompt packed, where that is at
        hand. Raises `ValueError` if the pages never could be had, or if the prompt is empty or
        longer than `num_reserve`.
        """
        num_prompt = len(rendered.token_ids)
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
        self._advance(now_s)
        space = self._space(tenant)
        if fetch is not None:
            ids = fetch.view.ids
        elif ids is None:
            ids = pack(rendered.token_ids)
        match = (
            self._index.match(space.root, ids, num_prompt - 1, self.now_s)
            if plan.read
            else _NOTHING
        )
        pieces: list[SpanRead] = []
        if fetch is not None:
            pieces = self._below.arrived(fetch, space, match, self.now_s)
        if pieces:
            match = Match(match.path, None, 0, len(match.path) * self._block_size)
        if not self._has_room(num_pages, match, spare_pages):
            return None
        view = self._view(space, rendered, plan, ids, match) if fetch is None else fetch.view
        lease = Lease(space, view, now_s, num_pages, writes(view))
        lease.num_kept = _num_kept(view, lease.planned)
        self._open(lease, match)
        if pieces:
            self._below.expect(lease, pieces)
        lease.report = self._promises.report(lease, fetch, num_known)
        lease.fetch = fetch
        self._below.keep(lease)
        if not lease.arrivals:
            self._use_up(lease)
        return lease

    def resume(
        self,
        lease: Lease,
        tenant: str,
        token_ids: Sequence[int],
        *,
        num_reserve: int,
        num_reusable: int,
        spare_pages: int = 0,
    ) -> Lease | None:
        """A new lease for a request that gave up its pages with `release` and goes on from
        `token_ids`: prompt and answer.

        What is left on the device of the first `num_reusable` tokens is found again. Plan, report,
        promises and time are those of the old `lease`, and nothing is counted or refreshed twice.
        None as for `admit`.
        """
        assert lease.released
        space, view = self._space(tenant), lease.view
        limit = min(num_reusable, len(token_ids) - 1)
        match = (
            self._index.match(space.root, pack(token_ids), limit, self.now_s)
            if view.plan.read
            else _NOTHING
        )
        num_pages = self._geometry.num_pages(num_reserve)
        if not self._has_room(num_pages, match, spare_pages):
            return None
        again = Lease(space, view, lease.started_at_s, num_pages, lease.planned)
        again.num_kept = (
            lease.num_kept if space is lease.space else 0
        )  # forgotten meanwhile: stays so
        again.report, again.num_promised = lease.report, lease.num_promised
        self._open(again, match)
        self._below.keep(again)
        return again

    def reserve(self, lease: Lease, num_tokens: int) -> bool:
        """Set aside what the lease lacks of pages for `num_tokens` tokens; False where there are
        not enough now."""
        num_more = self._geometry.num_pages(num_tokens) - lease.num_pages
        if num_more > self._supply.num_available:
            return False
        if num_more > 0:
            self._supply.reserve(num_more)
            lease.num_pages += num_more
        return True

    def restore(self, lease: Lease, max_nbytes: int) -> int:
        """Put up to `max_nbytes` of what was read from below onto the device; the bytes put. Done
        when there are no more `lease.arrivals`."""
        nbytes = self._loader.restore(lease, max_nbytes) if lease.arrivals else 0
        if not lease.arrivals:
            self._use_up(lease)
        return nbytes

    def grow(self, lease: Lease, num_tokens: int) -> None:
        """Make the block table cover `num_tokens` tokens. Raises `ValueError` beyond what was
        reserved."""
        num_pages = self._geometry.num_pages(num_tokens)
        if num_pages > lease.num_pages:
            raise ValueError(
                f"{num_tokens} tokens need {num_pages} pages, {lease.num_pages} are reserved"
            )
        table = lease.block_table
        missing = num_pages - len(table)
        if missing > 0:
            table += self._supply.take(
                missing, table[-1] if table else None, lease.num_pages - len(table)
            )

    def commit(self, lease: Lease, token_ids: list[int], num_computed: int) -> None:
        """Let others match what is computed: every full block, and while prefilling the tokens
        after it too."""
        is_decoding = num_computed > lease.view.num_prompt
        if is_decoding and num_computed // self._block_size == len(lease.held):
            return
        self._sharing.put(lease, token_ids, num_computed)

    def promise(self, lease: Lease, num_computed: int = sys.maxsize) -> None:
        """Write or refresh, each once, the plan's entries within the first `num_computed` tokens,
        which are all computed.

        For the rest of them when the first token exists, for a part when somebody waited for it.
        """
        first, num_due = (
            lease.num_promised,
            sum(one.offset <= num_computed for one in lease.report.boundaries),
        )
        if lease.released or 0 < num_due == first:
            return
        assert not lease.arrivals, "not restored yet"
        self._sharing.put(
            lease, lease.view.rendered.token_ids, min(lease.view.num_prompt, num_computed)
        )
        lease.num_promised = num_due
        if lease.num_kept:
            self._promises.touch(lease, lease.started_at_s)
            self._below.keep(lease)
            due = zip(
                lease.planned[first:num_due], lease.report.boundaries[first:num_due], strict=True
            )
            for planned, boundary in due:
                self._promises.write(lease, planned, existed=boundary.existed)
            self._below.keep(lease)

    def release(self, lease: Lease, token_ids: list[int], num_reusable: int) -> None:
        """End the lease: keep the KV of the first `num_reusable` tokens as long as the plan says,
        give back the rest."""
        if lease.released:
            return
        if lease.arrivals:
            num_reusable = min(num_reusable, lease.num_there)
            lease.arrivals.clear()
        self._use_up(lease)
        self._sharing.put(lease, token_ids, num_reusable)
        lease.released = True
        del self._leases[lease]
        self._use(lease.held if lease.tail is None else [*lease.held, lease.tail], 0)
        if lease.num_kept:
            self._promises.touch(lease, self.now_s)
            self._below.keep(lease)
        self._sharing.let_go(lease)
        self._supply.sweep(SWEEP_BLOCKS)
        if self._force_store:
            self._supply.empty_device()

    # Everyone -------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Tell the time, and free some of what has expired."""
        self._advance(now_s)
        self._supply.sweep(SWEEP_BLOCKS)
        self._below.tell_time(self.now_s)
        for tenant, space in list(self._spaces.items()):
            space.entries.sweep(self.now_s, SWEEP_ENTRIES)
            used = [*(lease.space for lease in self._leases), *self._below.spaces]
            if space.is_empty and space not in used:
                del self._spaces[tenant]

    def flush(
        self, tenant: str | None, then: Callable[[int | None], None] = lambda num: None
    ) -> int:
        """Forget what is cached for `tenant`, or for everyone, in every tier; the number of blocks
        forgotten at once.

        Running requests keep their pages until they end, but nothing they computed stays. `then` is
        called when the lower tiers have forgotten too, with the number of blocks and of their
        objects; or with None where one of them failed, which is told again until it has. A tier is
        not read for the tenant before.
        """
        num_blocks = 0
        for name in list(self._spaces) if tenant is None else [tenant]:
            space = self._spaces.pop(name, None)
            if space is None:
                continue
            self._below.forget(space)
            for lease in self._leases:
                if lease.space is space:
                    lease.num_kept = 0
            blocks = list(self._index.walk(space.root))
            for block in blocks:
                block.expires_at_s = block.promised_until_s = 0.0
                if not block.pins:
                    self._supply.drop(block)
            num_blocks += len(blocks)
        self._counters.num_flushed_blocks += num_blocks
        prefix = b"" if tenant is None else namespace(self._root_secret, tenant)
        self._below.purge(
            prefix,
            lambda num_objects: then(None if num_objects is None else num_blocks + num_objects),
        )
        return num_blocks

    def pin(self, key: bytes, *, pinned: bool) -> tuple[PinOutcome, int, int]:
        """Keep the live entry whose object has this key until it is unpinned (`pinned` False), or
        say why not; with the bytes of KV under pinned entries now, and those there may be.

        A pinned entry does not expire, its KV leaves the device only where a running request needs
        its page and nothing else is left to give up, and its objects are given up last below.
        """
        spaces = self._spaces.values()
        outcome = self._pins.pin(spaces, key) if pinned else self._pins.unpin(spaces, key)
        return outcome, self._pins.used_nbytes(spaces), self._pins.budget_nbytes

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
            staged_nbytes=self._below.staged_nbytes,
            num_unwritten=self._below.num_unwritten,
            num_pinned_entries=len(self._pins.entries(spaces)),
            pin_nbytes=self._pins.used_nbytes(spaces),
        )
        return CacheStats(replace(self._counters), gauges, self._below.stats())

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds. Walks everything: for tests."""
        spaces = list(
            dict.fromkeys([*self._spaces.values(), *(lease.space for lease in self._leases)])
        )
        self._index.check([space.root for space in spaces])
        blocks = [block for space in spaces for block in self._index.walk(space.root)]
        self._supply.check(blocks, self._sharing.check(list(self._leases), blocks))
        assert self._supply.num_reserved == sum(
            lease.num_pages - len(lease.block_table) for lease in self._leases
        )
        for space in self._spaces.values():
            space.entries.check(self.now_s)
        self._below.check(list(self._leases))

    # The tiers below ------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `poll` or `copy_out` would get on now."""
        return self._below.has_work

    def poll(self) -> None:
        """Take in what the tiers have done; fetches that are over say so afterwards."""
        self._below.poll()

    def copy_out(self, max_nbytes: int) -> None:
        """Hand up to about `max_nbytes` of what the lower tiers should have over to them, if they
        keep up."""
        self._below.copy(max_nbytes)

    def wait_s(self) -> float | None:
        """Seconds after which `poll` has something to do though nothing came; None if it never
        will."""
        return self._below.wait_s()

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, whenever a tier has news."""
        self._below.wake_by(wake)

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        """Learn how fast the model computes prompts: loads that would take longer are not made."""
        if seconds > 0:
            self._below.learn(num_tokens, seconds)

    def close(self, timeout_s: float) -> bool:
        """Write what the tiers should have, for so long at most; False when some of it was given
        up. Nothing may be called afterwards but `stats` and `check`."""
        return self._below.close(timeout_s)

    # Inside ---------------------------------------------------------------------------------------

    def _view(
        self,
        space: TenantCache,
        rendered: RenderedPrompt,
        plan: CachePlan,
        ids: bytes,
        match: Match,
    ) -> PromptLookup:
        return PromptLookup(
            rendered, plan, ids, PromptKeys(space.root, ids, self._block_size, match.path)
        )

    def _has_room(self, num_pages: int, match: Match, spare_pages: int) -> bool:
        """Whether a lease of so many pages that begins with `match` can be had, with `spare_pages`
        left for others."""
        num_own = num_pages - len(match.path)
        if (
            num_own + sum(not block.pins for block in match.path) + spare_pages
            <= self._supply.num_available
        ):
            return True
        self._counters.num_refused += 1
        return False

    def _open(self, lease: Lease, match: Match) -> None:
        """Give a new lease its pages: those of the match, and the right to the rest."""
        self._leases[lease] = None
        self._supply.reserve(lease.num_pages - len(match.path))
        self._loader.load(lease, match)
        self._use(match.path if match.tail is None else [*match.path, match.tail], 1)
        if lease.num_kept:
            self._promises.touch(lease, lease.started_at_s)

    def _use_up(self, lease: Lease) -> None:
        """The lease needs nothing more of its fetch."""
        fetch, lease.fetch = lease.fetch, None
        if fetch is not None:
            self.abandon(fetch)

    def _use(self, blocks: Iterable[Block], num_uses: int) -> None:
        """Note that the blocks are used now."""
        now_s, clock = self.now_s, self._queue.clock
        for block in blocks:
            block.last_used_s = now_s
            block.credit = clock
            block.num_uses += num_uses

    def _advance(self, now_s: float) -> None:
        self._supply.now_s = max(self._supply.now_s, now_s)

    def _space(self, tenant: str) -> TenantCache:
        space = self._spaces.get(tenant)
        if space is None:
            key = root_key(self._root_secret, tenant, self._fingerprint, self._block_size)
            seal = ObjectNamespace(
                namespace(self._root_secret, tenant),
                key,
                self._fingerprint.encode("utf-8", "surrogatepass"),
            )
            space = self._spaces[tenant] = TenantCache(Block(key, None, b"", 0), seal)
        return space


def _num_kept(view: PromptLookup, planned: tuple[PlannedEntry, ...]) -> int:
    """How many of the request's tokens may stay: all, none, or those under a planned entry."""
    if not view.plan.store:
        return 0
    if view.plan.unmarked_ttl_s > 0:
        return sys.maxsize
    return max((view.offset(one.position) for one in planned), default=0)
