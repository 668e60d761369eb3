"""The step loop while a prefix is read from below: late, damaged and lost reads, aborts, flushes,
and who waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.cache.tiers.client import STALL_S
from engine.messages import Started
from engine.schedule.sequence import Status
from engine.store.base import Found, Item
from engine.store.memory import MemoryStore
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.tiered import BARE, NO_CACHE, PROMPT, Bench, truth


def test_others_decode_while_one_is_loading(warm: MemoryStore) -> None:
    """A request whose prefix is being read stops nobody, and starts when all of it has come."""
    bench = Bench(warm)
    other = bench.stepper.submit([1, 2, 3], plan=NO_CACHE, max_tokens=20)
    bench.reader.is_open = False
    outcome = bench.stepper.submit(PROMPT, marks=[100])
    for _ in range(5):
        bench.stepper.step()
    assert (len(other.token_ids), outcome.events) == (5, [])
    assert not bench.stepper.loop.has_work or bench.stepper.loop.scheduler.num_running
    bench.reader.run(1)
    bench.stepper.step()
    bench.reader.run()
    bench.stepper.step()
    assert outcome.started.report.tiers == {"ssd": 144}
    bench.stepper.run()
    assert outcome.token_ids == truth(PROMPT)


def test_a_loading_request_keeps_its_place_and_stops_nobody(warm: MemoryStore) -> None:
    """One that came later and has nothing to load is admitted before; with one seat the first gets
    the next."""
    bench = Bench(warm, max_sequences=1)
    bench.reader.is_open = False
    first = bench.stepper.submit(PROMPT, marks=[100])
    second = bench.stepper.submit([1, 2, 3], plan=NO_CACHE)
    third = bench.stepper.submit([4, 5, 6], plan=NO_CACHE)
    assert (first.events, len(second.events), third.events) == ([], 1, [])
    bench.reader.run()
    while not second.is_over:
        bench.stepper.step()
        bench.reader.run()
    bench.stepper.step()
    assert (len(first.events) > 0, third.events) == (True, [])
    bench.stepper.run()


def test_what_is_late_is_computed(warm: MemoryStore) -> None:
    """After a quarter of a second without progress what has come is used, the rest computed, the
    promise reported broken."""
    bench = Bench(warm)
    bench.reader.is_open = False
    outcome = bench.stepper.submit(PROMPT, marks=[100])
    bench.reader.run(1)
    bench.stepper.step()
    bench.reader.run(2)
    bench.stepper.step()
    assert bench.stepper.cache.tiers.wait_s() == pytest.approx(STALL_S)
    bench.clock.advance(STALL_S)
    bench.stepper.step()
    report = outcome.started.report
    assert (report.tiers, report.hit, report.broken_tokens) == ({"ssd": 32}, None, 100)
    assert report.miss is not None
    assert report.miss.cause == "broken_promise"
    bench.stepper.run()
    assert outcome.token_ids == truth(PROMPT)
    assert (bench.count("num_broken_late_tokens"), bench.count("wasted_wait_seconds")) == (
        100,
        pytest.approx(STALL_S),
    )
    bench.reader.run()
    bench.settle()
    assert bench.cache.stats().gauges.staged_nbytes == 0


def test_a_tier_that_does_not_answer_is_not_asked_again(warm: MemoryStore) -> None:
    """Two hundred requests on a tier that hangs: the first waits a quarter of a second, the others
    not at all."""
    bench = Bench(warm, max_queue=300)
    bench.reader.is_open = False
    outcome = bench.stepper.submit(PROMPT, marks=[100])
    bench.clock.advance(STALL_S)
    assert bench.stepper.cache.tiers.wait_s() == 0
    bench.stepper.step()
    bench.stepper.run()
    assert outcome.token_ids == truth(PROMPT)
    for i in range(200):
        outcome = bench.stepper.answer([i, *PROMPT[:60]], marks=[30])
        assert outcome.finished.num_output == 4
    assert (bench.count("num_wasted_waits"), bench.count("num_long_waits")) == (1, 0)
    assert bench.count("wasted_wait_seconds") == pytest.approx(STALL_S)
    bench.reader.is_open = True
    bench.reader.run()
    bench.stepper.run()
    fresh = Bench(warm)
    assert fresh.ask([*PROMPT[:100], 9], marks=[100]).started.report.tiers == {"ssd": 100}


def test_waiting_for_a_tier_that_hangs_and_comes_back_stays_short(warm: MemoryStore) -> None:
    """Two hundred requests, each on a tier that answered in between and hangs again: none waits 0.3
    s."""
    bench = Bench(warm, max_queue=300)
    for i in range(200):
        bench.reader.is_open = False
        outcome = bench.stepper.submit([*PROMPT[:100], 200 + i % 50, i % 7], marks=[100, 101])
        for part in (0, i % 3):
            bench.reader.run(part)
            bench.stepper.step()
        bench.clock.advance(STALL_S)
        bench.stepper.step()
        bench.clock.advance(STALL_S)
        bench.stepper.step()
        bench.stepper.run()
        assert outcome.finished.num_output == 4
        bench.reader.is_open = True
        bench.reader.run()
        bench.settle()
        bench.stepper.loop.flush("t")
    assert bench.count("num_long_waits") == 0
    assert bench.count("num_wasted_waits") <= 200


def test_one_read_serves_all_who_want_it(warm: MemoryStore) -> None:
    """Three requests for one prefix read each span once."""
    bench = Bench(warm)
    bench.reader.is_open = False
    outcomes = [bench.stepper.submit([*PROMPT[:100], i], marks=[100]) for i in range(3)]
    bench.reader.run(3)
    bench.stepper.step()
    assert len(bench.reader.jobs) == 7
    bench.reader.run()
    bench.stepper.run()
    assert [outcome.started.report.skipped for outcome in outcomes] == [100] * 3
    assert [outcome.token_ids for outcome in outcomes] == [
        truth([*PROMPT[:100], i]) for i in range(3)
    ]


@pytest.mark.parametrize(
    ("fault", "counter"),
    [("damage", "num_broken_corrupt_tokens"), ("lose_reads", "num_broken_evicted_tokens")],
)
def test_damaged_and_lost_objects_are_misses(fault: str, counter: str) -> None:
    """The answer is the cold one, the cause is counted, and the engine goes on."""
    store = FaultyStore(MemoryStore(1 << 20))
    bench = Bench(store, num_pages=48)
    bench.ask(PROMPT, marks=[100], max_tokens=4)
    bench.ask([*range(150)], plan=BARE, max_tokens=30)
    setattr(store, fault, True)
    outcome = bench.ask([*PROMPT[:100], 1], marks=[100])
    assert outcome.token_ids == truth([*PROMPT[:100], 1])
    assert outcome.started.report.broken_tokens == 100
    assert bench.count(counter) == 100


def test_damage_heals_in_the_next_process() -> None:
    """Spans and the tail that turned out damaged are computed and written anew: the process after
    that reads all."""
    store = MemoryStore(1 << 20)
    Bench(store).ask(PROMPT, marks=[100])
    held = [(key, store.get_many([key], 0)[0], found) for key, found in store.scan()]
    kv = [
        (key, payload, found)
        for key, payload, found in held
        if payload is not None and b"messages/" not in payload
    ]
    assert len(kv) == len(held) - 1, "all but the entry"
    store.put_many(
        [
            Item(key, payload[:-1] + bytes([payload[-1] ^ 1]), found.expires_at_s)
            for key, payload, found in kv
        ]
    )
    assert Bench(store).ask([*PROMPT[:100], 1], marks=[100]).started.report.skipped == 0
    healed = Bench(store).ask([*PROMPT[:100], 2], marks=[100]).started.report
    assert (healed.skipped, healed.tiers) == (100, {"ssd": 100})


@pytest.mark.parametrize("num_jobs", range(9))
@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_an_abort_while_loading_leaks_nothing(
    warm: MemoryStore, num_jobs: int, num_steps: int
) -> None:
    """Before the answer, between any two reads, and while pages are being filled."""
    bench = Bench(warm)
    bench.reader.is_open = False
    outcome = bench.stepper.submit(PROMPT, marks=[100])
    for _ in range(num_jobs):
        bench.reader.run(1)
        bench.stepper.step()
    for _ in range(num_steps):
        bench.stepper.step()
    if not outcome.is_over:
        bench.stepper.abort(outcome)
    bench.cache.check()
    gauges = bench.cache.stats().gauges
    assert (
        gauges.staged_nbytes,
        gauges.num_leases,
        gauges.num_pinned_pages,
        gauges.num_reserved_pages,
    ) == (0, 0, 0, 0)
    bench.reader.run()
    bench.settle()
    bench.reader.is_open = True
    assert bench.ask(PROMPT, marks=[100]).token_ids == truth(PROMPT)


def test_a_flush_forgets_in_every_tier(warm: MemoryStore) -> None:
    """Nothing of the tenant is left below, not even what was still on its way down; other tenants
    keep theirs."""
    bench = Bench(warm)
    bench.ask(PROMPT, marks=[100], tenant="other")
    bench.writer.is_open = False
    bench.stepper.answer([9, *PROMPT], marks=[60], tenant="t")
    counts: list[int | None] = []
    bench.stepper.loop.flush("t", counts.append)
    asked = bench.stepper.answer(PROMPT, marks=[100], tenant="t")
    assert (asked.started.report.skipped, counts) == (0, [])
    bench.writer.run()
    bench.stepper.run()
    assert len(counts) == 1
    bench.writer.run()
    bench.settle()
    left = Bench(warm).ask([9, *PROMPT], marks=[60], tenant="t").started.report
    assert left.skipped == 0
    assert Bench(warm).ask(PROMPT, marks=[100], tenant="other").started.report.skipped == 144


def test_a_flush_that_a_tier_could_not_be_told_of_is_not_lost(
    warm: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked learns of it; the tier is not read for the tenant, nor written to, and forgets
    once it answers."""
    bench = Bench(warm)
    bench.ask(PROMPT, marks=[100], tenant="other")
    bench.ask([9, *PROMPT], marks=[60], tenant="t")
    held = {key for key, _ in warm.scan()}
    counts: list[int | None] = []

    def scan() -> Iterator[tuple[bytes, Found]]:
        raise OSError("the server does not answer")

    with monkeypatch.context() as silent:
        silent.setattr(warm, "scan", scan)
        bench.stepper.loop.flush("t", counts.append)
        bench.settle()
        assert counts == [None]
        asked = bench.ask([9, *PROMPT], marks=[60], tenant="t").started.report
        assert (asked.skipped, asked.broken_tokens) == (0, 0)
        bench.stepper.loop.tick(1.0 + bench.cache.now_s)
        bench.settle()
        assert bench.ask(PROMPT, marks=[100], tenant="other").started.report.hit is not None
    assert {key for key, _ in warm.scan()} == held
    bench.stepper.loop.tick(2.0 + bench.cache.now_s)
    bench.settle()
    left = {key for key, _ in warm.scan()}
    assert left
    assert left < held
    again = bench.ask([9, *PROMPT], marks=[60], tenant="t").started.report
    assert again.tiers == {"device": again.skipped}, "computed since, and not written yet"
    assert Bench(warm).ask([9, *PROMPT], marks=[60], tenant="t").started.report.skipped == 144


