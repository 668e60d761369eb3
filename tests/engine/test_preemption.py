"""More answers than pages: some give theirs up and go on later, and nobody can tell.

The fake model.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import Started
from engine.types import CachePlan
from tests.fakes.runner import FakeRunner
from tests.fakes.stepper import Outcome, Stepper

NO_CACHE = CachePlan(read=False, store=False)


def crowded(
    num_pages: int = 16, *, answer_tokens: int = 4, reuse_decode_kv: bool = True, **options: object
) -> Stepper:
    """Pages of 4 tokens for far less than everybody may ask for."""
    runner = FakeRunner(num_pages=num_pages, reuse_decode_kv=reuse_decode_kv)
    return Stepper(runner, context=200, answer_tokens=answer_tokens, **options)  # type: ignore[arg-type]


def alone(prompt: Sequence[int], max_tokens: int, *, reuse_decode_kv: bool = True) -> list[int]:
    """The answer of an engine with room for everything."""
    runner = FakeRunner(num_pages=200, reuse_decode_kv=reuse_decode_kv)
    return Stepper(runner).answer(prompt, plan=NO_CACHE, max_tokens=max_tokens).token_ids


def count(stepper: Stepper, name: str) -> float:
    return stepper.loop.stats.counters[f"engine_{name}_total"]


@pytest.mark.parametrize("reuse_decode_kv", [True, False])
@pytest.mark.parametrize(
    "plan", [None, NO_CACHE, CachePlan(unmarked_ttl_s=0.0)], ids=["kept", "no cache", "not kept"]
)
def test_a_preempted_answer_is_the_same(reuse_decode_kv: bool, plan: CachePlan | None) -> None:
    """Also where decoded KV has other bits than prefilled, and where nothing of it stays: one
    `Started`, every token once, and prompt counts as if nothing had happened."""
    stepper = crowded(reuse_decode_kv=reuse_decode_kv)
    prompts = [[i] * 9 for i in range(1, 4)]
    outcomes = [stepper.submit(prompt, max_tokens=40, plan=plan) for prompt in prompts]
    stepper.run()
    assert count(stepper, "preempted") > 0
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert sum(isinstance(event, Started) for event in outcome.events) == 1
        assert outcome.token_ids == alone(prompt, 40, reuse_decode_kv=reuse_decode_kv)
        assert outcome.finished.num_output == 40
    assert count(stepper, "prompt_tokens") == count(stepper, "prefill_tokens") == 27
    assert count(stepper, "recomputed_tokens") > 0
    assert stepper.cache.stats().counters.num_requests == 3
    assert stepper.cache.stats().gauges.num_leases == 0


def test_answers_without_a_limit_run_side_by_side() -> None:
    """Clients that do not say how much they want do not each reserve the rest of the context."""
    stepper = crowded(num_pages=50, answer_tokens=16)
    for i in range(4):
        stepper.submit([i] * 9, max_tokens=190)
    stepper.step()
    assert stepper.loop.scheduler.num_running == 4


def test_the_oldest_is_never_preempted() -> None:
    """First come, first served: it finishes as if it were alone, in as many steps."""
    stepper = crowded()
    outcomes = [stepper.submit([i] * 9, max_tokens=40) for i in range(1, 4)]
    num_steps = 0
    while not outcomes[0].is_over:
        stepper.step()
        num_steps += 1
    assert num_steps <= 41
    assert not any(outcome.is_over for outcome in outcomes[1:])
    while not outcomes[1].is_over:
        stepper.step()
    assert not outcomes[2].is_over
    stepper.run()


def test_pages_are_not_passed_to_and_fro() -> None:
    """A preempted answer waits until there is room for it to get on, so there are few preemptions,
    and little is computed again."""
    stepper = crowded(num_pages=32, answer_tokens=8)
    for i in range(1, 9):
        stepper.submit([i] * 9, max_tokens=60)
    stepper.run()
    assert count(stepper, "preempted") <= 12
    assert count(stepper, "recomputed_tokens") <= 8 * 69


def test_what_is_left_of_a_preempted_answer_is_found_again() -> None:
    """Its blocks are evicted one by one and only as pages are needed; what remains is not computed
    again."""
    stepper = crowded(num_pages=24)
    outcomes = [stepper.submit([i] * 30, max_tokens=30) for i in (1, 2)]
    while not count(stepper, "preempted"):
        stepper.step()
    stepper.abort(outcomes[0])
    stepper.run()
    assert count(stepper, "recomputed_tokens") < 10
    assert outcomes[1].token_ids == alone([2] * 30, 30)


def test_nothing_new_starts_where_something_waits_to_go_on() -> None:
    """A newcomer that would fit does not take the pages that a preempted answer waits for."""
    stepper = crowded()
    outcomes = [stepper.submit([i] * 9, max_tokens=40) for i in range(1, 4)]
    while not count(stepper, "preempted"):
        stepper.step()
    late = stepper.submit([9, 9], max_tokens=2)
    while late.events == []:
        stepper.step()
    assert sum(outcome.is_over for outcome in outcomes) >= 1
    stepper.run()
    assert late.token_ids == alone([9, 9], 2)


@pytest.mark.parametrize("num_more", range(0, 40, 3))
def test_an_abort_of_a_preempted_answer_leaks_nothing(num_more: int) -> None:
    """Waiting, computed again or decoding again: its end is told once with what was sent, and the
    pages are back."""
    stepper = crowded()
    outcomes = [stepper.submit([i] * 9, max_tokens=40) for i in range(1, 4)]
    while not count(stepper, "preempted"):
        stepper.step()
    for _ in range(num_more):
        stepper.step()
    if not outcomes[2].is_over:
        stepper.abort(outcomes[2])
    assert outcomes[2].finished.num_output == len(outcomes[2].token_ids)
    stepper.run()
    assert [outcome.token_ids for outcome in outcomes[:2]] == [alone([i] * 9, 40) for i in (1, 2)]
    gauges = stepper.cache.stats().gauges
    assert (gauges.num_leases, gauges.num_pinned_pages, gauges.num_reserved_pages) == (0, 0, 0)


def test_a_flush_while_preempted_keeps_nothing() -> None:
    """An answer that began before its tenant was forgotten leaves nothing behind when it goes on
    afterwards."""
    stepper = crowded()
    outcomes = [stepper.submit([i] * 9, max_tokens=40) for i in range(1, 4)]
    while not count(stepper, "preempted"):
        stepper.step()
    stepper.loop.flush("t")
    stepper.run()
    assert outcomes[2].token_ids == alone([3] * 9, 40)
    assert stepper.cache.stats().gauges.num_blocks == 0


def check(
    asked: list[tuple[list[int], int, Outcome]], stepper: Stepper, *, reuse_decode_kv: bool
) -> None:
    for prompt, max_tokens, outcome in asked:
        last = outcome.finished
        assert sum(isinstance(event, Started) for event in outcome.events) <= 1
        truth = alone(prompt, max_tokens, reuse_decode_kv=reuse_decode_kv)
        assert outcome.token_ids == truth[: last.num_output]
        assert last.reason == "cancelled" or last.num_output == max_tokens
    gauges = stepper.cache.stats().gauges
    assert (gauges.num_leases, gauges.num_pinned_pages, gauges.num_reserved_pages) == (0, 0, 0)
    assert stepper.loop.scheduler.num_running == stepper.loop.scheduler.num_waiting == 0


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_crowds_get_the_answers_they_get_alone(data: st.DataObject) -> None:
    """Any sizes, shared beginnings, arrivals and aborts in a pool that is far too small: everybody
    finishes, rightly."""
    reuse_decode_kv = data.draw(st.booleans(), "reuse_decode_kv")
    stepper = crowded(
        data.draw(st.integers(15, 26), "num_pages"),
        answer_tokens=data.draw(st.sampled_from([1, 5, 12]), "answer_tokens"),
        reuse_decode_kv=reuse_decode_kv,
        max_step_tokens=data.draw(st.integers(4, 30), "max_step_tokens"),
    )
    asked: list[tuple[list[int], int, Outcome]] = []
    for _ in range(data.draw(st.integers(2, 7), "num_requests")):
        prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=20), "prompt")
        max_tokens = data.draw(st.integers(1, 40), "max_tokens")
        plan = data.draw(st.sampled_from([None, None, NO_CACHE]), "plan")
        asked.append((prompt, max_tokens, stepper.submit(prompt, max_tokens=max_tokens, plan=plan)))
        for _ in range(data.draw(st.integers(0, 12), "steps")):
            stepper.step()
        victim = data.draw(st.integers(0, 40), "abort")
        if victim < len(asked) and not asked[victim][2].is_over:
            stepper.abort(asked[victim][2])
    stepper.run()
    check(asked, stepper, reuse_decode_kv=reuse_decode_kv)
