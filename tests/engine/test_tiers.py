"""The step loop over tiers below the device: restarts, second hosts, late and damaged reads, aborts in every stage."""

from __future__ import annotations

import random

import pytest

from engine.cache.lane import STALL_S
from engine.messages import Started
from engine.schedule.sequence import Status
from engine.store.base import BlockStore, Item
from engine.store.memory import MemoryStore
from engine.types import CachePlan, CacheReport
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.lanes import ManualIo, StillClock, inline_tiers, manual_tiers
from tests.fakes.runner import FakeRunner
from tests.fakes.stepper import Outcome, Stepper

NO_CACHE = CachePlan(read=False, store=False)
BARE = CachePlan(unmarked_ttl_s=0.0)
"""Nothing marked, nothing kept."""
PROMPT = [i * 7 % 251 for i in range(150)]
"""Nine spans of 16 tokens and a rest."""


class Bench:
    """A loop over one store whose reads and writes wait for the test when it says so."""

    def __init__(self, store: BlockStore, *, name: str = "ssd", num_pages: int = 200, **options: object) -> None:
        self.clock = StillClock()
        self.reader, self.writer = ManualIo(), ManualIo()
        self.tiers = manual_tiers((name, store, self.reader, self.writer), clock=self.clock)
        self.stepper = Stepper(FakeRunner(num_pages=num_pages), tiers=self.tiers, context=400, **options)  # type: ignore[arg-type]
        self.cache = self.stepper.cache

    def settle(self) -> None:
        """Run everything to its end, new expiries included."""
        self.stepper.run()
        self.clock.advance(1.0)
        self.stepper.step()
        self.stepper.run()

    def ask(self, prompt: list[int], **options: object) -> Outcome:
        """Answer a prompt and let the tiers know all about it."""
        outcome = self.stepper.answer(prompt, **options)
        self.settle()
        return outcome

    def count(self, name: str) -> float:
        return float(getattr(self.cache.stats().counters, name))


def truth(prompt: list[int], **options: object) -> list[int]:
    """The answer of an engine that has never seen anything."""
    return Stepper(FakeRunner(num_pages=200), context=400).answer(prompt, plan=NO_CACHE, **options).token_ids


def bill(report: CacheReport) -> CacheReport:
    """The report without what may differ: where the KV came from, and that more of it was known."""
    return CacheReport(report.num_prompt, hit=report.hit, boundaries=report.boundaries, broken_tokens=report.broken_tokens)


# Restarts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 3, 15, 16, 17, 100, 112, 143, 149])
def test_after_a_kill_the_bill_and_the_time_left_are_the_same(offset: int) -> None:
    """An entry anywhere, on and off block and span borders, is read by the next process as by the same one."""
    store = MemoryStore(1 << 20)
    before = Bench(store)
    before.ask(PROMPT, marks=[offset], started_at_s=1000.0)
    before.ask(PROMPT, marks=[offset], started_at_s=1100.0)
    copy = MemoryStore(1 << 20)
    copy.put_many([Item(key, store.get_many([key], 0)[0], found.expires_at_s) for key, found in store.scan()])
    question = [*PROMPT[:offset], 252, 253]
    expected = before.ask(question, marks=[offset], started_at_s=1350.0)
    after = Bench(copy).ask(question, marks=[offset], started_at_s=1350.0)
    assert expected.started.report.hit is not None
    assert bill(after.started.report) == bill(expected.started.report)
    assert after.token_ids == expected.token_ids == truth(question)
    assert after.started.report.tiers == {"ssd": offset}


def test_the_time_left_ends_in_the_next_process_too() -> None:
    """An entry that has expired is not read, however fresh the files are."""
    store = MemoryStore(1 << 20)
    Bench(store).ask(PROMPT, marks=[100], ttl_s=300.0, started_at_s=1000.0, unmarked_ttl_s=0.0)
    last = Bench(store).ask([*PROMPT[:100], 1], marks=[100], started_at_s=1299.0, unmarked_ttl_s=0.0)
    assert last.started.report.hit is not None
    assert last.started.report.hit.ttl_left_s == 300.0
    late = Bench(store).ask([*PROMPT[:100], 2], marks=[100], started_at_s=1600.0, unmarked_ttl_s=0.0)
    assert (late.started.report.hit, late.started.report.skipped) == (None, 0)


