"""Random lives of many requests against plain dictionaries:
every invariant and every KV slot is checked after each step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from engine.cache.tree.stats import CacheCounters
from engine.structures.scores import SCORES
from tests.fakes.life import Life

ROOM = {"num_pages": 400}
TINY = {"num_pages": 8, "forgets": True}
BELOW = {"store_nbytes": 1 << 20}
FAULTY = {**BELOW, "is_slow": True, "forgets": True}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plenty of pages": ROOM,
    **{f"few pages, {name}": {**TINY, "eviction": name} for name in SCORES},
    "few pages over a large store": {"num_pages": 8, **BELOW, "is_spanned": True},
    "few pages over a small store": {**TINY, "store_nbytes": 2000},
    "every hit from the store": {**ROOM, **BELOW, "force_store": True, "is_spanned": True},
    "few pages over a slow and faulty store": {**TINY, **FAULTY},
    "every hit from a slow and faulty store": {**ROOM, **FAULTY, "force_store": True},
}
ELSEWHERE = {"num_found_entries", "num_dropped_writes"}
"""Counted only with another host, and with queues larger than these lives: see `test_tiers.py`."""


def live(seed: int, options: dict[str, Any], num_steps: int = 200) -> CacheCounters:
    """One random life; what its cache counted."""
    life = Life(Random(seed), **options)
    for _ in range(num_steps):
        life.step()
    life.end()
    return life.cache.stats().counters


@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=16582290)
@example(seed=5684611)
@example(seed=9100224)
def test_random_lives_agree_with_plain_dictionaries(options: dict[str, Any], seed: int) -> None:
    """Skipped tokens, hits, boundaries and broken promises are those of the model; no page leaks;
    all KV is exact."""
    live(seed, options)


def test_random_lives_are_rich() -> None:
    """The lives above would prove little if nothing happened in them: everything that is counted
    happens."""
    total: Counter[str] = Counter()
    for seed in range(12):
        for options in CONFIGURATIONS.values():
            total.update(asdict(live(seed, options)))
    missing = {name for name, num in total.items() if not num}
    assert missing <= ELSEWHERE, total
    assert total["num_hits"] > total["num_requests"] / 6
