"""The step loop over tiers below the device: restarts and second hosts."""

from __future__ import annotations

import pytest

from engine.store.base import BlockStore, Item
from engine.store.memory import MemoryStore
from engine.types import CachePlan
from tests.fakes.runner import FakeRunner
from tests.fakes.stepper import Stepper
from tests.fakes.tier_io import inline_tiers
from tests.fakes.tiered import PROMPT, Bench, bill, truth

# Restarts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 3, 15, 16, 17, 100, 112, 143, 149])
def test_after_a_kill_the_bill_and_the_time_left_are_the_same(offset: int) -> None:
    """An entry anywhere, on and off block and span borders, is read by the next process as by the
    same one."""
    store = MemoryStore(1 << 20)
    before = Bench(store)
    before.ask(PROMPT, marks=[offset], started_at_s=1000.0)
    before.ask(PROMPT, marks=[offset], started_at_s=1100.0)
    copy = MemoryStore(1 << 20)
    copy.put_many(
        [Item(key, store.get_many([key], 0)[0], found.expires_at_s) for key, found in store.scan()]
    )
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
    last = Bench(store).ask(
        [*PROMPT[:100], 1], marks=[100], started_at_s=1299.0, unmarked_ttl_s=0.0
    )
    assert last.started.report.hit is not None
    assert last.started.report.hit.ttl_left_s == 300.0
    late = Bench(store).ask(
        [*PROMPT[:100], 2], marks=[100], started_at_s=1600.0, unmarked_ttl_s=0.0
    )
    assert (late.started.report.hit, late.started.report.skipped) == (None, 0)


def test_what_was_refreshed_is_refreshed_for_the_next_process() -> None:
    """A read by one process keeps entry and KV alive for the one after it, past the first
    expiry."""
    store = MemoryStore(1 << 20)
    for i, started_at_s in enumerate((1000.0, 1250.0, 1500.0, 1750.0)):
        outcome = Bench(store).ask(
            [*PROMPT[:100], i], marks=[100], started_at_s=started_at_s, unmarked_ttl_s=0.0
        )
        report = outcome.started.report
        assert (report.hit is not None) == (i > 0)
        assert report.broken_tokens == 0


def test_what_is_on_the_device_is_kept_below_too() -> None:
    """Reads that never left the device still move the expiry below: the next process finds all of
    it."""
    store = MemoryStore(1 << 20)
    before = Bench(store)
    for started_at_s in (1000.0, 1200.0, 1400.0):
        before.ask(PROMPT, marks=[100], started_at_s=started_at_s, unmarked_ttl_s=0.0)
    after = Bench(store).ask(
        [*PROMPT[:100], 1], marks=[100], started_at_s=1650.0, unmarked_ttl_s=0.0
    )
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
    stepper = Stepper(
        FakeRunner(num_pages=200, reuse_decode_kv=False),
        tiers=inline_tiers(("ssd", store)),
        context=400,
    )
    answer = stepper.answer(PROMPT, plan=CachePlan(any_prefix=True), max_tokens=40).token_ids
    again = Stepper(
        FakeRunner(num_pages=200, reuse_decode_kv=False),
        tiers=inline_tiers(("ssd", store)),
        context=400,
    )
    outcome = again.answer([*PROMPT, *answer], plan=CachePlan(any_prefix=True))
    assert outcome.started.report.skipped == 144


# Two hosts ----------------------------------------------------------------------------------------


def test_two_hosts_share_one_store() -> None:
    """A prefix prefilled by one is a hit on the other, which keeps it alive for the first."""
    store = MemoryStore(1 << 20)
    one, two = Bench(store, name="redis"), Bench(store, name="redis")
    one.ask(PROMPT, marks=[100], started_at_s=1000.0, unmarked_ttl_s=0.0)
    there = two.ask(
        [*PROMPT[:100], 1], marks=[100], started_at_s=1200.0, unmarked_ttl_s=0.0
    ).started.report
    assert there.tiers == {"redis": 100}
    back = one.ask(
        [*PROMPT[:100], 2], marks=[100], started_at_s=1450.0, unmarked_ttl_s=0.0
    ).started.report
    assert back.hit is not None
    assert back.hit.offset == 100
    assert two.count("num_found_entries") == 1


def test_what_one_tier_lacks_is_read_from_another() -> None:
    """Damaged objects of the first tier are read from the second, which is named, and then
    deleted."""
    good, bad = MemoryStore(1 << 20), MemoryStore(1 << 20)
    Stepper(tiers=inline_tiers(("ssd", bad), ("redis", good)), span_tokens=16).answer(
        PROMPT, marks=[100]
    )
    for key, found in list(bad.scan()):
        (payload,) = bad.get_many([key], 0)
        assert payload is not None
        bad.put_many([Item(key, payload[:-1] + bytes([payload[-1] ^ 1]), found.expires_at_s)])
    stepper = Stepper(tiers=inline_tiers(("ssd", bad), ("redis", good)), span_tokens=16)
    report = stepper.answer([*PROMPT[:100], 1], marks=[100]).started.report
    assert report.tiers == {"redis": 100}
    assert stepper.cache.stats().tiers["ssd"].counters.num_corrupt == 8


@pytest.mark.parametrize("other", ["tenant", "fingerprint"])
def test_nothing_of_another_tenant_or_model_is_served(other: str) -> None:
    """Objects put under the keys of another tenant or model are refused by their MAC, and the
    answer is computed."""
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
    victim.put_many(
        [Item(key, payload, 9e9) for key, payload in zip(mine, stolen.values(), strict=False)]
    )
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
