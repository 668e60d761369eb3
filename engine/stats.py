"""The numbers of one engine, by key: those of its loop, of the cache and of the tiers.

`engine_numbers` describes them; `/metrics` shows them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from engine.cache.tree.stats import (
    CacheCounters,
    CacheGauges,
    CacheStats,
    TierCounters,
    TierGauges,
    TierStats,
)
from engine.metric import Family, Number, numbers, values
from engine.store.kinds import TIER_KINDS

LOOP_COUNTERS: Final[dict[str, str]] = {
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
}
"""Counts of the engine's loop since the engine started."""

LOOP_GAUGES: Final[dict[str, str]] = {
    "engine_running": "Sequences that are computed now",
    "engine_waiting": "Requests waiting for a lower tier, for pages or for a seat",
    "engine_loading": "Those of them whose prefix is being read from lower tiers",
    "engine_following": "Those of them whose prefix another request is computing",
    "engine_open": "Requests in flight, those being rendered included",
}
"""Measures of the engine's loop now."""

_ABSENT: Final = TierStats(TierCounters(), TierGauges(0, 0, 0, 0.0, 0.0, 0, up=-1))
"""The numbers of a tier that is not configured."""


def engine_numbers() -> Iterator[Number]:
    """Every number that an engine reports, counters first, with those of every kind of tier."""
    for key, text in LOOP_COUNTERS.items():
        yield Number(key, "counter", Family(key, f"{text}."))
    yield from numbers(CacheCounters, "cache")
    for tier in TIER_KINDS:
        yield from numbers(TierCounters, f"tier_{tier}", tier)
    for key, text in LOOP_GAUGES.items():
        yield Number(key, "gauge", Family(key, f"{text}."))
    yield from numbers(CacheGauges, "cache")
    for tier in TIER_KINDS:
        yield from numbers(TierGauges, f"tier_{tier}", tier)


class Stats:
    """The counters of one engine; the engine thread owns them."""

    def __init__(self) -> None:
        self.counters = dict.fromkeys(LOOP_COUNTERS, 0.0)

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


def cache_values(stats: CacheStats) -> tuple[dict[str, float], dict[str, float]]:
    """The counters and the gauges of the cache and of every kind of tier, by key."""
    counters, gauges = values(stats.counters, "cache"), values(stats.gauges, "cache")
    for name in TIER_KINDS:
        tier = stats.tiers.get(name, _ABSENT)
        counters |= values(tier.counters, f"tier_{name}")
        gauges |= values(tier.gauges, f"tier_{name}")
    return counters, gauges
