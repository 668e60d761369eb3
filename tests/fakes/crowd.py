"""Two hundred prompts for an engine over a folder, on a device that holds two of them,
and what the engine reports of each.

`python -m tests.fakes.crowd FOLDER` has an engine write them there; it is killed while it writes
one of the objects.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.cache.tiers.client import TierClients
from engine.memory import Payload
from engine.messages import (
    EngineStats,
    Failed,
    Finished,
    FromEngine,
    Snapshot,
    Started,
    Submit,
    TextDelta,
)
from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart
from engine.store.base import NamedStore
from engine.store.disk.files import Files
from engine.store.disk.store import DiskStore
from engine.types import CachePlan, PlannedEntry, Sampling
from tests.fakes.events import PATIENCE_S
from tests.fakes.harness import Harness, Wiring
from tests.fakes.runner import FakeRunner
from tests.fakes.tier_io import inline_tiers

NUM_PROMPTS: Final = 200
NUM_PAGES: Final = 40
SYSTEM: Final = Position("system", 0)
DIES_AT: Final = 500
"""The object in whose middle the writer is killed."""


@dataclass(frozen=True, slots=True)
class Told:
    """One answer, where its prefix came from (tokens by tier), and the seconds it waited below for
    nothing."""

    token_ids: Sequence[int]
    tiers: Mapping[str, int]
    wasted_s: float


class Desk:
    """Asks a running engine one prompt after the other."""

    def __init__(self, runner: FakeRunner, tiers: TierClients | None) -> None:
        self._events: queue.SimpleQueue[FromEngine] = queue.SimpleQueue()
        self._serial = itertools.count()
        self._wasted_s = 0.0
        self.harness = Harness(runner, Wiring(emit=self._events.put, tiers=tiers), {})

    def ask(self, number: int, question: str, *, tenant: str = "t") -> Told:
        """The answer to a question behind system text `number`, which is marked; fails unless there
        is one."""
        system = (TextPart(f"You keep lighthouse {number:03}.", CacheMark(300.0)),)
        prompt = Prompt((Message("user", (TextPart(question),)),), system=system)
        plan = CachePlan(readable=(SYSTEM,), writable=(PlannedEntry(SYSTEM, 300.0),))
        name = str(next(self._serial))
        self.harness.engine.submit(
            Submit(name, tenant, prompt, plan, Sampling(max_tokens=3), 1000.0)
        )
        token_ids: list[int] = []
        tiers: Mapping[str, int] = {}
        while not isinstance(event := self._events.get(timeout=PATIENCE_S), Finished):
            assert not isinstance(event, Failed), event
            if isinstance(event, Started):
                tiers = event.report.tiers
            elif isinstance(event, TextDelta):
                token_ids += event.token_ids
        before_s, self._wasted_s = (
            self._wasted_s,
            self.stats().counters["cache_wasted_wait_seconds_total"],
        )
        return Told(token_ids, tiers, self._wasted_s - before_s)

    def ask_all(self, question: str, *, tenant: str = "t") -> list[Told]:
        """All prompts with this question, in their order."""
        return [self.ask(number, question, tenant=tenant) for number in range(NUM_PROMPTS)]

    def stats(self) -> EngineStats:
        """The engine's own counters and gauges. For when nothing is in flight."""
        self.harness.engine.ask(Snapshot("stats"))
        event = self._events.get(timeout=PATIENCE_S)
        assert isinstance(event, EngineStats), event
        return event


@contextmanager
def asked(
    store: DiskStore | None, runner: FakeRunner | None = None, *, inline: bool = False
) -> Iterator[Desk]:
    """An engine over `store`, which must be open, or without tiers. With `inline` it writes in its
    own thread, and so in the same order every time; else with threads and clock of a real one."""
    tiers = None
    if store is not None:
        tiers = inline_tiers(("ssd", store)) if inline else TierClients([NamedStore("ssd", store)])
    desk = Desk(runner or FakeRunner(num_pages=NUM_PAGES), tiers)
    with ExitStack() as stack:
        stack.callback(desk.harness.stop)
        desk.harness.engine.start()
        yield desk


class Deadly(Files):
    """Kills this process when the object `DIES_AT` is half written."""

    def __init__(self) -> None:
        super().__init__()
        self._num_left = DIES_AT

    def write_new(self, path: Path, parts: Sequence[Payload], *, fsync: bool) -> int:
        self._num_left -= 1
        if not self._num_left:
            super().write_new(path, parts[:1], fsync=fsync)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write_new(path, parts, fsync=fsync)


def main(folder: str) -> None:
    with DiskStore(Path(folder), nbytes=1 << 30, files=Deadly()) as store, asked(store) as desk:
        desk.ask_all("Which one is it?")


if __name__ == "__main__":
    main(*sys.argv[1:])