def test_what_was_refreshed_is_refreshed_for_the_next_process() -> None:
    """A read by one process keeps entry and KV alive for the one after it, past the first expiry."""
    store = MemoryStore(1 << 20)
    for i, started_at_s in enumerate((1000.0, 1250.0, 1500.0, 1750.0)):
        outcome = Bench(store).ask([*PROMPT[:100], i], marks=[100], started_at_s=started_at_s, unmarked_ttl_s=0.0)
        report = outcome.started.report
        assert (report.hit is not None) == (i > 0)
        assert report.broken_tokens == 0


def test_what_is_on_the_device_is_kept_below_too() -> None:
    """Reads that never left the device still move the expiry below: the next process finds all of it."""
    store = MemoryStore(1 << 20)
    before = Bench(store)
    for started_at_s in (1000.0, 1200.0, 1400.0):
        before.ask(PROMPT, marks=[100], started_at_s=started_at_s, unmarked_ttl_s=0.0)
    after = Bench(store).ask([*PROMPT[:100], 1], marks=[100], started_at_s=1650.0, unmarked_ttl_s=0.0)
    assert after.started.report.tiers == {"ssd": 100}


def test_automatic_caching_survives_in_whole_spans() -> None:
    """Without any entry the KV of whole spans is found, as long as unmarked KV is kept."""
    store = MemoryStore(1 << 20)
    plan = CachePlan(any_prefix=True, unmarked_ttl_s=300.0)
    Bench(store).ask(PROMPT, plan=plan, started_at_s=1000.0)
    report = Bench(store).ask(PROMPT, plan=plan, started_at_s=1299.0).started.report
    assert (report.skipped, report.tiers) == (144, {"ssd": 144})
    assert report.hit is not None
    assert (report.hit.offset, report.hit.ttl_left_s) == (144, 300.0)
    assert Bench(store).ask(PROMPT, plan=plan, started_at_s=1700.0).started.report.skipped == 0


def test_a_prompt_of_whole_spans_is_found_but_for_its_last_token() -> None:
    """The last span is used though its last token is computed again."""
    store = MemoryStore(1 << 20)
    plan = CachePlan(any_prefix=True)
    prompt = PROMPT[:64]
    first = Bench(store).ask(prompt, plan=plan)
    again = Bench(store).ask(prompt, plan=plan)
    assert again.started.report.tiers == {"ssd": 63}
    assert again.token_ids == first.token_ids


def test_the_next_turn_after_a_restart_hits_through_the_answer() -> None:
    """Whole spans of generated tokens are kept too, where decode computes the bits of prefill."""
    store = MemoryStore(1 << 20)
    plan = CachePlan(any_prefix=True)
    answer = Bench(store).ask(PROMPT, plan=plan, max_tokens=40).token_ids
    turn = [*PROMPT, *answer, 1, 2]
    outcome = Bench(store).ask(turn, plan=plan)
    assert outcome.started.report.skipped == 176
    assert outcome.token_ids == truth(turn)


def test_decoded_kv_that_has_other_bits_is_not_spilled() -> None:
    """Where decode computes other bits, nothing past the prompt is in any tier."""
    store = MemoryStore(1 << 20)
    stepper = Stepper(FakeRunner(num_pages=200, reuse_decode_kv=False), tiers=inline_tiers(("ssd", store)), context=400)
    answer = stepper.answer(PROMPT, plan=CachePlan(any_prefix=True), max_tokens=40).token_ids
    again = Stepper(FakeRunner(num_pages=200, reuse_decode_kv=False), tiers=inline_tiers(("ssd", store)), context=400)
    outcome = again.answer([*PROMPT, *answer], plan=CachePlan(any_prefix=True))
    assert outcome.started.report.skipped == 144


# Two hosts --------------------------------------------------------------------------------------------------------------


