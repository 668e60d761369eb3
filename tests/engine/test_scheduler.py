"""Continuous batching as pure logic: order, fairness, bounds. No engine, no cache."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Overloaded
from engine.schedule.scheduler import LOOKAHEAD, MAX_OVERTAKES, Scheduler
from engine.schedule.sequence import Sequence, Slice, Status
from engine.types import Sampling


def make_scheduler(
    *,
    max_sequences: int = 8,
    max_step_tokens: int = 16,
    max_mixed_tokens: int = 1000,
    max_queue: int = 64,
) -> Scheduler:
    return Scheduler(
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        max_mixed_tokens=max_mixed_tokens,
        max_queue=max_queue,
    )


def make_sequence(name: str, num_prompt: int, max_tokens: int = 4) -> Sequence:
    return Sequence(name, list(range(num_prompt)), num_prompt, Sampling(max_tokens=max_tokens))


def admit_all(sequence: Sequence) -> bool:
    return True


def compute(slices: list[Slice]) -> None:
    """What the engine does with the result of a step."""
    for part in slices:
        part.sequence.num_computed += part.num_tokens
        if part.sample:
            part.sequence.token_ids.append(0)
            if part.sequence.status is Status.PREFILL:
                part.sequence.move(Status.DECODE)


def shape(slices: list[Slice]) -> list[tuple[str, int, int, bool]]:
    return [(part.sequence.request_id, part.start, part.num_tokens, part.sample) for part in slices]


def test_a_long_prompt_is_cut_into_chunks() -> None:
    """Only the last chunk samples; the token after it is computed alone."""
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", 40))
    scheduler.admit(admit_all)
    steps = []
    for _ in range(5):
        slices = scheduler.next_step()
        steps += shape(slices)
        compute(slices)
    assert steps == [
        ("a", 0, 16, False),
        ("a", 16, 16, False),
        ("a", 32, 8, True),
        ("a", 40, 1, True),
        ("a", 41, 1, True),
    ]


def test_prefill_starts_after_what_was_cached() -> None:
    """Tokens found in the cache are not computed again."""
    scheduler = make_scheduler()
    sequence = make_sequence("a", 20)
    scheduler.add(sequence)

    def admit(admitted: Sequence) -> bool:
        admitted.num_cached = admitted.num_computed = 19
        return True

    scheduler.admit(admit)
    assert shape(scheduler.next_step()) == [("a", 19, 1, True)]


def test_without_output_nothing_is_sampled() -> None:
    """`max_tokens` 0 computes the whole prompt and asks for no token."""
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", 5, max_tokens=0))
    scheduler.admit(admit_all)
    assert shape(scheduler.next_step()) == [("a", 0, 5, False)]


def test_decoding_goes_on_during_a_long_prefill() -> None:
    """Each step has one token of the answer being read, and the rest of it for the prompt
    behind."""
    scheduler = make_scheduler()
    scheduler.add(make_sequence("short", 4))
    scheduler.admit(admit_all)
    compute(scheduler.next_step())
    scheduler.add(make_sequence("long", 100))
    scheduler.admit(admit_all)
    for start in (0, 15, 30):
        slices = scheduler.next_step()
        assert shape(slices) == [("short", 4 + start // 15, 1, True), ("long", start, 15, False)]
        compute(slices)


def test_prefills_get_less_of_a_step_while_something_decodes() -> None:
    """The time between two tokens is bounded by the smaller limit; with nobody reading a step is as
    large as it can be."""
    scheduler = make_scheduler(max_mixed_tokens=4)
    long, short = make_sequence("long", 40), make_sequence("short", 2, max_tokens=2)
    scheduler.add(long)
    scheduler.admit(admit_all)
    sizes = []
    for step in range(4):
        if step == 1:
            scheduler.add(short)
            scheduler.admit(admit_all)
        slices = scheduler.next_step()
        sizes.append(shape(slices))
        compute(slices)
        if short.num_output == 2 and short.status is Status.DECODE:
            scheduler.remove(short)
    assert sizes == [
        [("long", 0, 16, False)],
        [("long", 16, 14, False), ("short", 0, 2, True)],
        [("short", 2, 1, True), ("long", 30, 4, False)],
        [("long", 34, 6, True)],
    ]


def test_prefill_goes_on_in_a_full_house_of_decoding_sequences() -> None:
    """A quarter of a step is left for prefills, however many sequences decode."""
    scheduler = make_scheduler(max_sequences=100, max_step_tokens=16)
    for i in range(40):
        scheduler.add(make_sequence(f"d{i}", 1))
    scheduler.admit(admit_all)
    for _ in range(20):
        compute(scheduler.next_step())
    scheduler.add(make_sequence("new", 9))
    scheduler.admit(admit_all)
    assert shape(scheduler.next_step())[-1] == ("new", 0, 4, False)


def test_prefills_are_served_oldest_first() -> None:
    """What the oldest prompt leaves of a step goes to the next one."""
    scheduler = make_scheduler()
    for name, num_prompt in (("a", 10), ("b", 10), ("c", 10)):
        scheduler.add(make_sequence(name, num_prompt))
    scheduler.admit(admit_all)
    slices = scheduler.next_step()
    assert shape(slices) == [("a", 0, 10, True), ("b", 0, 6, False)]
    compute(slices)
    assert shape(scheduler.next_step()) == [
        ("a", 10, 1, True),
        ("b", 6, 4, True),
        ("c", 0, 10, True),
    ]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    """Half of a step is the oldest prefill's, the rest goes to those with the least left: a short
    one is done at once, and a middling one before the long one."""
    scheduler = make_scheduler()
    for name, num_prompt in (("long", 200), ("middle", 30), ("short", 5)):
        scheduler.add(make_sequence(name, num_prompt))
    scheduler.admit(admit_all)
    slices = scheduler.next_step()
    assert shape(slices) == [("long", 0, 8, False), ("middle", 0, 3, False), ("short", 0, 5, True)]
    compute(slices)
    num_steps = 1
    while scheduler.running[1].status is Status.PREFILL:
        compute(scheduler.next_step())
        num_steps += 1
    assert num_steps == 5
    assert scheduler.running[0].num_computed == 41


def test_a_stream_of_short_prompts_does_not_starve_a_long_one() -> None:
    """However many short prompts arrive, the oldest prefill has half of every step."""
    scheduler = make_scheduler(max_sequences=100)
    long = make_sequence("long", 100)
    scheduler.add(long)
    for i in range(12):
        for j in range(3):
            scheduler.add(make_sequence(f"s{i}-{j}", 16, max_tokens=0))
        scheduler.admit(admit_all)
        slices = scheduler.next_step()
        assert slices[0].sequence is long
        assert slices[0].num_tokens >= min(8, long.num_left)
        compute(slices)


def test_what_was_preempted_comes_first_and_is_not_overtaken() -> None:
    """A sequence that gave up its pages goes on before all that never ran, even where one of those
    would fit."""
    scheduler = make_scheduler(max_sequences=2)
    first, second, third = (make_sequence(name, 4) for name in ("first", "second", "third"))
    for sequence in (first, second, third):
        scheduler.add(sequence)
    scheduler.admit(admit_all)
    compute(scheduler.next_step())
    scheduler.preempt(second)
    assert second.status is Status.WAITING
    scheduler.admit(lambda sequence: sequence is not second)
    assert third.status is Status.WAITING
    scheduler.remove(first)
    scheduler.admit(admit_all)
    assert [sequence.request_id for sequence in scheduler.running] == ["second", "third"]


def test_admission_is_first_come_first_served() -> None:
    """Seats are given in order of arrival, and again when one is left."""
    scheduler = make_scheduler(max_sequences=2)
    sequences = [make_sequence(name, 1) for name in "abc"]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.admit(admit_all)
    assert [s.status for s in sequences] == [Status.PREFILL, Status.PREFILL, Status.WAITING]
    scheduler.remove(sequences[0])
    scheduler.admit(admit_all)
    assert sequences[2].status is Status.PREFILL


def test_who_must_load_again_stops_nobody() -> None:
    """The first in the queue waits for its load once more; the next is admitted in the same
    pass."""
    scheduler = make_scheduler()
    first, second = make_sequence("first", 8), make_sequence("second", 8)
    scheduler.add(first)
    scheduler.add(second)

    def admit(sequence: Sequence) -> bool:
        if sequence is first:
            sequence.move(Status.LOADING)
        return sequence is not first

    scheduler.admit(admit)
    assert (first.status, second.status) == (Status.LOADING, Status.PREFILL)
    scheduler.ready(first)
    scheduler.admit(admit_all)
    assert first.status is Status.PREFILL


def test_a_full_queue_refuses() -> None:
    """The bound is on those waiting, not on those running."""
    scheduler = make_scheduler(max_sequences=1, max_queue=2)
    scheduler.add(make_sequence("running", 1))
    scheduler.admit(admit_all)
    scheduler.add(make_sequence("a", 1))
    scheduler.add(make_sequence("b", 1))
    with pytest.raises(Overloaded):
        scheduler.add(make_sequence("c", 1))
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 2)


def test_a_large_request_is_overtaken_only_so_often() -> None:
    """Small requests pass one that doesn't fit, a bounded number of times; then all wait for it."""
    scheduler = make_scheduler(max_sequences=100)
    large = make_sequence("large", 50)
    scheduler.add(large)
    smalls = [make_sequence(f"s{i}", 1) for i in range(2 * MAX_OVERTAKES)]
    for small in smalls:
        scheduler.add(small)
        scheduler.admit(lambda sequence: sequence is not large)
    started = [s for s in smalls if s.status is Status.PREFILL]
    assert started == smalls[:MAX_OVERTAKES]
    scheduler.remove(started[0])
    scheduler.admit(admit_all)
    assert large.status is Status.PREFILL
    assert all(s.status is not Status.WAITING for s in smalls)


