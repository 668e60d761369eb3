"""A thousand clients that leave, each in another phase of its request: nothing leaks,
and those who stay do not notice.
"""

from __future__ import annotations

import random

import pytest

from engine.schedule.sequence import Status
from engine.store.memory import MemoryStore
from engine.types import CachePlan
from tests.fakes.runner import FakeRunner
from tests.fakes.stepper import Outcome, Stepper

NUM_CANCELS = 1000
ALPHABETS = {"guessed answers": b"\0\1", "answers of any kind": b"abcdefghijklmnopqrstuvwxyz"}


def phase(stepper: Stepper, outcome: Outcome) -> str:
    """What a request is doing, in words."""
    request = stepper.loop._requests[stepper.id_of(outcome)]
    if request.last_lease is not None:
        return "preempted"
    if request.sequence.status is Status.PREFILL and request.sequence.num_output:
        return "computed again"
    return request.sequence.status.name.lower()


@pytest.mark.parametrize("alphabet", ALPHABETS.values(), ids=list(ALPHABETS))
def test_a_thousand_cancels_leak_nothing(alphabet: bytes) -> None:
    """Followers, loading, waiting, prefilling, decoding, guessing and preempted ones: pages,
    leases, reads and waits are all given back, each request has one end, and what the others say is
    what a cold engine says."""
    rng = random.Random(3)
    runner = FakeRunner(num_pages=40, alphabet=alphabet)
    stepper = Stepper(
        runner,
        store=MemoryStore(40_000),
        max_sequences=6,
        max_step_tokens=24,
        answer_tokens=3,
        max_queue=40,
    )
    families = [[rng.randrange(4) for _ in range(60)] for _ in range(3)]
    open_: list[tuple[list[int], Outcome]] = []
    kept: list[tuple[list[int], Outcome]] = []
    phases: set[str] = set()
    num_cancels = 0
    while num_cancels < NUM_CANCELS:
        while len(open_) < 16:
            prompt = [
                *rng.choice(families)[: rng.randrange(1, 60)],
                *rng.choices(range(4), k=rng.randrange(1, 6)),
            ]
            open_.append(
                (
                    prompt,
                    stepper.submit(
                        prompt, max_tokens=rng.randrange(1, 60), marks=[len(prompt) // 2 or 1]
                    ),
                )
            )
        for _ in range(rng.randrange(3)):
            stepper.loop.step()
        kept += [one for one in open_ if one[1].is_over]
        open_ = [one for one in open_ if not one[1].is_over]
        if open_:
            _, leaving = open_.pop(rng.randrange(len(open_)))
            phases.add(phase(stepper, leaving))
            stepper.abort(leaving)
            num_cancels += 1
            assert leaving.finished.reason == "cancelled"
            assert leaving.finished.num_output == len(leaving.token_ids)
        if num_cancels % 50 == 0:
            stepper.loop.check()
    stepper.run()
    assert {"following", "waiting", "prefill", "decode", "preempted"} <= phases
    gauges = stepper.cache.stats().gauges
    assert (
        gauges.num_leases,
        gauges.num_pinned_pages,
        gauges.num_reserved_pages,
        gauges.staged_nbytes,
    ) == (0, 0, 0, 0)
    assert (
        stepper.loop.scheduler.num_running
        == stepper.loop.scheduler.num_waiting
        == stepper.loop.admission.num_following
        == 0
    )
    assert stepper.loop.stats.counters["engine_aborted_total"] == NUM_CANCELS
    if alphabet == ALPHABETS["guessed answers"]:
        assert stepper.loop.stats.counters["engine_accepted_tokens_total"] > 100
    cold = Stepper(FakeRunner(num_pages=100, alphabet=alphabet), speculation=False)
    for prompt, outcome in [*kept, *open_][:: max(1, len(kept) // 40)]:
        truth = cold.answer(
            prompt, plan=CachePlan(read=False, store=False), max_tokens=60
        ).token_ids
        assert outcome.token_ids == truth[: outcome.finished.num_output]
