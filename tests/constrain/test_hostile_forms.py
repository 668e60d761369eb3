"""Hostile forms, on the real compiler: whatever is asked for, this process goes on, soon,
and takes little memory.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from engine.constrain.grammars import Grammars
from engine.constrain.trial import CPU_S, KEPT_NBYTES, MEMORY_NBYTES
from engine.constrain.trials import Trials
from engine.constrain.vocabulary import described
from engine.errors import BadFormat, Overloaded
from engine.prompt.tokenizer import HfTokenizer
from engine.types import OutputFormat, Sampling
from tests.fakes.hostile_forms import BORNE, REFUSED, random_hostile_form
from tests.fakes.random_client import allowed_ids

GROWTH_NBYTES = 4 * KEPT_NBYTES


def follow(grammars: Grammars, form: OutputFormat, seed: int = 0) -> str | None:
    """Take a form and an answer's first tokens in it; why it was refused, or None. No mask may take
    long."""
    try:
        constraint = grammars.constraint(Sampling(max_tokens=1, output_format=form))
    except BadFormat as error:
        return str(error)
    assert constraint is not None
    for step in range(40):
        began_s = time.thread_time()
        allowed = allowed_ids(constraint)
        assert time.thread_time() - began_s < 1.0
        constraint.advance(int(allowed[(seed + 7919 * step) % len(allowed)]))
        if constraint.failure is not None:
            break
    return None


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_end_a_worker_is_refused(grammars: Grammars, name: str) -> None:
    """In words, within the time and memory of a trial, and at once the second time."""
    before, began_s = resident(), time.process_time()
    assert follow(grammars, REFUSED[name])
    assert time.process_time() - began_s < CPU_S
    pid = grammars._trials.pid
    assert follow(grammars, REFUSED[name])
    assert grammars._trials.pid == pid
    assert resident() - before < GROWTH_NBYTES


@pytest.mark.parametrize("name", BORNE)
def test_what_looks_like_it_is_refused_or_borne(grammars: Grammars, name: str) -> None:
    """Either way this process goes on, soon and small."""
    before, began_s = resident(), time.process_time()
    follow(grammars, BORNE[name])
    assert time.process_time() - began_s < 2 * CPU_S
    assert resident() - before < GROWTH_NBYTES


def test_random_hostile_forms(grammars: Grammars) -> None:
    """60 of 60 do no harm, and of both outcomes there are some."""
    before = resident()
    refusals = [follow(grammars, random_hostile_form(seed), seed) for seed in range(60)]
    assert 0 < refusals.count(None) < 60
    assert resident() - before < MEMORY_NBYTES


@pytest.mark.long
def test_many_random_hostile_forms(grammars: Grammars) -> None:
    """1,000 of 1,000."""
    before = resident()
    for seed in range(1000, 2000):
        follow(grammars, random_hostile_form(seed), seed)
    assert resident() - before < 2 * MEMORY_NBYTES


def test_a_trial_that_is_killed_judges_nothing(tokenizer: HfTokenizer) -> None:
    """By the system, for its memory: what was tried then may come again, and another process tries
    it."""
    grammars = Grammars(tokenizer.for_any_thread())
    form = OutputFormat("regex", "ab?")
    assert follow(grammars, OutputFormat("regex", "a")) is None
    pid = grammars._trials.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [])
    assert follow(grammars, form) is None
    assert grammars._trials.pid != pid
    grammars.close()


def test_a_trial_that_cannot_start_is_no_refusal(tokenizer: HfTokenizer, tmp_path: Path) -> None:
    """The client is told to try again."""
    for command in ((str(tmp_path / "nothing"),), ("false",)):
        trials = Trials(lambda: described(tokenizer), command)
        with pytest.raises(Overloaded):
            trials.nbytes("{}")
        assert trials.pid is None
        assert trials.refusal("{}") is None


def test_forms_in_flight_have_a_budget(
    tokenizer: HfTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once what requests hold takes too much together, the next new form has to wait, and those
    that are there do not."""
    grammars = Grammars(tokenizer.for_any_thread())
    one = Sampling(max_tokens=1, output_format=OutputFormat("regex", "a{100}"))
    other = Sampling(max_tokens=1, output_format=OutputFormat("regex", "b{100}"))
    held = grammars.constraint(one)
    monkeypatch.setattr("engine.constrain.grammars.LIVE_NBYTES", 1)
    with pytest.raises(Overloaded):
        grammars.constraint(other)
    monkeypatch.undo()
    assert grammars.constraint(one) is not None
    assert held is not None
    grammars.close()
