"""Tiers whose I/O happens in the test's own thread: at once, or when the test says so,
in the order it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.cache.tiers.client import TierClients
from engine.cache.tiers.io import InlineIo, Io, Job
from engine.store.base import BlockStore, NamedStore


@dataclass
class ManualIo:
    """Holds jobs until they are run; `is_open` runs them at once."""

    jobs: deque[Job] = field(default_factory=deque)
    is_open: bool = True
    is_closed: bool = False

    def submit(self, job: Job, *, urgent: bool = False) -> None:
        if self.is_open:
            job()
        elif urgent:
            self.jobs.appendleft(job)
        else:
            self.jobs.append(job)

    def run(self, num_jobs: int | None = None) -> None:
        """Run some of the jobs held, or all."""
        while self.jobs and num_jobs != 0:
            self.jobs.popleft()()
            num_jobs = None if num_jobs is None else num_jobs - 1

    def close(self, timeout_s: float) -> bool:
        done = not self.jobs or self.is_open
        self.is_closed = True
        self.run(None if done else 0)
        self.jobs.clear()
        return done


@dataclass
class StillClock:
    """Monotonic seconds that move only when told."""

    now_s: float = 50.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def inline_tiers(
    *stores: tuple[str, BlockStore], clock: Callable[[], float] | None = None
) -> TierClients:
    """Every call of a store happens at once."""
    return manual_tiers(
        *((name, store, InlineIo(), InlineIo()) for name, store in stores), clock=clock
    )


def manual_tiers(
    *tiers: tuple[str, BlockStore, Io, Io], clock: Callable[[], float] | None = None
) -> TierClients:
    """Each tier with its name, store, reader and writer."""
    io = {name: (reader, writer) for name, _, reader, writer in tiers}
    return TierClients(
        [NamedStore(name, store) for name, store, _, _ in tiers],
        clock=clock or StillClock(),
        start_io=lambda tier: io[tier.name],
    )
