"""The open fetches of requests: whether one is needed, and the spans that it adds to a match.

Knows no pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from engine.cache.hit import live_offsets
from engine.cache.lease import Lease
from engine.cache.lookup import Lookup
from engine.cache.tiers.fetch import Fetch, SpanRead
from engine.cache.tiers.tiers import Tiers
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.tenant import TenantCache


class Fetches:
    """Starts fetches, and keeps each until its pages are on the device or it is abandoned."""

    def __init__(self, tiers: Tiers, geometry: Geometry) -> None:
        self._tiers = tiers
        self._geometry = geometry
        self._open: dict[Fetch, None] = {}

    @property
    def tenants(self) -> list[TenantCache]:
        """The tenants of the open fetches."""
        return [fetch.tenant for fetch in self._open]

    def start(self, lookup: Lookup, now_s: float) -> Fetch:
        """Begin to read the part that the device lacks; over at once where it lacks nothing."""
        match, tenant = lookup.match, lookup.tenant
        last = match.path[-1] if match.path else tenant.root
        fetch = Fetch(tenant, lookup.prompt, now_s, last, match.num_tokens)
        self._open[fetch] = None
        if self._has_enough(lookup, now_s):
            self._tiers.reads.abandon(fetch)
        else:
            self._tiers.start(fetch)
        return fetch

    def abandon(self, fetch: Fetch) -> None:
        """Close a fetch that is not needed any more, or that was used up. Idempotent."""
        if fetch in self._open:
            del self._open[fetch]
            self._tiers.reads.abandon(fetch)

    def arrived(self, fetch: Fetch, lookup: Lookup, now_s: float) -> list[SpanRead]:
        """The spans that were read and make the match longer, in token order; without those that
        expired while the request waited."""
        if fetch.tenant is not lookup.tenant:  # flushed meanwhile
            return []
        promised = max(live_offsets(lookup.prompt, lookup.tenant.entries, now_s), default=0)
        fetched = fetch.arrived(len(lookup.match.path) * self._geometry.block_size)
        spans = list(
            takewhile(lambda span: span.expires_at_s > now_s or span.start < promised, fetched)
        )
        return spans if spans and spans[-1].end > lookup.num_found else []

    def check(self, leases: Sequence[Lease]) -> None:
        """Raise AssertionError unless everything staged or awaited belongs to some request. For
        tests."""
        used = [lease.fetch for lease in leases if lease.fetch is not None]
        assert all(fetch in self._open for fetch in used)
        self._tiers.reads.check(list(self._open))

    def _has_enough(self, lookup: Lookup, now_s: float) -> bool:
        """Whether the device has all that the plan would read, and lacks less than a span of the
        prompt.

        Every live entry the plan may read has to be there: one whose end alone has left the device
        is still a promise.
        """
        prompt, plan = lookup.prompt, lookup.prompt.plan
        if prompt.limit - lookup.num_found >= self._geometry.span_tokens:
            return False
        live = live_offsets(prompt, lookup.tenant.entries, now_s)
        if plan.any_prefix:
            return lookup.num_found >= max([plan.min_tokens, 1, *live])
        return bool(live) and lookup.num_found >= max(live)
