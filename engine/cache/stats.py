"""What the cache counts. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounters:
    """Counts since the cache was made. Requests are leases granted; a hit is a report with a `hit`."""

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
    num_lost_blocks: int = 0
    """Blocks a lower tier did not give back, or gave back damaged."""
    num_demoted_blocks: int = 0
    num_loaded_blocks: int = 0
    num_written_entries: int = 0
    num_refreshed_entries: int = 0
    num_broken_evicted_tokens: int = 0
    """Tokens under a live entry that had to be computed because their KV had been evicted."""
    num_broken_lost_tokens: int = 0
    """The same because a lower tier failed."""


@dataclass(frozen=True, slots=True)
class CacheGauges:
    """What the cache holds now. Pages are free, pinned (in a running request's block table) or evictable."""

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
    ram_nbytes: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """One reading of counters and gauges."""

    counters: CacheCounters
    gauges: CacheGauges
