"""Answers that are generated while no client waits (`background: true`), and their events.

Knows no wire format and no engine: a `Work` generates the answer, and writes the events of its
stream as to a client. They can be read from any event on.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import structlog

from gateway.calls.exchange import Reply
from gateway.clock import Clock
from gateway.errors import Overloaded

MAX_JOBS: Final = 1024
"""Of all tenants, waiting and running: further ones are refused."""

KEPT_S: Final = 600.0
"""The events of an answer can be read for so long after its end."""

MAX_KEPT_NBYTES: Final = 64 * 1024**2
"""Of the events of all answers that have ended."""


@dataclass(slots=True)
class EventLog:
    """A `Client` that is never gone: keeps the events written to it, in order. `events[i]` is event
    number i of its stream."""

    events: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    over: bool = False
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, max_nbytes: int) -> bytes:
        """Nothing: the request has been read."""
        return b""

    def hold(self, nbytes: int) -> None:
        """Nothing is collected for it."""

    def hand_over(self) -> AbstractContextManager[object]:
        """Does nothing: the maker of the answer holds what the request takes."""
        return nullcontext()

    async def send(self, reply: Reply) -> None:
        """Ignores an error instead of a stream: its owner keeps it, and the log has no events."""

    async def deliver(self) -> None:
        """Nobody waits for it."""

    async def open(self, headers: Mapping[str, str]) -> None:
        """The headers are not kept."""

    async def write(self, data: bytes) -> None:
        """Comments, which only keep a connection open, are left out."""
        for event in data.split(b"\n\n"):
            if event and not event.startswith(b":"):
                self.events.append(event + b"\n\n")
                self.nbytes += len(event)
        self._more.set()

    def end(self) -> None:
        """No more comes."""
        self.over = True
        self._more.set()

    async def follow(self, first: int, silence_s: float | None) -> AsyncGenerator[bytes, None]:
        """Every event from number `first` on, as it comes, to the end; empty bytes after each
        `silence_s` without any."""
        while True:
            for event in self.events[first:]:
                first += 1
                yield event
            if first < len(self.events):
                continue
            if self.over:
                return
            self._more.clear()
            try:
                async with asyncio.timeout(silence_s):
                    await self._more.wait()
            except TimeoutError:
                yield b""


_log = structlog.get_logger("pcg.background")

Hold: TypeAlias = Callable[[], AbstractContextManager[object]]

Work: TypeAlias = Callable[[EventLog], Coroutine[Any, Any, None]]
"""Generates an answer and writes its events. When it returns, its end is recorded and kept."""


class EncodeState(Protocol):
    """Encodes a response before its end."""

    def __call__(self, *, begun: bool) -> bytes: ...


@dataclass(slots=True, eq=False)
class BackgroundJob:
    """One answer that is being generated: `task` does it, `state` encodes it so far, `held` ends
    with it."""

    tenant: str
    id: str
    state: EncodeState
    log: EventLog
    task: asyncio.Task[None]
    held: ExitStack

    def body(self) -> bytes:
        """The response as it is now."""
        return self.state(begun=bool(self.log.events))


async def _safely(work: Coroutine[Any, Any, None], job_id: str) -> None:
    """A bug in one job ends no other. Logged by kind and place only: a message may quote the
    prompt."""
    try:
        await work
    except Exception as error:
        _log.error(
            "bug",
            id=job_id,
            error=type(error).__name__,
            at=traceback.format_tb(error.__traceback__),
        )


class Background:
    """Owned by the event loop. Takes jobs while `run` does."""

    def __init__(self, clock: Clock, *, max_kept_nbytes: int = MAX_KEPT_NBYTES) -> None:
        self._clock = clock
        self._max_kept_nbytes = max_kept_nbytes
        self._open: dict[tuple[str, str], BackgroundJob] = {}
        self._ended: OrderedDict[tuple[str, str], tuple[float, EventLog]] = OrderedDict()
        self._ended_nbytes = 0
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled, which ends every job."""
        async with asyncio.TaskGroup() as self._group:
            await asyncio.Event().wait()

    def begin(
        self, tenant: str, job_id: str, state: EncodeState, work: Work, hold: Hold = nullcontext
    ) -> EventLog:
        """Have `work` generate an answer, whose events can be followed at once. Raises `Overloaded`
        where there are too many.

        The context of `hold` is entered until the end of the work, also of work that is cancelled
        before it begins.
        """
        if self._group is None or len(self._open) >= MAX_JOBS:
            raise Overloaded(
                "too many background responses are in progress; please try again",
                retry_after_s=10.0,
            )
        log = EventLog()
        held = ExitStack()
        held.enter_context(hold())
        job = BackgroundJob(
            tenant, job_id, state, log, self._group.create_task(_safely(work(log), job_id)), held
        )
        self._open[tenant, job_id] = job
        job.task.add_done_callback(lambda _: self._end(job))
        return log

    def running(self, tenant: str, job_id: str) -> BackgroundJob | None:
        """The tenant's job that is not over."""
        return self._open.get((tenant, job_id))

    def log(self, tenant: str, job_id: str) -> EventLog | None:
        """The events of the tenant's job, over or not, while they are kept."""
        self._forget()
        if (job := self.running(tenant, job_id)) is not None:
            return job.log
        _, log = self._ended.get((tenant, job_id), (0.0, None))
        return log

    def forget(self, tenant: str, job_id: str) -> None:
        """Drop the events of a job that is over."""
        _, log = self._ended.pop((tenant, job_id), (0.0, None))
        self._ended_nbytes -= 0 if log is None else log.nbytes

    async def cancel(self, job: BackgroundJob) -> bool:
        """Afterwards it is over. Whether it was ended by this, and not by its own end."""
        job.task.cancel()
        await asyncio.wait((job.task,))
        return job.task.cancelled()

    def _end(self, job: BackgroundJob) -> None:
        job.log.end()
        job.held.close()
        del self._open[job.tenant, job.id]
        self._ended[job.tenant, job.id] = (self._clock(), job.log)
        self._ended_nbytes += job.log.nbytes
        self._forget()

    def _forget(self) -> None:
        """Drop the events of the oldest answers, as many as have to go."""
        old_s = self._clock() - KEPT_S
        while self._ended and (
            self._ended_nbytes > self._max_kept_nbytes
            or next(iter(self._ended.values()))[0] < old_s
        ):
            _, (_, log) = self._ended.popitem(last=False)
            self._ended_nbytes -= log.nbytes
