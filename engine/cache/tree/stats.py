"""The counters and gauges of the cache. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class CacheCounters:
    """Counts since the cache was made. Requests are leases granted; a hit is a report with a
    `hit`."""

    num_requests: int = 0
    num_hits: int = 0
    num_misses: int = 0
    num_prompt_tokens: int = 0
    num_skipped_tokens: int = 0
    num_copied_tokens: int = 0
    """Skipped tokens whose page was copied because the match ended inside a block."""
    num_refused: int = 0
    """Admissions put off because pages were short."""
    num_inserted_blocks: int = 0
    num_expired_blocks: int = 0
    num_evicted_blocks: int = 0
    num_flushed_blocks: int = 0
    num_demoted_blocks: int = 0
    """Blocks that left the device and are kept by a lower tier."""
    num_loaded_tokens: int = 0
    """Skipped tokens whose KV came from a lower tier."""
    num_lost_reads: int = 0
    """Objects a lower tier said it had and did not give back, or gave back damaged."""
    num_late_reads: int = 0
    """Requests that stopped waiting for a lower tier."""
    wasted_wait_seconds: float = 0.0
    """Seconds that requests waited for a lower tier's data that did not arrive."""
    num_wasted_waits: int = 0
    """Requests that waited so, at all."""
    num_long_waits: int = 0
    """Those of them that waited 0.3 s or longer."""
    num_found_entries: int = 0
    """Live entries that were known to a lower tier alone."""
    num_dropped_writes: int = 0
    """Objects that were never queued for any lower tier, as every queue was full."""
    num_written_entries: int = 0
    num_refreshed_entries: int = 0
    num_broken_evicted_tokens: int = 0
    """Tokens under a live entry that had to be computed because their KV had been evicted."""
    num_broken_late_tokens: int = 0
    """The same because a lower tier did not answer in time."""
    num_broken_corrupt_tokens: int = 0
    """The same because an object of a lower tier was damaged or foreign."""


@dataclass(frozen=True, slots=True)
class CacheGauges:
    """The state of the cache now. Pages are free, pinned (in a running request's block table) or
    evictable."""

    num_pages: int
    num_free_pages: int
    num_pinned_pages: int
    num_reserved_pages: int
    """Pages promised to running requests and not yet taken."""
    num_blocks: int
    num_entries: int
    num_tombstones: int
    num_leases: int
    device_nbytes: int
    """Bytes of the pages in use, cached ones included."""
    staged_nbytes: int = 0
    """Bytes read or being read from lower tiers and not yet on the device."""
    num_unwritten: int = 0
    """Objects that wait to be copied for the lower tiers."""
    num_pinned_entries: int = 0
    """Live entries that do not expire, as far as this engine has heard of them."""
    pin_nbytes: int = 0
    """Bytes of KV under them."""


@dataclass(slots=True)
class TierCounters:
    """Counts of one lower tier since the cache was made. `num_hits` are objects read."""

    num_hits: int = 0
    read_nbytes: int = 0
    read_seconds: float = 0.0
    """Seconds in reads that gave something."""
    written_nbytes: int = 0
    num_dropped_writes: int = 0
    """Objects that were not stored: the queue was full, or the store did not take them."""
    num_corrupt: int = 0
    num_late: int = 0
    """Requests that stopped waiting for this tier."""
    num_errors: int = 0
    """Calls of the store that raised."""


@dataclass(frozen=True, slots=True)
class TierGauges:
    """The state of one lower tier now. Averages are running ones of measurements."""

    nbytes: int
    num_items: int
    queued_nbytes: int
    bandwidth_nbytes_per_s: float
    latency_s: float
    stuck: int
    """1 while it owes an answer for too long and is not asked."""
    up: int = 1
    """1 while it works, 0 while it does not, -1 for a tier that is not there."""
    pinned_nbytes: int = 0
    """Of the objects held, those that are pinned."""


@dataclass(frozen=True, slots=True)
class TierStats:
    """One reading of a lower tier's counters and gauges."""

    counters: TierCounters
    gauges: TierGauges


@dataclass(frozen=True, slots=True)
class CacheStats:
    """One reading of counters and gauges; `tiers` are those below the device, by name."""

    counters: CacheCounters
    gauges: CacheGauges
    tiers: Mapping[str, TierStats] = field(default_factory=dict)
