"""What the engine counts, by name. The tables are the documentation; `pcg_` in front makes them Prometheus metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

from engine.cache.stats import CacheStats

COUNTERS: Final[dict[str, str]] = {
    "engine_requests_total": "Requests whose prompt became tokens",
    "engine_aborted_total": "Requests ended by the client, before or after they started",
    "engine_failed_total": "Requests that ended in an error of the engine or did not fit",
    "engine_prompt_tokens_total": "Prompt tokens of the requests that started",
    "engine_skipped_tokens_total": "Prompt tokens whose KV was found and not computed",
    "engine_prefill_tokens_total": "Prompt tokens computed",
    "engine_decode_tokens_total": "Tokens computed one at a time after the prompt",
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
    "cache_copied_tokens_total": "Skipped tokens whose page was copied, as the match ended inside a block",
    "cache_refused_total": "Admissions put off because pages were short",
    "cache_inserted_blocks_total": "Blocks that became matchable",
    "cache_expired_blocks_total": "Blocks dropped after their time",
    "cache_evicted_blocks_total": "Blocks dropped to make room",
    "cache_flushed_blocks_total": "Blocks dropped by request",
    "cache_lost_blocks_total": "Blocks a lower tier did not give back, or gave back damaged",
    "cache_demoted_blocks_total": "Blocks moved to a lower tier",
    "cache_loaded_blocks_total": "Blocks brought back from a lower tier",
    "cache_written_entries_total": "Entries written",
    "cache_refreshed_entries_total": "Entries whose time was extended",
    "cache_broken_evicted_tokens_total": "Tokens under a live entry that were evicted and computed again",
    "cache_broken_lost_tokens_total": "Tokens under a live entry that a lower tier lost and that were computed again",
}
"""Counters since the engine started."""

GAUGES: Final[dict[str, str]] = {
    "engine_running": "Sequences that are computed now",
    "engine_waiting": "Requests waiting for pages or for a seat",
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
    "cache_ram_nbytes": "Bytes in the memory tier",
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
    return {f"cache_{name.removeprefix('num_')}_total": float(value) for name, value in asdict(stats.counters).items()}


def cache_gauges(stats: CacheStats) -> dict[str, float]:
    """The cache's gauges under the names of `GAUGES`."""
    return {f"cache_{name.removeprefix('num_')}": float(value) for name, value in asdict(stats.gauges).items()}
