"""Guessed tokens: what is sent is what would have been sent without guessing, in fewer steps.

The fake model.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedule.draft import MAX_DRAFT, MAX_DRAFTING, RETRY_TOKENS, Drafter
from engine.schedule.sequence import Slice
from tests.fakes.runner import FakeRunner
from tests.fakes.stepper import Outcome, Stepper


def scripted(text: str, *, speculation: bool = True, **options: object) -> Stepper:
    """A stepper whose model says `text`, one byte per token, whatever it is asked, and then ends
    its turn."""
    stepper = Stepper(FakeRunner(num_pages=400), context=1500, speculation=speculation, **options)  # type: ignore[arg-type]
    stepper.runner.script = lambda sequence: text.encode()
    stepper.runner.script_end = min(stepper.tokenizer.stop_ids)
    return stepper


def both(text: str, prompt: str, **options: object) -> tuple[Outcome, Stepper]:
    """The outcome with guessing, which must be that without."""
    fast, plain = scripted(text), scripted(text, speculation=False)
    outcomes = [stepper.answer(prompt.encode(), **options) for stepper in (fast, plain)]
    assert outcomes[0].token_ids == outcomes[1].token_ids
    assert outcomes[0].text == outcomes[1].text
    ends = [(o.finished.reason, o.finished.stop, o.finished.num_output) for o in outcomes]
    assert ends[0] == ends[1]
    assert len(fast.runner.steps) <= len(plain.runner.steps)
    nexts = [
        stepper.answer(prompt.encode() + bytes(outcomes[0].token_ids) + b"?")
        for stepper in (fast, plain)
    ]
    assert nexts[0].started.report == nexts[1].started.report
    return outcomes[0], fast


def test_a_repeated_text_takes_fewer_steps() -> None:
    """An answer that quotes its prompt needs far fewer steps than it has tokens."""
    text = (
        "It was the best of times, it was the worst of times, it was the age of wisdom, it "
        "was "
        "the age of foolishness."
    )
    outcome, stepper = both(text, f"Repeat: {text}", max_tokens=500)
    assert outcome.text == text
    counters = stepper.loop.stats.counters
    assert counters["engine_accepted_tokens_total"] > 80
    assert len(stepper.runner.steps) - 30 < 60


def test_wrong_guesses_end() -> None:
    """Where guesses keep being wrong, guessing pauses, longer each time."""
    token_ids = [1, 2, 3, 9]
    drafter = Drafter(token_ids)
    guessed_at = []
    for i in range(600):
        token_ids += [1, 2, 3]
        draft = drafter.propose(8)
        if draft:
            guessed_at.append(i)
            drafter.update(len(draft), 0)
        token_ids.append(10 + i)
    assert len(guessed_at) < 12
    assert guessed_at[-1] - guessed_at[-2] > 2 * RETRY_TOKENS / 4


def test_right_guesses_grow() -> None:
    """Up to a bound."""
    token_ids = [*range(100), *range(40)]
    drafter = Drafter(token_ids)
    sizes = []
    for _ in range(5):
        draft = drafter.propose(100)
        sizes.append(len(draft))
        drafter.update(len(draft), len(draft))
        token_ids += [*draft, token_ids[-1] + len(draft) + 1]
    assert sizes == [2, 4, 8, MAX_DRAFT, MAX_DRAFT]


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(1, 9), max_size=5))
def test_a_guess_is_what_followed_last(token_ids: list[int], cuts: list[int]) -> None:
    """However the sequence grew, the guess continues the latest earlier place where its last three
    tokens stand."""
    ids: list[int] = []
    drafter = Drafter(ids)
    left = list(token_ids)
    for cut in [*cuts, len(token_ids)]:
        ids += left[:cut]
        del left[:cut]
        places = [i for i in range(3, len(ids)) if ids[i - 3 : i] == ids[-3:]]
        assert drafter.propose(2) == (tuple(ids[places[-1] : places[-1] + 2]) if places else ())


@pytest.mark.parametrize("max_tokens", range(1, 30))
def test_the_limit_is_met_exactly(max_tokens: int) -> None:
    """No token more than asked for, and none is computed past it."""
    outcome, stepper = both(
        "abcdefgh abcdefgh abcdefgh abcdefgh", "abcdefgh abcdefgh", max_tokens=max_tokens
    )
    assert outcome.finished.num_output == max_tokens
    ends = [
        part.end
        for step in stepper.runner.steps
        for part in step
        if part.sequence.request_id == "0"
    ]
    assert max(ends) <= 17 + max(max_tokens - 1, 0)


@pytest.mark.parametrize("stop", ["h", "gh", "h a", "def", "xyz"])
def test_a_stop_string_ends_the_answer_within_a_guess(stop: str) -> None:
    """Exactly where it would have, though tokens after it were guessed right."""
    outcome, _ = both(
        "abc abcdefgh abcdefgh abcdefgh", "say abcdefgh abcdefgh", max_tokens=100, stop=(stop,)
    )
    assert outcome.finished.reason == ("stop" if stop == "xyz" else "stop_sequence")


def test_an_end_of_turn_within_a_guess() -> None:
    """The turn ends there, whatever was guessed behind it."""
    end = min(Stepper().tokenizer.stop_ids)
    stepper = scripted("abcdefgh")
    outcome = stepper.answer([*b"abcdefgh", end, *b"more and more", *b"abc"], max_tokens=100)
    assert (outcome.text, outcome.finished.reason) == ("abcdefgh", "stop")
    assert stepper.loop.stats.counters["engine_accepted_tokens_total"] > 0


def test_guesses_take_no_pages_from_others() -> None:
    """A draft stays within what is reserved already: nobody is preempted for a guess."""
    stepper = Stepper(FakeRunner(num_pages=12, alphabet=b"\0"), answer_tokens=1)
    outcomes = [stepper.submit([0] * 9, max_tokens=20) for _ in range(2)]
    while not all(outcome.is_over for outcome in outcomes):
        stepper.step()
    assert stepper.loop.stats.counters["engine_accepted_tokens_total"] > 0
    assert [outcome.token_ids for outcome in outcomes] == [[0] * 20] * 2


def test_many_answers_at_once_are_not_guessed() -> None:
    """A step that is full of rows anyway gains nothing from guesses."""
    stepper = Stepper(
        FakeRunner(num_pages=400, alphabet=b"\0"), max_sequences=8, max_step_tokens=64
    )
    for _ in range(MAX_DRAFTING + 1):
        stepper.submit([0] * 9, max_tokens=20, single_flight="off")
    stepper.run()
    assert stepper.loop.stats.counters["engine_drafted_tokens_total"] == 0


def test_a_cancel_between_guesses_leaks_nothing() -> None:
    """At any step: what was sent is counted, and the next turn is right."""
    for num_steps in range(12):
        stepper = scripted("abcdefgh " * 20)
        outcome = stepper.submit(b"abcdefgh abcdefgh", max_tokens=100)
        for _ in range(num_steps):
            stepper.step()
        stepper.abort(outcome)
        assert outcome.finished.num_output == len(outcome.token_ids)
        gauges = stepper.cache.stats().gauges
        assert (gauges.num_leases, gauges.num_pinned_pages, gauges.num_reserved_pages) == (0, 0, 0)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_guessing_changes_no_token(data: st.DataObject) -> None:
    """A model whose answer depends on every slot of KV says the same with and without, in company
    or not, also where decoded KV has other bits than prefilled."""
    reuse_decode_kv = data.draw(st.booleans())
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=30), min_size=1, max_size=4)
    )
    answers = []
    for speculation in (True, False):
        runner = FakeRunner(num_pages=200, alphabet=b"\0\1", reuse_decode_kv=reuse_decode_kv)
        stepper = Stepper(runner, speculation=speculation)
        outcomes = [stepper.submit(prompt, max_tokens=40) for prompt in prompts]
        stepper.run()
        answers.append([outcome.token_ids for outcome in outcomes])
        assert all(isinstance(part, Slice) for step in runner.steps for part in step)
    assert answers[0] == answers[1]
