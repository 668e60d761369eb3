"""What the engine counts, by name.

The tables are the documentation; `pcg_` in front makes them Prometheus metrics.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

from engine.cache.tree.stats import CacheStats, TierCounters, TierGauges

TIERS: Final = ("ram", "ssd", "redis")
"""The tiers below the device that there may be. One that is not configured counts nothing and holds
nothing."""

_TIER_COUNTERS: Final[dict[str, str]] = {
    "hits_total": "Objects read",
    "read_nbytes_total": "Bytes of KV read",
    "read_seconds_total": "Seconds in those reads, those of several threads added",
    "written_nbytes_total": "Bytes of KV written",
    "dropped_writes_total": "Objects that were not stored, as the queue was full or the store did "
    "not take them",
    "corrupt_total": "Objects that were damaged, or another tenant's or model's",
    "late_total": "Requests that stopped waiting for the tier",
    "errors_total": "Calls that failed",
}

_TIER_GAUGES: Final[dict[str, str]] = {
    "nbytes": "Bytes held, as far as the tier can know",
    "items": "Objects held",
    "queued_nbytes": "Bytes waiting to be written",
    "bandwidth_nbytes_per_s": "Bytes read per second, a running average",
    "latency_s": "Seconds until the tier says what it has, a running average",
    "stuck": "1 while the tier owes an answer for too long and is not asked",
    "up": "1 while the tier works, 0 while it does not, -1 where it is not configured",
    "pinned_nbytes": "Bytes of the objects held that are pinned",
}

COUNTERS: Final[dict[str, str]] = {
    "engine_requests_total": "Requests whose prompt became tokens",
    "engine_aborted_total": "Requests ended by the client, before or after they started",
    "engine_failed_total": "Requests that ended in an error of the engine or did not fit",
    "engine_prompt_tokens_total": "Prompt tokens of the requests that started",
    "engine_skipped_tokens_total": "Prompt tokens whose KV was found and not computed",
    "engine_shared_tokens_total": "Skipped tokens that another request computed while this one "
    "waited for them",
    "engine_followers_total": "Requests that waited for another one that computed the same",
    "engine_prefill_tokens_total": "Prompt tokens computed",
    "engine_preempted_total": "Times a running request gave up its pages to another one",
    "engine_recomputed_tokens_total": "Tokens of prompts and answers computed again after that",
    "engine_decode_tokens_total": "Tokens sampled after the first of an answer",
    "engine_drafted_tokens_total": "Tokens guessed and computed along, to be verified",
    "engine_accepted_tokens_total": "Guessed tokens that were right",
    "engine_output_tokens_total": "Tokens sampled, end-of-turn tokens excluded",
    "engine_steps_total": "Steps of the model",
    "engine_failed_steps_total": "Steps that raised an error",
    "engine_step_seconds_total": "Seconds in steps of the model",
    "engine_cache_seconds_total": "Seconds in the prefix cache: match, load, insert, free",
    "engine_render_seconds_total": "Seconds spent rendering and tokenizing prompts",
    "cache_requests_total": "Requests admitted by the prefix cache",
    "cache_hits_total": "Admitted requests that read an entry",
    "cache_misses_total": "Admitted requests that read none",
    "cache_prompt_tokens_total": "Prompt tokens of the admitted requests",
    "cache_skipped_tokens_total": "Prompt tokens whose KV was found",
    "cache_copied_tokens_total": "Skipped tokens whose page was copied, as the match ended inside "
    "a block",
    "cache_refused_total": "Admissions put off because pages were short",
    "cache_inserted_blocks_total": "Blocks that became matchable",
    "cache_expired_blocks_total": "Blocks dropped after their time",
    "cache_evicted_blocks_total": "Blocks dropped to make room",
    "cache_flushed_blocks_total": "Blocks dropped by request",
    "cache_demoted_blocks_total": "Blocks that left the device and are kept by a lower tier",
    "cache_loaded_tokens_total": "Skipped tokens whose KV came from a lower tier",
    "cache_lost_reads_total": "Objects a lower tier said it had and did not give back, or gave "
    "back damaged",
    "cache_late_reads_total": "Times a request stopped waiting for a lower tier",
    "cache_wasted_wait_seconds_total": "Seconds that requests waited for data of a lower tier "
    "that did not arrive",
    "cache_wasted_waits_total": "Requests that waited so",
    "cache_long_waits_total": "Requests that waited so for 0.3 s or longer",
    "cache_found_entries_total": "Live entries that a lower tier alone knew",
    "cache_dropped_writes_total": "Objects that were queued for no lower tier, as every queue was "
    "full",
    "cache_written_entries_total": "Entries written",
    "cache_refreshed_entries_total": "Entries whose time was extended",
    "cache_broken_evicted_tokens_total": "Tokens under a live entry that were evicted and "
    "computed again",
    "cache_broken_late_tokens_total": "Tokens under a live entry computed again, as a lower tier "
    "did not answer in time",
    "cache_broken_corrupt_tokens_total": "Tokens under a live entry computed again, as a lower "
    "tier gave them back damaged",
    **{
        f"tier_{tier}_{name}": f"{text} ({tier})"
        for tier in TIERS
        for name, text in _TIER_COUNTERS.items()
    },
}
"""Counters since the engine started."""

GAUGES: Final[dict[str, str]] = {
    "engine_running": "Sequences that are computed now",
    "engine_waiting": "Requests waiting for a lower tier, for pages or for a seat",
    "engine_loading": "Those of them whose prefix is being read from lower tiers",
    "engine_following": "Those of them whose prefix another request is computing",
    "engine_open": "Requests in flight, those being rendered included",
    "cache_pages": "Pages of the KV pool",
    "cache_free_pages": "Pages that hold nothing",
    "cache_pinned_pages": "Pages in the block tables of running requests",
    "cache_reserved_pages": "Pages set aside for running requests and not taken yet",
    "cache_blocks": "Blocks in the tree, in whatever tier",
    "cache_entries": "Live entries",
    "cache_tombstones": "Expired entries still remembered",
    "cache_leases": "Requests that hold pages",
    "cache_device_nbytes": "Bytes of the pages in use, cached ones included",
    "cache_staged_nbytes": "Bytes read or being read from lower tiers and not yet on the device",
    "cache_unwritten": "Objects that wait to be copied for the lower tiers, or whose new expiry "
    "they do not know yet",
    "cache_pinned_entries": "Entries that are pinned, as far as the engine has read them since it "
    "started",
    "cache_pin_nbytes": "Bytes of KV under pinned entries",
    **{
        f"tier_{tier}_{name}": f"{text} ({tier})"
        for tier in TIERS
        for name, text in _TIER_GAUGES.items()
    },
}
"""Gauges of the moment."""


class Stats:
    """The counters of one engine; the engine thread owns them."""

    def __init__(self) -> None:
        self.counters = dict.fromkeys(COUNTERS, 0.0)

    def add(self, name: str, value: float = 1) -> None:
        """Count. An unknown name is a bug and raises KeyError."""
        self.counters[name] += value

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds the block took, however it ends."""
        begin_s = time.perf_counter()
        try:
            yield
        finally:
            self.counters[name] += time.perf_counter() - begin_s


def cache_counters(stats: CacheStats) -> dict[str, float]:
    """The cache's counters under the names of `COUNTERS`."""
    counters = {
        _name("cache", name) + "_total": float(value)
        for name, value in asdict(stats.counters).items()
    }
    for tier in TIERS:
        of_tier = stats.tiers[tier].counters if tier in stats.tiers else TierCounters()
        counters |= {
            _name(f"tier_{tier}", name) + "_total": float(value)
            for name, value in asdict(of_tier).items()
        }
    return counters


def cache_gauges(stats: CacheStats) -> dict[str, float]:
    """The cache's gauges under the names of `GAUGES`."""
    gauges = {_name("cache", name): float(value) for name, value in asdict(stats.gauges).items()}
    for tier in TIERS:
        of_tier = (
            stats.tiers[tier].gauges
            if tier in stats.tiers
            else TierGauges(0, 0, 0, 0.0, 0.0, 0, -1)
        )
        gauges |= {
            _name(f"tier_{tier}", name): float(value) for name, value in asdict(of_tier).items()
        }
    return gauges


def _name(family: str, field: str) -> str:
    """`num_x` of a table of the cache is `family_x` here."""
    return f"{family}_{field.removeprefix('num_')}"
