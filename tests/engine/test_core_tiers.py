"""The engine with its threads over tiers that have theirs: what wakes it, what a flush waits for,
how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.cache.tiers.client import TierClients
from engine.messages import (
    EngineStats,
    Failed,
    Finished,
    Flush,
    Flushed,
    Pin,
    Pinned,
    Snapshot,
    Submit,
    Tick,
)
from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart
from engine.store.base import NamedStore
from engine.store.disk.store import DiskStore
from engine.store.memory import MemoryStore
from engine.types import CachePlan, PlannedEntry, Sampling
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.harness import Harness, MakeEngine, Wiring
from tests.fakes.runner import FakeRunner
from tests.fakes.tier_io import StillClock

SYSTEM = Position("system", 0)
LONG = "You are the keeper of a lighthouse. " * 4


def submit(
    request_id: str, text: str = "Hello", *, tenant: str = "t", max_tokens: int = 5
) -> Submit:
    plan = CachePlan(readable=(SYSTEM,), writable=(PlannedEntry(SYSTEM, 300.0),))
    prompt = Prompt(
        (Message("user", (TextPart(text),)),), system=(TextPart(LONG, CacheMark(300.0)),)
    )
    return Submit(request_id, tenant, prompt, plan, Sampling(max_tokens=max_tokens), 1000.0)


def over(
    *stores: tuple[str, FaultyStore | DiskStore], clock: Callable[[], float] | None = None
) -> Wiring:
    """Tiers with threads of their own. Unless there is a clock, their time stands still: however
    busy the machine is, no read of theirs is ever late."""
    return Wiring(
        tiers=TierClients(
            [NamedStore(name, store) for name, store in stores], clock=clock or StillClock()
        )
    )


class LateClock:
    """Stands still until it is started, then runs as time does."""

    def __init__(self) -> None:
        self._started_s: float | None = None

    def start(self) -> None:
        self._started_s = time.monotonic()

    def __call__(self) -> float:
        return 0.0 if self._started_s is None else time.monotonic() - self._started_s


def ask(harness: Harness, request_id: str, **options: object) -> list[int]:
    harness.engine.submit(submit(request_id, **options))  # type: ignore[arg-type]
    assert isinstance(harness.log.wait_last(request_id), Finished)
    return harness.log.token_ids(request_id)


def stats(harness: Harness, request_id: str) -> EngineStats:
    harness.engine.ask(Snapshot(request_id))
    last = harness.log.wait_last(request_id)
    assert isinstance(last, EngineStats)
    return last


def test_closing_writes_what_the_next_engine_reads(make_engine: MakeEngine) -> None:
    """An engine that ends has written everything; the next one reads it, from threads that wake
    it."""
    store = FaultyStore(MemoryStore(1 << 20))
    first = make_engine(None, over(("ssd", store)))
    answer = ask(first, "a")
    first.engine.close()
    assert first.engine.join(30.0)
    second = make_engine(None, over(("ssd", store)))
    assert ask(second, "b") == answer
    report = second.log.wait_started("b").report
    assert report.hit is not None
    assert report.tiers == {"ssd": report.skipped}
    assert report.skipped >= report.hit.offset


def test_a_real_folder_survives_the_engine(make_engine: MakeEngine, tmp_path: Path) -> None:
    """The same over real files, opened again by the next engine."""
    answers = []
    for name in "ab":
        with DiskStore(tmp_path, nbytes=1 << 24) as store:
            harness = make_engine(None, over(("ssd", store)))
            answers.append(ask(harness, name))
            harness.engine.close()
            assert harness.engine.join(30.0)
            report = harness.log.wait_started(name).report
    assert answers[0] == answers[1]
    assert report.hit is not None
    assert report.tiers == {"ssd": report.skipped}
    assert report.skipped >= report.hit.offset


def test_a_tier_that_never_answers_delays_no_one_for_long(make_engine: MakeEngine) -> None:
    """Asked while the tier hangs, the engine answers by itself, counts a quarter of a second as
    wasted, and ends in time."""
    store, clock = FaultyStore(MemoryStore(1 << 20)), LateClock()
    harness = make_engine(None, over(("redis", store), clock=clock))
    answer = ask(harness, "a")
    harness.engine.ask(Flush("f"))
    harness.log.wait_last("f")
    store.hang = True
    clock.start()
    assert ask(harness, "b") == answer
    assert ask(harness, "c", text="Hello again") != []
    counters = stats(harness, "s").counters
    assert 0.2 < counters["cache_wasted_wait_seconds_total"] < 0.3
    assert (counters["cache_wasted_waits_total"], counters["cache_long_waits_total"]) == (1, 0)
    assert counters["tier_redis_late_total"] == 1
    assert stats(harness, "s2").gauges["tier_redis_stuck"] == 1
    harness.engine.close()
    assert harness.engine.join(10.0)
    store.hang = False


def test_a_flush_is_answered_once_every_tier_has_forgotten(make_engine: MakeEngine) -> None:
    """After `Flushed` nothing of the tenant is in the store, though it was written just before; the
    other's is."""
    store = FaultyStore(MemoryStore(1 << 20))
    harness = make_engine(None, over(("ssd", store)))
    ask(harness, "a", tenant="ada")
    ask(harness, "b", tenant="bob")
    harness.engine.ask(Flush("f", "ada"))
    flushed = harness.log.wait_last("f")
    assert isinstance(flushed, Flushed)
    assert flushed.num_blocks > 0
    names = {key[:8] for key, _ in store.scan()}
    assert len(names) <= 1
    ask(harness, "c", tenant="ada")
    assert harness.log.wait_started("c").report.skipped == 0
    ask(harness, "d", tenant="bob")
    assert harness.log.wait_started("d").report.hit is not None