def test_two_hosts_share_one_store() -> None:
    """A prefix prefilled by one is a hit on the other, which keeps it alive for the first."""
    store = MemoryStore(1 << 20)
    one, two = Bench(store, name="redis"), Bench(store, name="redis")
    one.ask(PROMPT, marks=[100], started_at_s=1000.0, unmarked_ttl_s=0.0)
    there = two.ask([*PROMPT[:100], 1], marks=[100], started_at_s=1200.0, unmarked_ttl_s=0.0).started.report
    assert there.tiers == {"redis": 100}
    back = one.ask([*PROMPT[:100], 2], marks=[100], started_at_s=1450.0, unmarked_ttl_s=0.0).started.report
    assert back.hit is not None
    assert back.hit.offset == 100
    assert two.count("num_found_entries") == 1


def test_what_one_tier_lacks_is_read_from_another() -> None:
    """Damaged objects of the first tier are read from the second, which is named, and then deleted."""
    good, bad = MemoryStore(1 << 20), MemoryStore(1 << 20)
    Stepper(tiers=inline_tiers(("ssd", bad), ("redis", good)), span_tokens=16).answer(PROMPT, marks=[100])
    for key, found in list(bad.scan()):
        (payload,) = bad.get_many([key], 0)
        assert payload is not None
        bad.put_many([Item(key, payload[:-1] + bytes([payload[-1] ^ 1]), found.expires_at_s)])
    stepper = Stepper(tiers=inline_tiers(("ssd", bad), ("redis", good)), span_tokens=16)
    report = stepper.answer([*PROMPT[:100], 1], marks=[100]).started.report
    assert report.tiers == {"redis": 100}
    assert stepper.cache.stats().tiers["ssd"].counters.num_corrupt == 7


@pytest.mark.parametrize("other", ["tenant", "fingerprint"])
def test_nothing_of_another_tenant_or_model_is_served(other: str) -> None:
    """Objects put under the keys of another tenant or model are refused by their MAC, and the answer is computed."""
    store = MemoryStore(1 << 20)
    first = Bench(store)
    first.ask(PROMPT, marks=[100], tenant="a")
    stolen = {key: store.get_many([key], 0)[0] for key, _ in store.scan()}
    victim = MemoryStore(1 << 20)
    bench = Bench(victim)
    if other == "fingerprint":
        bench.stepper.runner.fingerprint = "other"
        bench = bench_of_model(victim, "other")
    tenant = "b" if other == "tenant" else "a"
    bench.ask(PROMPT, marks=[100], tenant=tenant)
    mine = sorted(key for key, _ in victim.scan())
    victim.put_many([Item(key, payload, 9e9) for key, payload in zip(mine, stolen.values(), strict=False)])
    again = bench_of_model(victim, "other") if other == "fingerprint" else Bench(victim)
    outcome = again.ask([*PROMPT[:100], 1], marks=[100], tenant=tenant)
    assert outcome.started.report.tiers == {}
    assert outcome.token_ids == truth([*PROMPT[:100], 1])


def bench_of_model(store: BlockStore, fingerprint: str) -> Bench:
    """A bench whose model has another fingerprint."""
    runner = FakeRunner(num_pages=200)
    runner.fingerprint = fingerprint
    bench = Bench(store)
    bench.stepper = Stepper(runner, tiers=bench.tiers, context=400)
    bench.cache = bench.stepper.cache
    return bench


# Loading ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def warm() -> MemoryStore:
    """A store that knows the prompt up to its mark at 100."""
    store = MemoryStore(1 << 20)
    Bench(store).ask(PROMPT, marks=[100])
    return store


def test_others_decode_while_one_is_loading(warm: MemoryStore) -> None:
    """A request whose prefix is being read stops nobody, and starts when all of it has come."""
    bench = Bench(warm)
    other = bench.stepper.submit([1, 2, 3], plan=NO_CACHE, max_tokens=20)
    bench.reader.is_open = False
    outcome = bench.stepper.submit(PROMPT, marks=[100])
    for _ in range(5):
        bench.stepper.step()
    assert (len(other.token_ids), outcome.events) == (5, [])
    assert not bench.stepper.loop.has_work or bench.stepper.loop.num_running
    bench.reader.run(1)
    bench.stepper.step()
    bench.reader.run()
    bench.stepper.step()
    assert outcome.started.report.tiers == {"ssd": 144}
    bench.stepper.run()
    assert outcome.token_ids == truth(PROMPT)


