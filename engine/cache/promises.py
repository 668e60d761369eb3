"""What a request's plan finds and leaves among the entries, and what is said of it.

Knows no pages and reads no tier.

Reading is use: what is read is refreshed. What is planned is written once its tokens are computed.
"""

from __future__ import annotations

import math
from typing import Final

from engine.cache.allocator import PageAllocator
from engine.cache.explain import explain, is_best, refuse
from engine.cache.hit import HitResult, boundaries, find_hit, is_too_old, live_entries
from engine.cache.inserter import TreeInserter
from engine.cache.lease import Lease
from engine.cache.lower_tiers import LowerTiers
from engine.cache.stats import CacheCounters
from engine.cache.tiers.fetch import Fetch
from engine.cache.tree.entries import Entry
from engine.cache.tree.radix import RadixIndex
from engine.store.base import PINNED_UNTIL_S
from engine.types import CacheReport, Hit, Miss, PlannedEntry

DEVICE: Final = "device"
"""The name of the device's tier in reports."""


class Promises:
    """Reads, renews and writes the entries of leases. `below` is told what changed."""

    def __init__(
        self,
        index: RadixIndex,
        supply: PageAllocator,
        sharing: TreeInserter,
        counters: CacheCounters,
        below: LowerTiers,
    ) -> None:
        self._index = index
        self._supply = supply
        self._sharing = sharing
        self._counters = counters
        self._below = below

    def report(self, lease: Lease, fetch: Fetch | None, num_known: int | None) -> CacheReport:
        """What the plan found, counted once. Reading is use: the entries up to the hit are
        refreshed.

        Where what another request computed meanwhile is billed as written, nothing past `num_known`
        counts as found.
        """
        view, entries, skipped = lease.view, lease.space.entries, lease.num_cached
        lost = fetch is not None and fetch.cause is not None
        shared = 0 if num_known is None else max(0, skipped - num_known)
        readable = skipped - shared if view.plan.single_flight == "write" else skipped
        reading = find_hit(view, entries, skipped, self._supply.now_s, readable)
        found = boundaries(view, lease.planned, entries, self._supply.now_s, readable)
        miss = refuse(view)
        if miss is None and readable < skipped:
            miss = Miss("cold")
        elif miss is None and not is_best(view, reading):
            miss = explain(
                view, entries, reading, self._index.reach(lease.space.root, view.ids), lost=lost
            )
        for entry in live_entries(view, entries, reading.offset, self._supply.now_s):
            if entry.refresh_on_read:
                entry.renew(lease.started_at_s)
                self._sharing.keep(entry, lease)
                self._counters.num_refreshed_entries += 1
                self._below.write(lease, entry)
        tiers = {DEVICE: skipped - sum(lease.loaded.values()), **lease.loaded}
        report = CacheReport(
            num_prompt=view.num_prompt,
            skipped=skipped,
            hit=self._hit(lease, reading),
            boundaries=found,
            tiers={tier: num_tokens for tier, num_tokens in tiers.items() if num_tokens},
            miss=miss,
            broken_tokens=0
            if reading.broken is None
            else view.offset(reading.broken) - reading.offset,
            shared=shared,
        )
        self._count(report, fetch)
        return report

    def write(self, lease: Lease, planned: PlannedEntry, *, existed: bool) -> None:
        """Make the planned entry, or take the longer class and the later expiry where it is there
        already.

        What was found is renewed within its own end; what was written anew begins a new life.
        """
        view, entries = lease.view, lease.space.entries
        key, offset = view.key(planned.position), view.offset(planned.position)
        entry = entries.find_live(key, self._supply.now_s)
        ends_at_s = lease.started_at_s + (
            math.inf if planned.max_age_s is None else planned.max_age_s
        )
        ttl_s = planned.ttl_s if planned.upgrade or not existed else 0.0
        if entry is None:
            expires_at_s = min(lease.started_at_s + planned.ttl_s, ends_at_s)
            place = view.keys.ancestor(offset), view.keys.tail(offset)
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
            too_old = is_too_old(entry, view.plan, lease.started_at_s)
            if too_old:
                entry.written_at_s = lease.started_at_s
            entry.ends_at_s = (
                min(entry.ends_at_s, ends_at_s) if existed and not too_old else ends_at_s
            )
            entry.refresh_on_read |= planned.refresh_on_read
            entry.renew(lease.started_at_s, ttl_s)
        self._sharing.keep(entry, lease)
        self._below.write(lease, entry)

    def touch(self, lease: Lease, used_at_s: float) -> None:
        """Keep the lease's path as long after its use as the plan says."""
        until_s = used_at_s + lease.view.plan.unmarked_ttl_s
        self._supply.extend(lease.last, until_s)
        if lease.end is not None:
            self._supply.extend(lease.end, until_s)

    def _hit(self, lease: Lease, reading: HitResult) -> Hit | None:
        if reading.position is None:
            return None
        entry = reading.entry
        assert lease.end is not None
        if entry is not None:
            return Hit(reading.position, reading.offset, entry.ttl_left_s(lease.started_at_s))
        if lease.arrivals:
            kept_s = lease.started_at_s + lease.view.plan.unmarked_ttl_s if lease.num_kept else 0.0
            expires_at_s = max(lease.arrivals[-1].expires_at_s, kept_s)
        else:
            expires_at_s = lease.end.expires_at_s
        if (
            expires_at_s >= PINNED_UNTIL_S
        ):  # under a pinned entry: what the request itself would keep it for
            expires_at_s = lease.started_at_s + lease.view.plan.unmarked_ttl_s
        return Hit(reading.position, reading.offset, max(0.0, expires_at_s - lease.started_at_s))

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
