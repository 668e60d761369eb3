"""The numbers that the cache and its tiers report, each with its description. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.metric import Family, counter, gauge

_KV_BYTES: Final = Family(
    "kv_bytes", "Bytes held, by tier. 0 for a Redis: it is shared.", ("tier",)
)
_PUT_DROPS: Final = Family(
    "kv_put_drops_total",
    "Objects that were not stored. store: a tier did not take it; queue: every queue was full "
    "(tier all).",
    ("tier", "reason"),
)
_EVICTIONS: Final = Family("kv_evictions_total", "Blocks of KV given up, by reason.", ("reason",))
_WAITS: Final = Family(
    "tier_waits_total", "Requests that waited in vain; long: 0.3 s or more.", ("length",)
)


@dataclass(slots=True)
class CacheCounters:
    """Counts since the cache was made. Requests are leases granted; a hit is a report with a
    `hit`."""

    num_requests: int = counter("Requests admitted by the prefix cache")
    num_hits: int = counter("Admitted requests that read an entry")
    num_misses: int = counter("Admitted requests that read none")
    num_prompt_tokens: int = counter("Prompt tokens of the admitted requests")
    num_skipped_tokens: int = counter("Prompt tokens whose KV was found")
    num_copied_tokens: int = counter(
        "Skipped tokens whose page was copied, as the match ended inside a block"
    )
    num_refused: int = counter("Admissions put off because pages were short")
    num_inserted_blocks: int = counter("Blocks that became matchable")
    num_expired_blocks: int = counter(_EVICTIONS, "ttl")
    num_evicted_blocks: int = counter(_EVICTIONS, "room")
    num_flushed_blocks: int = counter(_EVICTIONS, "flush")
    num_demoted_blocks: int = counter("Blocks that left the device and are kept by a lower tier")
    num_loaded_tokens: int = counter("Skipped tokens whose KV came from a lower tier")
    num_lost_reads: int = counter(
        "Objects a lower tier said it had and did not give back, or gave back damaged"
    )
    num_late_reads: int = counter("Times a request stopped waiting for a lower tier")
    wasted_wait_seconds: float = counter(
        Family(
            "tier_wait_seconds_total",
            "Seconds that requests waited for a tier in vain: what they waited for was late, gone "
            "or damaged.",
        )
    )
    num_wasted_waits: int = counter(_WAITS, "any")
    num_long_waits: int = counter(_WAITS, "long")
    num_found_entries: int = counter("Live entries that a lower tier alone knew")
    num_dropped_writes: int = counter(_PUT_DROPS, "all", "queue")
    num_written_entries: int = counter("Entries written")
    num_refreshed_entries: int = counter("Entries whose time was extended")
    num_broken_evicted_tokens: int = counter(
        "Tokens under a live entry that were evicted and computed again"
    )
    num_broken_late_tokens: int = counter(
        "Tokens under a live entry computed again, as a lower tier did not answer in time"
    )
    num_broken_corrupt_tokens: int = counter(
        "Tokens under a live entry computed again, as a lower tier gave them back damaged"
    )


@dataclass(frozen=True, slots=True)
class CacheGauges:
    """The contents of the cache now. Pages are free, pinned (in a running request's block table) or
    evictable."""

    num_pages: int = gauge("Pages of the KV pool")
    num_free_pages: int = gauge("Pages that hold nothing")
    num_pinned_pages: int = gauge("Pages in the block tables of running requests")
    num_reserved_pages: int = gauge("Pages set aside for running requests and not taken yet")
    num_blocks: int = gauge("Blocks in the tree, in whatever tier")
    num_entries: int = gauge(
        Family("kv_entries", "Live entries: prefixes promised to be cached until their time.")
    )
    num_tombstones: int = gauge("Expired entries still remembered")
    num_leases: int = gauge("Requests that hold pages")
    device_nbytes: int = gauge(_KV_BYTES, "device")
    """Bytes of the pages in use, cached ones included."""
    staged_nbytes: int = gauge(
        "Bytes read or being read from lower tiers and not yet on the device", default=0
    )
    num_unwritten: int = gauge(
        "Objects that wait to be copied for the lower tiers, or whose new expiry they do not know "
        "yet",
        default=0,
    )
    num_pinned_entries: int = gauge(
        "Entries that are pinned, as far as the engine has read them since it started", default=0
    )
    pin_nbytes: int = gauge("Bytes of KV under pinned entries", default=0)


@dataclass(slots=True)
class TierCounters:
    """Counts of one lower tier since the cache was made. `num_hits` are objects read."""

    num_hits: int = counter(Family("kv_reads_total", "Objects read from a tier.", ("tier",)))
    read_nbytes: int = counter(
        Family("kv_read_bytes_total", "Bytes of KV read from a tier.", ("tier",))
    )
    read_seconds: float = counter(
        Family("kv_load_seconds_total", "Seconds in those reads.", ("tier",))
    )
    """Those of reads that gave something; of several threads they add up."""
    written_nbytes: int = counter(
        Family("kv_written_bytes_total", "Bytes written to a tier.", ("tier",))
    )
    num_dropped_writes: int = counter(_PUT_DROPS, "store")
    """Objects that were not stored: the queue was full, or the store did not take them."""
    num_corrupt: int = counter(
        Family(
            "kv_corrupt_total",
            "Objects that came back damaged, or another tenant's or model's. All were treated as "
            "misses.",
            ("tier",),
        )
    )
    num_late: int = counter(
        Family("kv_late_total", "Requests that stopped waiting for a tier.", ("tier",))
    )
    num_errors: int = counter(
        Family("store_errors_total", "Calls of a tier that failed.", ("store",))
    )


@dataclass(frozen=True, slots=True)
class TierGauges:
    """One lower tier now. Averages are running ones of measured values."""

    nbytes: int = gauge(_KV_BYTES)
    num_items: int = gauge(Family("kv_objects", "Objects held by a tier.", ("tier",)))
    queued_nbytes: int = gauge(
        Family("kv_queued_bytes", "Bytes waiting to be written to a tier.", ("tier",))
    )
    bandwidth_nbytes_per_s: float = gauge(
        Family("store_read_bytes_per_second", "Measured, a running average.", ("store",))
    )
    latency_s: float = gauge(
        Family(
            "store_latency_seconds",
            "Until a tier says what it has, a running average.",
            ("store",),
        )
    )
    stuck: int = gauge("1 while the tier owes an answer for too long and is not asked")
    up: int = gauge(
        Family(
            "store_up", "Whether a tier works: it answers, and takes what it is given.", ("store",)
        ),
        default=1,
    )
    """1 while it works, 0 while it does not, -1 for a tier that is not there."""
    pinned_nbytes: int = gauge(
        Family("kv_pinned_bytes", "Bytes of a tier's objects that are pinned.", ("tier",)),
        default=0,
    )


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