def test_a_loading_request_keeps_its_place_and_stops_nobody(warm: MemoryStore) -> None:
    """One that came later and has nothing to load is admitted before; with one seat the first gets the next."""
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
    """After a quarter of a second without progress what has come is used, the rest computed, the promise reported broken."""
    bench = Bench(warm)
    bench.reader.is_open = False
    outcome = bench.stepper.submit(PROMPT, marks=[100])
    bench.reader.run(1)
    bench.stepper.step()
    bench.reader.run(2)
    bench.stepper.step()
    assert bench.stepper.loop.wait_s() == pytest.approx(STALL_S)
    bench.clock.advance(STALL_S)
    bench.stepper.step()
    report = outcome.started.report
    assert (report.tiers, report.hit, report.broken_tokens) == ({"ssd": 32}, None, 100)
    assert report.miss is not None
    assert report.miss.cause == "broken_promise"
    bench.stepper.run()
    assert outcome.token_ids == truth(PROMPT)
    assert (bench.count("num_broken_late_tokens"), bench.count("wasted_wait_seconds")) == (100, pytest.approx(STALL_S))
    bench.reader.run()
    bench.settle()
    assert bench.cache.stats().gauges.staged_nbytes == 0


def test_a_tier_that_does_not_answer_is_not_asked_again(warm: MemoryStore) -> None:
    """Two hundred requests on a tier that hangs: the first waits a quarter of a second, the others not at all."""
    bench = Bench(warm, max_queue=300)
    bench.reader.is_open = False
    outcome = bench.stepper.submit(PROMPT, marks=[100])
    bench.clock.advance(STALL_S)
    assert bench.stepper.loop.wait_s() == 0
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
    """Two hundred requests, each on a tier that answered in between and hangs again: none waits 0.3 s."""
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
    assert [outcome.token_ids for outcome in outcomes] == [truth([*PROMPT[:100], i]) for i in range(3)]