def test_writes_that_find_no_room_are_dropped_and_counted() -> None:
    """A tier that takes nothing costs nothing but the hits, and the engine ends up with bounded
    queues."""
    store = MemoryStore(1 << 20)
    bench = Bench(store)
    bench.writer.is_open = False
    bench.tiers.clients[0].queued_nbytes = 1 << 40
    for i in range(40):
        bench.stepper.answer([i, *PROMPT], marks=[100])
    assert bench.cache.stats().gauges.num_unwritten <= 1024
    assert bench.stepper.loop.has_work is False


def test_what_is_on_its_way_down_is_read_from_there() -> None:
    """A span that left the device before the store has it is served from the queue."""
    store = MemoryStore(1 << 20)
    bench = Bench(store, num_pages=48)
    bench.writer.is_open = False
    bench.stepper.answer(PROMPT, marks=[100])
    bench.stepper.answer([*range(150)], plan=BARE, max_tokens=30)
    assert len(list(store.scan())) == 0
    outcome = bench.stepper.answer([*PROMPT[:100], 1], marks=[100])
    assert outcome.started.report.skipped == 100
    assert outcome.token_ids == truth([*PROMPT[:100], 1])


def test_a_prefix_evicted_while_its_request_waits_is_read_again() -> None:
    """The device part of a waiting request may go; then it is looked for below."""
    store = MemoryStore(1 << 20)
    bench = Bench(store, num_pages=48)
    bench.ask(PROMPT[:120], marks=[100])
    running = bench.stepper.submit([*range(100)], plan=BARE, max_tokens=60)
    waiting = bench.stepper.submit([*PROMPT[:100], 7], marks=[100], max_tokens=40)
    assert waiting.events == []
    bench.stepper.run()
    assert waiting.started.report.skipped == 100
    assert waiting.token_ids == truth([*PROMPT[:100], 7], max_tokens=40)
    assert running.is_over


def test_statuses_follow_the_table(warm: MemoryStore) -> None:
    """A request that loads goes through LOADING, WAITING and RESTORING, and is told it started once
    its reads are settled."""
    bench = Bench(warm)
    bench.reader.is_open = False
    outcome = bench.stepper.submit(PROMPT, marks=[100])
    (request,) = bench.stepper.loop._requests.values()
    assert request.sequence.status is Status.LOADING
    bench.reader.run()
    bench.stepper.step()
    assert request.sequence.status is Status.LOADING
    bench.reader.run()
    admission = bench.stepper.loop.admission
    admission.settle()
    assert request.sequence.status is Status.WAITING
    admission.admit()
    assert request.sequence.status is Status.RESTORING
    assert isinstance(outcome.events[0], Started)
    admission.restore()
    assert request.sequence.status is Status.PREFILL
