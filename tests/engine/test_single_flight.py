"""N requests that begin alike compute their beginning once, whatever happens to the first of them.
The fake model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import pytest

from engine.messages import Started
from engine.store.memory import MemoryStore
from engine.types import CachePlan, CacheReport
from gateway.dialects.anthropic import usage as anthropic_usage
from gateway.dialects.openai import usage as openai_usage
from tests.fakes.rules import ANTHROPIC, rules
from tests.fakes.runner import FakeRunner
from tests.fakes.stepper import Outcome, Stepper
from tests.fakes.tier_io import ManualIo, manual_tiers

NO_CACHE = CachePlan(read=False, store=False)


def cold(prompt: Sequence[int], max_tokens: int = 4) -> list[int]:
    """The answer of an engine that has never seen anything."""
    runner = FakeRunner(num_pages=400, block_size=8)
    return (
        Stepper(runner, context=3000).answer(prompt, plan=NO_CACHE, max_tokens=max_tokens).token_ids
    )


def stepper(**options: object) -> Stepper:
    return Stepper(
        FakeRunner(num_pages=1000, block_size=8),
        context=3000,
        **{"max_step_tokens": 64, "max_sequences": 32, **options},  # type: ignore[arg-type]
    )


def count(engine: Stepper, name: str) -> float:
    return engine.loop.stats.counters[f"engine_{name}_tokens_total"]


def check_counts(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        report = outcome.started.report
        assert 0 <= report.shared <= report.skipped <= report.num_prompt - 1
        assert sum(report.tiers.values()) == report.skipped


def test_64_identical_cold_prompts_are_computed_once() -> None:
    """One prefill's worth of tokens, and one for each of the others, as one token is always
    computed."""
    engine, prompt = stepper(max_queue=64), [i % 250 for i in range(2000)]
    outcomes = [engine.submit(prompt) for _ in range(64)]
    assert (engine.loop.scheduler.num_running, engine.loop.admission.num_following) == (1, 63)
    engine.run()
    assert count(engine, "prefill") == 2000 + 63
    assert {tuple(outcome.token_ids) for outcome in outcomes} == {tuple(cold(prompt))}
    assert [outcome.started.report.shared for outcome in outcomes] == [0, *[1999] * 63]
    assert count(engine, "shared") == 63 * 1999
    check_counts(outcomes)


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
def test_followers_survive_their_leader(ending: str) -> None:
    """What it had computed at 60 % is kept, one of the others goes on from there, and all 63 are
    right."""
    engine, prompt = stepper(max_queue=64), [i % 250 for i in range(2000)]
    outcomes = [engine.submit(prompt) for _ in range(64)]
    while count(engine, "prefill") < 1200:
        engine.step()
    assert count(engine, "prefill") == 1216
    if ending == "cancelled":
        engine.abort(outcomes[0])
    else:
        failures = iter([True])

        def fail(slices: object) -> None:
            if next(failures, False):
                raise RuntimeError("device trouble")

        engine.runner.before_step = fail
        engine.step()
        assert outcomes[0].failed.kind == "internal"
    engine.run()
    assert count(engine, "prefill") == 2000 + 62
    assert {tuple(outcome.token_ids) for outcome in outcomes[1:]} == {tuple(cold(prompt))}
    check_counts(outcomes)


def test_siblings_that_differ_late_share_what_they_have_in_common() -> None:
    """To the token, and in stages: groups within the group share more."""
    engine, common = stepper(), [i % 250 for i in range(500)]
    left, right = [*common, *[251] * 101], [*common, *[252] * 101]
    prompts = [[*left, 1], [*right, 1], [*left, 2], [*right, 2], [*left, 3]]
    outcomes = [engine.submit(prompt) for prompt in prompts]
    engine.run()
    assert count(engine, "prefill") == 500 + 2 * 101 + 5
    assert [outcome.token_ids for outcome in outcomes] == [cold(prompt) for prompt in prompts]
    check_counts(outcomes)


def test_who_shares_nothing_is_not_held_up() -> None:
    """Followers neither hold pages nor block the queue: another prompt passes them and is served
    meanwhile."""
    engine, prompt = stepper(max_sequences=2), [i % 250 for i in range(2000)]
    outcomes = [engine.submit(prompt) for _ in range(3)]
    other = engine.submit([7] * 30, max_tokens=2)
    num_steps = 0
    while not other.is_over:
        engine.step()
        num_steps += 1
    assert num_steps <= 3
    assert engine.loop.admission.num_following == 2
    assert not any(outcome.events for outcome in outcomes[1:])
    engine.run()
    assert all(outcome.token_ids == cold(prompt) for outcome in outcomes)


def test_waiting_has_a_limit() -> None:
    """Past `max_wait_s` a follower computes on its own what is not there yet, and waits for nobody
    again."""
    engine, prompt = stepper(), [i % 250 for i in range(2000)]
    first = engine.submit(prompt)
    plan = CachePlan(any_prefix=True, max_wait_s=5.0)
    second = engine.submit(prompt, plan=plan, started_at_s=1000.0)
    engine.step()
    engine.loop.tick(1004.9)
    engine.step()
    assert not second.events
    engine.loop.tick(1005.0)
    engine.step()
    assert second.started.report.skipped == second.started.report.shared == 128
    engine.run()
    assert first.token_ids == second.token_ids == cold(prompt)


@pytest.mark.parametrize("plan", [CachePlan(single_flight="off"), CachePlan(read=False), NO_CACHE])
def test_who_may_not_read_or_wait_starts_at_once(plan: CachePlan) -> None:
    """Turned off, or for a request that reads nothing, everybody computes."""
    engine, prompt = stepper(), [i % 250 for i in range(300)]
    outcomes = [engine.submit(prompt, plan=plan) for _ in range(3)]
    assert all(outcome.events for outcome in outcomes)
    engine.run()
    assert count(engine, "prefill") == 900


@pytest.mark.parametrize("plan", [NO_CACHE, CachePlan(unmarked_ttl_s=0.0)])
def test_nobody_waits_for_what_will_not_be_kept(plan: CachePlan) -> None:
    """A request that keeps nothing computes for itself alone."""
    engine, prompt = stepper(), [i % 250 for i in range(300)]
    engine.submit(prompt, plan=plan)
    second = engine.submit(prompt)
    assert second.started.report.skipped == 0
    engine.run()


def test_tenants_do_not_wait_for_each_other() -> None:
    """Equal prompts of two tenants have nothing in common, time included."""
    engine, prompt = stepper(), [i % 250 for i in range(300)]
    outcomes = [engine.submit(prompt, tenant=tenant) for tenant in ("t", "u")]
    assert engine.loop.admission.num_following == 0
    engine.run()
    assert [outcome.started.report.skipped for outcome in outcomes] == [0, 0]


def test_a_flush_lets_followers_go() -> None:
    """What the leader computed before it is forgotten, so nobody waits for it; the next one
    computes for the rest."""
    engine, prompt = stepper(), [i % 250 for i in range(600)]
    outcomes = [engine.submit(prompt) for _ in range(4)]
    engine.step()
    engine.loop.flush("t")
    assert engine.loop.admission.num_following == 2
    engine.run()
    assert count(engine, "prefill") == 2 * 600 + 2
    assert all(outcome.token_ids == cold(prompt) for outcome in outcomes)


def test_an_aborted_follower_costs_nothing() -> None:
    """It is told `cancelled` at once, has no `Started`, and the others do not notice."""
    engine, prompt = stepper(), [i % 250 for i in range(600)]
    outcomes = [engine.submit(prompt) for _ in range(3)]
    engine.step()
    engine.abort(outcomes[1])
    assert outcomes[1].finished.reason == "cancelled"
    assert not any(isinstance(event, Started) for event in outcomes[1].events)
    engine.run()
    assert outcomes[2].token_ids == cold(prompt)
    assert count(engine, "prefill") == 600 + 1


def test_what_lies_below_is_read_once() -> None:
    """Requests that want the same objects from a lower tier wait for the first to bring them up."""
    io = ManualIo(is_open=True)
    store = MemoryStore(1 << 20)
    engine = Stepper(
        FakeRunner(num_pages=200, block_size=8),
        context=1000,
        tiers=manual_tiers(("ssd", store, io, io)),
        force_store=True,
        max_step_tokens=64,
    )
    prompt = [i % 250 for i in range(320)]
    engine.answer(prompt, marks=[320], max_tokens=1)
    num_before = engine.cache.stats().tiers["ssd"].counters.num_hits
    first = engine.answer([*prompt, 1], marks=[320], max_tokens=1)
    num_alone = engine.cache.stats().tiers["ssd"].counters.num_hits - num_before
    assert first.started.report.tiers == {"ssd": 320}
    io.is_open = False
    together = [engine.submit([*prompt, token], marks=[320], max_tokens=1) for token in (2, 3, 4)]
    engine.step()
    assert (engine.loop.admission.num_loading, engine.loop.admission.num_following) == (1, 2)
    io.is_open = True
    io.run()
    engine.step()
    engine.run()
    assert engine.cache.stats().tiers["ssd"].counters.num_hits == num_before + 2 * num_alone
    hits = [outcome.started.report.hit for outcome in together]
    assert all(hit is not None and hit.offset == 320 for hit in hits)
    assert [outcome.started.report.tiers for outcome in together] == [
        {"ssd": 320},
        {"device": 320},
        {"device": 320},
    ]


# What followers pay -------------------------------------------------------------------------------

RULES = rules(ANTHROPIC, min_tokens=16)


def followers(
    bill: Literal["read", "write"], *, marks: Sequence[int], num_shared: int = 400
) -> tuple[Outcome, Outcome]:
    """A leader and a follower that differ from token `num_shared` on, both marked."""
    engine = stepper()
    common = [i % 250 for i in range(num_shared)]
    engine.answer([*common[:100], 250], marks=[100])
    pair = [
        engine.submit([*common, *[token] * 300], marks=marks, single_flight=bill)
        for token in (251, 252)
    ]
    engine.run()
    assert count(engine, "prefill") == 101 + 300 + 2 * 300
    return pair[0], pair[1]


def test_a_follower_reads_what_was_computed_for_it() -> None:
    """Billed as read, by default: the leader's entries are there as soon as their tokens are,
    though it is still busy."""
    leader, follower = followers("read", marks=[100, 350])
    report = follower.started.report
    assert (report.skipped, report.shared) == (400, 300)
    assert report.hit is not None
    assert report.hit.offset == 350
    assert [boundary.existed for boundary in report.boundaries] == [True, True]
    plan = CachePlan()
    assert anthropic_usage(report, RULES, plan, 4).cache_read == 350
    assert anthropic_usage(leader.started.report, RULES, plan, 4).cache_write == ((300.0, 250),)


def test_a_follower_pays_for_writing_where_the_policy_says_so() -> None:
    """Billed as a provider would, that does not wait: read up to what was there before, the rest
    written. What was really skipped is in the report all the same."""
    _, follower = followers("write", marks=[100, 350])
    report = follower.started.report
    assert (report.skipped, report.shared) == (400, 300)
    assert report.hit is not None
    assert report.hit.offset == 100
    assert [boundary.existed for boundary in report.boundaries] == [True, False]
    assert report.broken_tokens == 0
    usage = anthropic_usage(report, RULES, CachePlan(single_flight="write"), 4)
    assert (usage.cache_read, usage.cache_write, usage.input) == (100, ((300.0, 250),), 350)


@pytest.mark.parametrize(("bill", "read"), [("read", 399), ("write", 0)])
def test_any_prefix_is_billed_by_the_same_rule(bill: Literal["read", "write"], read: int) -> None:
    """Also where no entry is needed to read."""
    engine, prompt = stepper(), [i % 250 for i in range(400)]
    plan = CachePlan(any_prefix=True, single_flight=bill)
    outcomes = [engine.submit(prompt, plan=plan) for _ in range(2)]
    engine.run()
    report = outcomes[1].started.report
    assert (report.skipped, report.shared) == (399, 399)
    assert openai_usage(report, RULES, plan, 4).cache_read == read
    assert (report.hit.offset if report.hit is not None else 0) == read
    assert report.miss is None if bill == "read" else report.miss is not None


def test_measured_is_what_was_skipped() -> None:
    """Whatever followers are billed, the true count is reported."""
    report = CacheReport(num_prompt=100, skipped=90, shared=90, tiers={"device": 90})
    usage = openai_usage(
        report,
        rules(ANTHROPIC, usage_mode="measured"),
        CachePlan(any_prefix=True, single_flight="write"),
        1,
    )
    assert usage.cache_read == 90