@pytest.mark.parametrize(
    ("fault", "counter"), [("damage", "num_broken_corrupt_tokens"), ("lose_reads", "num_broken_evicted_tokens")]
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
    """Spans and the tail that turned out damaged are computed and written anew: the process after that reads all."""
    store = MemoryStore(1 << 20)
    Bench(store).ask(PROMPT, marks=[100])
    held = [(key, store.get_many([key], 0)[0], found) for key, found in store.scan()]
    kv = [(key, payload, found) for key, payload, found in held if payload is not None and b"messages/" not in payload]
    assert len(kv) == len(held) - 1, "all but the entry"
    store.put_many([Item(key, payload[:-1] + bytes([payload[-1] ^ 1]), found.expires_at_s) for key, payload, found in kv])
    assert Bench(store).ask([*PROMPT[:100], 1], marks=[100]).started.report.skipped == 0
    healed = Bench(store).ask([*PROMPT[:100], 2], marks=[100]).started.report
    assert (healed.skipped, healed.tiers) == (100, {"ssd": 100})


@pytest.mark.parametrize("num_jobs", range(9))
@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_an_abort_while_loading_leaks_nothing(warm: MemoryStore, num_jobs: int, num_steps: int) -> None:
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
    assert (gauges.staged_nbytes, gauges.num_leases, gauges.num_pinned_pages, gauges.num_reserved_pages) == (0, 0, 0, 0)
    bench.reader.run()
    bench.settle()
    bench.reader.is_open = True
    assert bench.ask(PROMPT, marks=[100]).token_ids == truth(PROMPT)


def test_a_flush_forgets_in_every_tier(warm: MemoryStore) -> None:
    """Nothing of the tenant is left below, not even what was still on its way down; other tenants keep theirs."""
    bench = Bench(warm)
    bench.ask(PROMPT, marks=[100], tenant="other")
    bench.writer.is_open = False
    bench.stepper.answer([9, *PROMPT], marks=[60], tenant="t")
    counts: list[int] = []
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


def test_writes_that_find_no_room_are_dropped_and_counted() -> None:
    """A tier that takes nothing costs nothing but the hits, and the engine ends up with bounded queues."""
    store = MemoryStore(1 << 20)
    bench = Bench(store)
    bench.writer.is_open = False
    bench.tiers._lanes[0].queued_nbytes = 1 << 40
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


# Many -------------------------------------------------------------------------------------------------------------------


CODEWORDS = [[200 + i, 17 * i % 251, 91 * i % 251] for i in range(20)]


@pytest.mark.parametrize("name", ["ram", "ssd"])
def test_twenty_conversations_never_mix(name: str) -> None:
    """Interleaved, over a device too small for two of them: every answer is the one of an engine without any cache."""
    bench = Bench(MemoryStore(1 << 22), name=name, num_pages=64, force_store=name == "ram")
    rng = random.Random(7)
    talks = [[*code, *[rng.randrange(100) for _ in range(40)]] for code in CODEWORDS]
    marks = [len(talk) for talk in talks]
    num_tokens = 0
    for turn in range(100):
        i = turn * 7 % 20
        outcome = bench.ask(talks[i], marks=[marks[i]] if marks[i] < len(talks[i]) else [len(talks[i]) - 1])
        num_tokens += sum(num for tier, num in outcome.started.report.tiers.items() if tier == name)
        assert outcome.token_ids == truth(talks[i])
        marks[i] = len(talks[i])
        talks[i] = [*talks[i], *outcome.token_ids, *CODEWORDS[i]]
    assert num_tokens > 1000


@pytest.mark.slow
def test_a_thousand_aborts_leak_nothing(warm: MemoryStore) -> None:
    """In every stage of loads and spills: no page, pin, read, staged byte or queued byte is left."""
    bench = Bench(warm, num_pages=96)
    rng = random.Random(3)
    for i in range(1000):
        bench.reader.is_open = bench.writer.is_open = False
        tail = [rng.randrange(250) for _ in range(rng.randrange(1, 60))]
        outcome = bench.stepper.submit([*PROMPT[: rng.randrange(101)], *tail], marks=[rng.randrange(1, 100)], max_tokens=6)
        for _ in range(rng.randrange(12)):
            rng.choice((bench.reader, bench.writer)).run(rng.randrange(3))
            bench.stepper.step()
        if not outcome.is_over:
            bench.stepper.abort(outcome)
        bench.cache.check()
        if i % 10 == 0:
            bench.reader.is_open = bench.writer.is_open = True
            bench.reader.run()
            bench.writer.run()
            bench.settle()
    bench.reader.is_open = bench.writer.is_open = True
    bench.reader.run()
    bench.writer.run()
    bench.settle()
    gauges = bench.cache.stats().gauges
    assert (gauges.num_leases, gauges.num_pinned_pages, gauges.num_reserved_pages) == (0, 0, 0)
    assert (gauges.staged_nbytes, gauges.num_unwritten) == (0, 0)
    assert bench.cache.stats().tiers["ssd"].gauges.queued_nbytes == 0
    assert bench.ask(PROMPT, marks=[100]).token_ids == truth(PROMPT)


def test_statuses_follow_the_table(warm: MemoryStore) -> None:
    """A request that loads goes through LOADING, WAITING and RESTORING, and is told it started once its reads are settled."""
    bench = Bench(warm)
    bench.reader.is_open = False
    outcome = bench.stepper.submit(PROMPT, marks=[100])
    (request,) = bench.stepper.loop._requests.values()
    assert request.sequence.status is Status.LOADING
    bench.reader.run()
    bench.stepper.step()
    assert request.sequence.status is Status.LOADING
    bench.reader.run()
    admission = bench.stepper.loop._admission
    admission.settle()
    assert request.sequence.status is Status.WAITING
    admission.admit()
    assert request.sequence.status is Status.RESTORING
    assert isinstance(outcome.events[0], Started)
    admission.restore()
    assert request.sequence.status is Status.PREFILL