def test_one_pass_tries_few_requests() -> None:
    """A long queue behind one that doesn't fit costs a bounded number of attempts."""
    scheduler = make_scheduler(max_queue=50)
    tried: list[str] = []
    for i in range(50):
        scheduler.add(make_sequence(str(i), 1))

    def refuse(sequence: Sequence) -> bool:
        tried.append(sequence.request_id)
        return False

    scheduler.admit(refuse)
    assert tried == [str(i) for i in range(1 + LOOKAHEAD)]
    scheduler.admit(refuse)
    assert len(tried) == 1 + LOOKAHEAD, "nothing changed since, so nothing was tried"
    assert not scheduler.has_work


def test_removing_the_first_gives_the_next_its_own_patience() -> None:
    """The count of overtakes belongs to the request at the head, not to the queue."""
    scheduler = make_scheduler(max_sequences=100)
    first, second = make_sequence("first", 50), make_sequence("second", 50)
    scheduler.add(first)
    scheduler.add(second)
    for i in range(MAX_OVERTAKES):
        scheduler.add(make_sequence(f"s{i}", 1))
        scheduler.admit(lambda sequence: sequence.num_prompt == 1)
    scheduler.remove(first)
    late = make_sequence("late", 1)
    scheduler.add(late)
    scheduler.admit(lambda sequence: sequence.num_prompt == 1)
    assert late.status is Status.PREFILL


