"""Threads that run calls of stores, and the queue of messages back to the engine thread.

Knows no stores and no blocks.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeAlias, TypeVar

Job: TypeAlias = Callable[[], None]
T = TypeVar("T")


class Io(Protocol):
    """Runs jobs, each once, in some thread, in the order they were submitted but for urgent ones. A
    job never raises."""

    def submit(self, job: Job, *, urgent: bool = False) -> None:
        """Run `job` later, or at once. Urgent jobs go before others that have not begun."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Take no more jobs, run those submitted; False when they were not done in time, and are
        given up."""
        ...


class InlineIo:
    """Runs each job at once, in the caller's thread: for stores that are memory."""

    def submit(self, job: Job, *, urgent: bool = False) -> None:
        """See `Io`."""
        job()

    def close(self, timeout_s: float) -> bool:
        """Nothing is ever left to run."""
        return True


class ThreadIo:
    """`num_threads` threads that share one queue. With one thread jobs are strictly in order.

    With a `niceness` they yield the processor to others of the process, as `nice` has it (Linux
    keeps it by thread). The threads are daemons: a store that never answers must not keep the
    process alive.
    """

    def __init__(self, name: str, num_threads: int, *, niceness: int = 0) -> None:
        self._niceness = niceness
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job, *, urgent: bool = False) -> None:
        """See `Io`. After `close` the job is dropped."""
        with self._changed:
            if self._closed:
                return
            if urgent:
                self._jobs.appendleft(job)
            else:
                self._jobs.append(job)
            self._changed.notify()

    def close(self, timeout_s: float) -> bool:
        """See `Io`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        with self._changed:
            self._jobs.clear()
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        if self._niceness:
            thread = threading.get_native_id()
            os.setpriority(
                os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + self._niceness
            )
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            job()


class CompletionQueue(Generic[T]):
    """Messages of I/O threads to the engine thread. `post` may be called from any thread, the rest
    from the engine's alone."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Called after each `post`, in the thread that posts."""
        self._messages: deque[T] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether every message was taken."""
        return not self._messages

    def post(self, message: T) -> None:
        """Leave a message for the engine thread."""
        self._messages.append(message)
        self.wake()

    def take(self) -> Iterator[T]:
        """Every message, in order, those that are posted meanwhile included."""
        while self._messages:
            yield self._messages.popleft()
