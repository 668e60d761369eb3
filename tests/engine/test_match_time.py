"""The seconds of `match` that a client reads in Server-Timing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from engine.cache.prefix_cache import PrefixCache
from engine.store.memory import MemoryStore
from tests.fakes.stepper import Stepper

SECONDS = {"lookup": 1.0, "fetch": 10.0, "admit": 100.0}


def test_every_call_that_matches_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up, starting to read from lower tiers and admitting, and nothing of it as waiting."""
    now_s = 0.0

    def taking(method: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal now_s
            now_s += seconds
            return method(*arguments, **options)

        return call

    stepper = Stepper(context=400, store=MemoryStore(1 << 20))
    for name, seconds in SECONDS.items():
        monkeypatch.setattr(PrefixCache, name, taking(getattr(PrefixCache, name), seconds))
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    started = stepper.answer(list(range(50)), marks=[40]).started
    assert (started.match_s, started.queue_s) == (111.0, 0.0)
    assert stepper.loop.stats.counters["engine_cache_seconds_total"] == 111.0
