"""The cache's side of the lower tiers: fetches of requests, and what the tiers are to keep.

Knows no trees and no reports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import takewhile

from engine.cache.lease import Lease
from engine.cache.lookup import TenantCache
from engine.cache.stats import TierStats
from engine.cache.tiers.fetch import Fetch, SpanRead
from engine.cache.tiers.tiers import Tiers
from engine.cache.tiers.writeback import WriteBack
from engine.cache.tree.block import Block
from engine.cache.tree.entries import Entry
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.radix import Match


class LowerTiers:
    """Tiers, and what of the device they should have. Owned by the cache; nothing here waits but
    `close`."""

    def __init__(self, tiers: Tiers, write_back: WriteBack, geometry: Geometry) -> None:
        self._tiers = tiers
        self._write_back = write_back
        self._geometry = geometry
        self._fetches: dict[Fetch, None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there are no tiers: nothing is ever found, and nothing has to be written."""
        return self._tiers.is_empty

    @property
    def has_work(self) -> bool:
        """Whether `poll` or `copy` would get on now."""
        return self._tiers.has_news or self._write_back.may_copy

    @property
    def num_unwritten(self) -> int:
        """Objects that wait to be copied, or whose new expiry is on its way."""
        return self._write_back.num_wanted + self._tiers.num_refreshing

    @property
    def staged_nbytes(self) -> int:
        """Bytes read or being read and not yet on the device."""
        return self._tiers.reads.staged_nbytes

    @property
    def spaces(self) -> list[TenantCache]:
        """The tenants for whom something is being fetched."""
        return [fetch.space for fetch in self._fetches]

    # Requests -------------------------------------------------------------------------------------

    def seek(self, fetch: Fetch) -> None:
        """Begin a fetch; it is over at once where the device has enough."""
        self._fetches[fetch] = None
        if self._has_enough(fetch):
            self._tiers.reads.abandon(fetch)
        else:
            self._tiers.start(fetch)

    def abandon(self, fetch: Fetch) -> None:
        """Nobody waits for the fetch any more, or all of it was used. Idempotent."""
        if fetch in self._fetches:
            del self._fetches[fetch]
            self._tiers.reads.abandon(fetch)

    def arrived(
        self, fetch: Fetch, space: TenantCache, match: Match, now_s: float
    ) -> list[SpanRead]:
        """What was fetched, and has not expired while the request waited, that makes a device match
        longer."""
        if fetch.space is not space:  # flushed meanwhile
            return []
        promised = max(self._live(fetch, now_s), default=0)
        fetched = fetch.arrived(len(match.path) * self._geometry.block_size)
        pieces = list(
            takewhile(lambda piece: piece.expires_at_s > now_s or piece.start < promised, fetched)
        )
        return pieces if pieces and pieces[-1].end > match.num_tokens else []

    def expect(self, lease: Lease, pieces: Sequence[SpanRead]) -> None:
        """Count what was fetched as cached; it comes onto the device with `restore`."""
        lease.arrivals.extend(pieces)
        lease.num_cached = min(pieces[-1].end, lease.view.limit)
        at = lease.num_there
        for piece in pieces:
            end = min(piece.end, lease.num_cached)
            lease.loaded[piece.tier] = lease.loaded.get(piece.tier, 0) + end - at
            at = end

    def learn(self, num_tokens: int, seconds: float) -> None:
        """The model has prefilled so many tokens in so long."""
        self._tiers.reads.speed.average.add(num_tokens / seconds)

    # What the tiers should have -------------------------------------------------------------------

    def keep(self, lease: Lease) -> None:
        """Have the tiers keep the spans of the lease's path as long as the device does."""
        self._write_back.spans(lease.space, lease.held)

    def write(self, lease: Lease, entry: Entry) -> None:
        """Have the tiers know an entry as it is now, and keep what was just read from them as
        long."""
        for piece in lease.arrivals:
            if piece.start < entry.offset and piece.expires_at_s < entry.expires_at_s:
                piece.expires_at_s = entry.expires_at_s
                self._tiers.refresh(piece.label.key, entry.expires_at_s)
        self._write_back.entry(lease.space, entry)

    def pin(self, space: TenantCache, entry: Entry, path: Sequence[Block]) -> None:
        """Have the tiers know a pinned entry at the end of `path`, and keep its KV as long."""
        self._write_back.spans(space, path)
        self._write_back.entry(space, entry)
        # At once: a kill must not leave a pinned entry whose KV expires.
        self._tiers.tell_refreshes()

    def unpin(
        self, space: TenantCache, entry: Entry, path: Sequence[Block], until_s: float
    ) -> None:
        """The opposite: from here on nothing of it is kept longer than `until_s` or than the device
        keeps it."""
        self._write_back.curtail(space, entry, path, until_s)

    def rescue(self, block: Block) -> None:
        """A live block is about to leave the device."""
        self._write_back.rescue(block)

    def copy(self, max_nbytes: int) -> None:
        """Hand about `max_nbytes` over to the tiers, if they keep up."""
        self._write_back.copy(max_nbytes)

    def forget(self, space: TenantCache) -> None:
        """Write nothing more of a tenant."""
        self._write_back.forget(space)

    def purge(self, prefix: bytes, then: Callable[[int | None], None]) -> None:
        """Forget everything under a prefix of keys; see `Tiers.purge`."""
        self._tiers.purge(prefix, then)
        self._tiers.poll()

    # Time -----------------------------------------------------------------------------------------

    def tell_time(self, now_s: float) -> None:
        """Let every tier drop some of what has expired."""
        self._tiers.tell_time(now_s)

    def poll(self) -> None:
        """Take in what the tiers have done."""
        self._tiers.poll()

    def wait_s(self) -> float | None:
        """Seconds after which `poll` has something to do though nothing came; None if it never
        will."""
        return self._tiers.wait_s()

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, whenever there is something to poll."""
        self._tiers.wake_by(wake)

    def close(self, timeout_s: float) -> bool:
        """Write what the tiers should have, for so long at most; False when some of it was given
        up."""
        self._write_back.copy(sys.maxsize)
        return self._tiers.close(timeout_s) and not self._write_back.num_wanted

    def stats(self) -> dict[str, TierStats]:
        """Counters and gauges by tier."""
        return self._tiers.stats()

    def check(self, leases: Sequence[Lease]) -> None:
        """Raise AssertionError unless everything staged or awaited belongs to some request. For
        tests."""
        used = [lease.fetch for lease in leases if lease.fetch is not None]
        assert all(fetch in self._fetches for fetch in used)
        self._tiers.reads.check(list(self._fetches))

    def _has_enough(self, fetch: Fetch) -> bool:
        """Whether the device has what the plan would read, and fewer of the prompt's tokens are
        missing than make a span.

        Every live entry the plan may read has to be there: one whose end alone has left the device
        is still a promise.
        """
        view, plan = fetch.view, fetch.view.plan
        if view.limit - fetch.num_matched >= self._geometry.span_tokens:
            return False
        live = self._live(fetch, fetch.now_s)
        if plan.any_prefix:
            return fetch.num_matched >= max([plan.min_tokens, 1, *live])
        return bool(live) and fetch.num_matched >= max(live)

    @staticmethod
    def _live(fetch: Fetch, now_s: float) -> list[int]:
        """Where the live entries end that are known here and that the plan may read."""
        view, entries = fetch.view, fetch.space.entries
        least = max(view.plan.min_tokens, 1)
        wanted = (
            [position for position in view.plan.readable if view.offset(position) >= least]
            if len(entries)
            else []
        )
        return [
            view.offset(position)
            for position in wanted
            if entries.find_live(view.key(position), now_s) is not None
        ]
