"""The queue from other threads to the engine thread.

Knows no model and computes nothing.

Everything is bounded: a request is *open* from `open` until it is settled, and no more than
`capacity` are open at a time. Ticks coalesce, aborts are marks on open requests, questions have a
bound of their own.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from engine.errors import EngineError, Overloaded
from engine.messages import Count, Flush, Pin, Snapshot, Submit
from engine.prompt.rendered import RenderedPrompt
from engine.schedule.sequence import Constraint

MAX_QUESTIONS: Final = 64
"""Flushes, pins and snapshots that may wait for an answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A request as it was handed in, `submitted_s` on the monotonic clock."""

    request: Submit | Count
    submitted_s: float = field(default_factory=time.perf_counter)

    @property
    def request_id(self) -> str:
        return self.request.request_id


@dataclass(frozen=True, slots=True, eq=False)
class RenderedJob:
    """A `Submit` whose prompt has become tokens, in `render_s` seconds; `constraint` is the grammar
    of its answer, if any."""

    submit: Submit
    rendered: RenderedPrompt
    submitted_s: float
    render_s: float
    constraint: Constraint | None = None


@dataclass(slots=True)
class Mail:
    """Everything that arrived since the last `take`. `now_s` is the largest tick, None without one;
    `woken`: `wake` was called."""

    rendered: list[RenderedJob] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    questions: list[Flush | Pin | Snapshot] = field(default_factory=list)
    now_s: float | None = None
    woken: bool = False
    closed: bool = False

    @property
    def is_empty(self) -> bool:
        return (
            not (self.rendered or self.aborted or self.questions or self.woken or self.closed)
            and self.now_s is None
        )


class Inbox:
    """Thread-safe; only `take` waits. The caller whose `settle` returns True answers the
    request."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changed = threading.Condition()
        self._open: dict[str, Job] = {}
        self._mail = Mail()
        self._closed = False

    @property
    def num_open(self) -> int:
        with self._changed:
            return len(self._open)

    @property
    def is_closed(self) -> bool:
        with self._changed:
            return self._closed

    def open(self, job: Job) -> None:
        """Take a request in. Raises `Overloaded` at capacity, `EngineError` for an id that is in
        flight or after close."""
        with self._changed:
            self._refuse_closed()
            if job.request_id in self._open:
                raise EngineError("a request with this id is in flight")
            if len(self._open) >= self._capacity:
                raise Overloaded(f"{self._capacity} requests are in flight")
            self._open[job.request_id] = job

    def is_open(self, job: Job) -> bool:
        """True while this very job is open."""
        with self._changed:
            return self._open.get(job.request_id) is job

    def settle(self, request_id: str) -> bool:
        """End a request. True for exactly one caller, who then owes its last event."""
        with self._changed:
            return self._open.pop(request_id, None) is not None

    def settle_all(self) -> list[str]:
        """End every open request; the caller owes each one its last event."""
        with self._changed:
            request_ids = list(self._open)
            self._open.clear()
            return request_ids

    def deliver(
        self,
        job: Job,
        rendered: RenderedPrompt,
        render_s: float,
        constraint: Constraint | None = None,
    ) -> None:
        """Hand a rendered `Submit` to the engine thread; dropped when it is not open any more."""
        with self._changed:
            if self._open.get(job.request_id) is job and isinstance(job.request, Submit):
                self._mail.rendered.append(
                    RenderedJob(job.request, rendered, job.submitted_s, render_s, constraint)
                )
                self._changed.notify()

    def abort(self, request_id: str) -> None:
        """Mark a request for ending; unknown ids and repetitions are ignored."""
        with self._changed:
            if request_id in self._open and request_id not in self._mail.aborted:
                self._mail.aborted.append(request_id)
                self._changed.notify()

    def tick(self, now_s: float) -> None:
        """Advance the time; only the latest is kept."""
        with self._changed:
            self._mail.now_s = now_s if self._mail.now_s is None else max(now_s, self._mail.now_s)
            self._changed.notify()

    def ask(self, question: Flush | Pin | Snapshot) -> None:
        """Leave a question; raises `Overloaded` when too many are waiting and `EngineError` after
        close."""
        with self._changed:
            self._refuse_closed()
            if len(self._mail.questions) >= MAX_QUESTIONS:
                raise Overloaded(f"{MAX_QUESTIONS} questions are waiting for the engine")
            self._mail.questions.append(question)
            self._changed.notify()

    def close(self) -> None:
        """Refuse everything from here on and wake the engine thread. Idempotent."""
        with self._changed:
            self._closed = self._mail.closed = True
            self._changed.notify()

    def wake(self) -> None:
        """Let a waiting `take` return: there is news elsewhere."""
        with self._changed:
            self._mail.woken = True
            self._changed.notify()

    def take(self, timeout_s: float | None) -> Mail:
        """Everything that arrived, and an empty inbox behind. Waits until there is something, but
        not past `timeout_s`: 0 doesn't wait, None waits for ever."""
        with self._changed:
            if timeout_s is None or timeout_s > 0:
                self._changed.wait_for(lambda: not self._mail.is_empty, timeout_s)
            mail, self._mail = self._mail, Mail()
            return mail

    def _refuse_closed(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")