@settings(max_examples=40)
@given(st.data())
def test_everybody_finishes_and_no_step_is_too_large(data: st.DataObject) -> None:
    """Random arrivals and ends: every sequence gets its tokens in order, and decoding ones are in
    every step."""
    max_step_tokens = data.draw(st.integers(4, 20), "max_step_tokens")
    max_mixed_tokens = data.draw(st.integers(1, max_step_tokens), "max_mixed_tokens")
    scheduler = make_scheduler(
        max_sequences=4, max_step_tokens=max_step_tokens, max_mixed_tokens=max_mixed_tokens
    )
    todo = [
        make_sequence(str(i), num_prompt, max_tokens)
        for i, (num_prompt, max_tokens) in enumerate(
            data.draw(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5)), max_size=8))
        )
    ]
    arriving = list(todo)
    for _ in range(10_000):
        if arriving and data.draw(st.booleans(), "arrives"):
            scheduler.add(arriving.pop(0))
        scheduler.admit(admit_all)
        slices = scheduler.next_step()
        if not slices and not arriving:
            break
        running = [s for s in todo if s.status is Status.DECODE]
        assert [part.sequence for part in slices[: len(running)]] == running
        assert sum(part.num_tokens for part in slices) <= max_step_tokens + len(running)
        assert not running or sum(part.num_tokens for part in slices) <= max_mixed_tokens + len(
            running
        )
        assert all(part.start == part.sequence.num_computed for part in slices)
        compute(slices)
        for part in slices:
            if part.sequence.num_output == part.sequence.sampling.max_tokens:
                scheduler.remove(part.sequence)
    assert [s.num_output for s in todo] == [s.sampling.max_tokens for s in todo]