def test_a_flush_that_a_tier_was_not_told_of_is_no_success(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that something is forgotten while a tier may have it still."""
    store = FaultyStore(MemoryStore(1 << 20))
    harness = make_engine(None, over(("redis", store)))
    ask(harness, "a", tenant="ada")

    def scan() -> list[object]:
        raise OSError

    monkeypatch.setattr(store, "scan", scan)
    harness.engine.ask(Flush("f", "ada"))
    failed = harness.log.wait_last("f")
    assert isinstance(failed, Failed)
    assert failed.kind == "overloaded"


def test_a_store_that_raises_is_a_miss(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a store that breaks its contract costs speed, never a request."""
    store = FaultyStore(MemoryStore(1 << 20))

    def fail(*_: object) -> list[None]:
        raise OSError("device gone")

    for name in ("find_many", "get_many", "put_many"):
        monkeypatch.setattr(store, name, fail)
    harness = make_engine(None, over(("ssd", store)))
    assert len(ask(harness, "a")) == 5
    assert len(ask(harness, "b", text="other")) == 5
    assert stats(harness, "s").counters["tier_ssd_errors_total"] > 0


def test_small_pools_and_many_requests_over_threads(make_engine: MakeEngine) -> None:
    """Sixty requests of six tenants over a pool for two: every answer is that of an engine without
    tiers."""
    alone = make_engine(FakeRunner(num_pages=400))
    texts = {f"{i}": f"question {i % 10}" for i in range(60)}
    truth = {text: ask(alone, text, text=text) for text in set(texts.values())}
    store = FaultyStore(MemoryStore(1 << 22))
    harness = make_engine(FakeRunner(num_pages=128), over(("ssd", store)), max_queue=100)
    for name, text in texts.items():
        harness.engine.submit(submit(name, text, tenant=f"tenant {int(name) % 6}"))
    for name, text in texts.items():
        assert isinstance(harness.log.wait_last(name), Finished)
        assert harness.log.token_ids(name) == truth[text]


def pin(harness: Harness, request_id: str, key: bytes, *, pinned: bool = True) -> str:
    harness.engine.ask(Pin(request_id, key, pinned))
    last = harness.log.wait_last(request_id)
    assert isinstance(last, Pinned)
    return last.outcome


def test_a_pin_is_answered_and_outlives_the_engine(make_engine: MakeEngine, tmp_path: Path) -> None:
    """Of all stored keys one names an entry; the next engine reads it long after its time, and its
    KV too."""
    with DiskStore(tmp_path, nbytes=1 << 24) as store:
        first = make_engine(None, over(("ssd", store)))
        ask(first, "a")
        first.engine.close()
        assert first.engine.join(30.0)
        keys = [key for key, _ in store.scan()]
        second = make_engine(None, over(("ssd", store)))
        ask(second, "b")
        outcomes = {key: pin(second, key.hex(), key) for key in keys}
        assert sorted(outcomes.values()) == ["done", *["unknown"] * (len(keys) - 1)]
        assert stats(second, "s").gauges["cache_pinned_entries"] == 1
        second.engine.close()
        assert second.engine.join(30.0)
    with DiskStore(tmp_path, nbytes=1 << 24) as store:
        third = make_engine(None, over(("ssd", store)))
        third.engine.tick(Tick(1e9))
        third.engine.submit(msgspec.structs.replace(submit("c"), started_at_s=1e9))
        assert isinstance(third.log.wait_last("c"), Finished)
        report = third.log.wait_started("c").report
        assert report.hit is not None
        assert report.hit.ttl_left_s == 300.0
        (key,) = (key for key, outcome in outcomes.items() if outcome == "done")
        assert pin(third, "u", key, pinned=False) == "done"
        assert stats(third, "t").gauges["cache_pinned_entries"] == 0
