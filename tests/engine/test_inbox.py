"""The meeting point of threads: bounds, coalescing, and one answer per request."""

from __future__ import annotations

import threading

import pytest

from engine.errors import EngineError, Overloaded
from engine.inbox import MAX_QUESTIONS, Inbox, Job
from engine.messages import Count, Snapshot, Submit
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Prompt
from engine.types import CachePlan, Sampling

RENDERED = RenderedPrompt((1, 2), {}, 0)


def make_job(request_id: str) -> Job:
    return Job(Submit(request_id, "t", Prompt(()), CachePlan(), Sampling(max_tokens=1), 0.0))


def test_no_more_than_capacity_are_open() -> None:
    """A settled request makes room for another."""
    inbox = Inbox(2)
    inbox.open(make_job("a"))
    inbox.open(make_job("b"))
    with pytest.raises(Overloaded):
        inbox.open(make_job("c"))
    assert inbox.settle("a")
    inbox.open(make_job("c"))
    assert inbox.num_open == 2


def test_an_id_in_flight_is_refused() -> None:
    """Two requests of one id could not be told apart; a settled id is free again."""
    inbox = Inbox(2)
    inbox.open(make_job("a"))
    with pytest.raises(EngineError):
        inbox.open(make_job("a"))
    inbox.settle("a")
    inbox.open(make_job("a"))


def test_only_one_settles() -> None:
    """Of two that want to answer, one may."""
    inbox = Inbox(1)
    inbox.open(make_job("a"))
    assert [inbox.settle("a"), inbox.settle("a"), inbox.settle("unknown")] == [True, False, False]


def test_what_nobody_waits_for_is_not_delivered() -> None:
    """A prompt rendered after its request was settled is dropped, also when the id is in use
    again."""
    inbox = Inbox(2)
    old, new = make_job("a"), make_job("a")
    inbox.open(old)
    inbox.settle("a")
    inbox.open(new)
    inbox.deliver(old, RENDERED, 0.5)
    inbox.deliver(new, RENDERED, 0.25)
    assert [(job.submit, job.render_s) for job in inbox.take(0).rendered] == [(new.request, 0.25)]


def test_aborts_are_marks_on_open_requests() -> None:
    """Unknown ids and repetitions leave nothing behind."""
    inbox = Inbox(2)
    inbox.open(make_job("a"))
    for request_id in ("a", "unknown", "a"):
        inbox.abort(request_id)
    assert inbox.take(0).aborted == ["a"]


def test_ticks_coalesce_to_the_latest() -> None:
    """A thousand ticks during one step cost one number, and time does not go back."""
    inbox = Inbox(1)
    for now_s in (1.0, 3.0, 2.0):
        inbox.tick(now_s)
    assert inbox.take(0).now_s == 3.0
    assert inbox.take(0).now_s is None


def test_questions_are_bounded() -> None:
    """Too many flushes or snapshots are refused until the engine has looked at them."""
    inbox = Inbox(1)
    for i in range(MAX_QUESTIONS):
        inbox.ask(Snapshot(str(i)))
    with pytest.raises(Overloaded):
        inbox.ask(Snapshot("one more"))
    assert len(inbox.take(0).questions) == MAX_QUESTIONS
    inbox.ask(Snapshot("one more"))


def test_take_waits_for_something() -> None:
    """An idle engine sleeps until somebody wants something."""
    inbox = Inbox(1)
    taken: list[float | None] = []
    reader = threading.Thread(target=lambda: taken.append(inbox.take(None).now_s))
    reader.start()
    inbox.tick(5.0)
    reader.join(10)
    assert taken == [5.0]


def test_a_closed_inbox_refuses() -> None:
    """After close nothing is taken in, and the engine thread is told."""
    inbox = Inbox(1)
    inbox.close()
    with pytest.raises(EngineError):
        inbox.open(Job(Count("a", Prompt(()))))
    with pytest.raises(EngineError):
        inbox.ask(Snapshot("a"))
    assert inbox.take(None).closed
