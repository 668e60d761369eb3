"""The entries of a running request: those it reads and renews, those it writes, and its report.

Knows no pages and reads no tier.

Reading is use: an entry that is read is renewed. A planned entry is written once its tokens are
computed.
"""

from __future__ import annotations

import math
from typing import Final

from engine.cache.allocator import PageAllocator
from engine.cache.explain import explain, is_best, refuse
from engine.cache.hit import HitResult, boundaries, find_hit, is_too_old, live_entries
from engine.cache.inserter import TreeInserter
from engine.cache.lease import Lease
from engine.cache.tiers.fetch import Fetch
from engine.cache.tiers.tiers import Tiers
from engine.cache.tiers.writeback import WriteBack
from engine.cache.tree.entries import Entry
from engine.cache.tree.radix import RadixIndex
from engine.cache.tree.stats import CacheCounters
from engine.store.base import PINNED_UNTIL_S
from engine.types import CacheReport, Hit, Miss, PlannedEntry

DEVICE: Final = "device"
"""The name of the device's tier in reports."""


class Promises:
    """Reads, renews and writes the entries of leases. `renew` alone refreshes a TTL."""

    def __init__(
        self,
        index: RadixIndex,
        allocator: PageAllocator,
        inserter: TreeInserter,
        counters: CacheCounters,
        tiers: Tiers,
        write_back: WriteBack,
    ) -> None:
        self._index = index
        self._allocator = allocator
        self._inserter = inserter
        self._counters = counters
        self._tiers = tiers
        self._write_back = write_back

    def report(self, lease: Lease, fetch: Fetch | None, num_known: int | None) -> CacheReport:
        """The plan's finds, counted once. The entries up to the hit are renewed.

        Where tokens that another request computed meanwhile are billed as written, nothing past
        `num_known` counts as found.
        """
        prompt, entries, skipped = lease.prompt, lease.tenant.entries, lease.num_cached
        lost = fetch is not None and fetch.cause is not None
        shared = 0 if num_known is None else max(0, skipped - num_known)
        readable = skipped - shared if prompt.plan.single_flight == "write" else skipped
        hit = find_hit(prompt, entries, skipped, self._allocator.now_s, readable)
        found = boundaries(prompt, lease.planned, entries, self._allocator.now_s, readable)
        miss = refuse(prompt)
        if miss is None and readable < skipped:
            miss = Miss("cold")
        elif miss is None and not is_best(prompt, hit):
            miss = explain(
                prompt, entries, hit, self._index.reach(lease.tenant.root, prompt.ids), lost=lost
            )
        for entry in live_entries(prompt, entries, hit.offset, self._allocator.now_s):
            if entry.refresh_on_read:
                self.renew(lease, entry)
                self._counters.num_refreshed_entries += 1
        tiers = {DEVICE: skipped - sum(lease.loaded.values()), **lease.loaded}
        report = CacheReport(
            num_prompt=prompt.num_prompt,
            skipped=skipped,
            hit=_reported(lease, hit),
            boundaries=found,
            tiers={tier: num_tokens for tier, num_tokens in tiers.items() if num_tokens},
            miss=miss,
            broken_tokens=prompt.offset(hit.broken) - hit.offset if hit.broken else 0,
            shared=shared,
        )
        self._count(report, fetch)
        return report

    def write(self, lease: Lease, planned: PlannedEntry, *, existed: bool) -> None:
        """Make the planned entry, or take the longer class and the later expiry where it is there
        already.

        An entry that was found is renewed within its own end; one written anew begins a new life.
        """
        prompt, entries = lease.prompt, lease.tenant.entries
        key, offset = prompt.key(planned.position), prompt.offset(planned.position)
        entry = entries.find_live(key, self._allocator.now_s)
        ends_at_s = lease.started_at_s + (
            math.inf if planned.max_age_s is None else planned.max_age_s
        )
        ttl_s = planned.ttl_s if planned.upgrade or not existed else 0.0
        if entry is None:
            expires_at_s = min(lease.started_at_s + planned.ttl_s, ends_at_s)
            place = prompt.keys.ancestor(offset), prompt.keys.tail(offset)
            entry = Entry(
                key,
                *place,
                planned.position,
                offset,
                planned.ttl_s,
                expires_at_s,
                planned.refresh_on_read,
            )
            entry.written_at_s, entry.ends_at_s = lease.started_at_s, ends_at_s
            entries.add(entry)
            self._counters.num_written_entries += 1
        elif existed and not entry.refresh_on_read and ttl_s <= entry.ttl_s:
            return
        else:
            too_old = is_too_old(entry, prompt.plan, lease.started_at_s)
            if too_old:
                entry.written_at_s = lease.started_at_s
            entry.ends_at_s = (
                min(entry.ends_at_s, ends_at_s) if existed and not too_old else ends_at_s
            )
            entry.refresh_on_read |= planned.refresh_on_read
        self.renew(lease, entry, ttl_s)

    def renew(self, lease: Lease, entry: Entry, ttl_s: float = 0.0) -> None:
        """Refresh the TTL of an entry that the lease used: its clock starts again at the request's
        start, its KV is kept as long, here and in the lower tiers."""
        entry.renew(lease.started_at_s, ttl_s)
        self._inserter.keep(entry, lease)
        for span in lease.arrivals:
            if span.start < entry.offset and span.expires_at_s < entry.expires_at_s:
                span.expires_at_s = entry.expires_at_s
                self._tiers.refresh(span.label.key, entry.expires_at_s)
        self._write_back.entry(lease.tenant, entry)

    def touch(self, lease: Lease, used_at_s: float) -> None:
        """Keep the lease's path as long after its use as the plan says."""
        until_s = used_at_s + lease.prompt.plan.unmarked_ttl_s
        self._allocator.extend(lease.last, until_s)
        if lease.end is not None:
            self._allocator.extend(lease.end, until_s)

    def _count(self, report: CacheReport, fetch: Fetch | None) -> None:
        counters = self._counters
        counters.num_requests += 1
        counters.num_hits += report.hit is not None
        counters.num_misses += report.hit is None
        counters.num_prompt_tokens += report.num_prompt
        counters.num_skipped_tokens += report.skipped
        counters.num_loaded_tokens += sum(
            num for tier, num in report.tiers.items() if tier != DEVICE
        )
        match None if fetch is None else fetch.cause:
            case "late":
                counters.num_broken_late_tokens += report.broken_tokens
            case "corrupt":
                counters.num_broken_corrupt_tokens += report.broken_tokens
            case None:
                counters.num_broken_evicted_tokens += report.broken_tokens


def _reported(lease: Lease, hit: HitResult) -> Hit | None:
    """The hit with the time that is left for it."""
    if hit.position is None:
        return None
    if hit.entry is not None:
        return Hit(hit.position, hit.offset, hit.entry.ttl_left_s(lease.started_at_s))
    assert lease.end is not None
    unmarked_until_s = lease.started_at_s + lease.prompt.plan.unmarked_ttl_s
    if lease.arrivals:
        kept_s = unmarked_until_s if lease.num_kept else 0.0
        expires_at_s = max(lease.arrivals[-1].expires_at_s, kept_s)
    else:
        expires_at_s = lease.end.expires_at_s
    if expires_at_s >= PINNED_UNTIL_S:  # under a pinned entry: as long as the request keeps it
        expires_at_s = unmarked_until_s
    return Hit(hit.position, hit.offset, max(0.0, expires_at_s - lease.started_at_s))
