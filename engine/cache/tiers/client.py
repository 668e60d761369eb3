"""The client of one tier below the device: calls go to its I/O threads, and messages come back.

Knows objects and keys, but no blocks, leases or plans.

All methods are for the engine thread and none waits, but where the store is memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final

from engine.cache.tiers.calls import (
    TierCall,
    TierDelete,
    TierDone,
    TierExpire,
    TierPurge,
    TierQuery,
    TierQueryResult,
    TierRead,
    TierReadResult,
    TierRefresh,
    TierWrite,
)
from engine.cache.tiers.io import CompletionQueue, InlineIo, Io, ThreadIo
from engine.cache.tree.stats import TierCounters, TierGauges, TierStats
from engine.store.base import NamedStore
from engine.store.memory import MemoryStore

_log = logging.getLogger(__name__)

NUM_READERS: Final = 2
WRITER_NICENESS: Final = 5
"""The niceness of the threads that write.

Writing 92 MB to a disk keeps a core busy for half a second, which the next request would pay for.
A thread so nice still has a quarter of a core where all are busy, which is more than what prefill
has to write.
"""

QUEUE_NBYTES: Final = 256 * 1024**2
"""Bytes that may wait to be written to one tier; more are dropped."""

STALL_S: Final = 0.25
"""A tier that owes answers and gave none for so long is *stuck*: nobody waits for it, nobody asks
it, until it answers."""

COMPLAINT_S: Final = 60.0
"""Pause between two log lines about the same trouble of the same tier."""

WEIGHT: Final = 0.3
"""The weight of the latest measurement in a running average."""


class Average:
    """A running average of measurements, or a guess before the first one."""

    def __init__(self, guess: float) -> None:
        self.value = guess
        self._is_guess = True

    def add(self, measured: float) -> None:
        """Take a measurement in."""
        self.value = measured if self._is_guess else self.value + WEIGHT * (measured - self.value)
        self._is_guess = False


class TierClient:
    """A store, the `reader` that runs its queries and reads, and the `writer` that runs everything
    else, strictly in order."""

    def __init__(
        self,
        tier: NamedStore,
        completions: CompletionQueue[TierDone],
        reader: Io,
        writer: Io,
        clock: Callable[[], float],
    ) -> None:
        self.name = tier.name
        self.counters = TierCounters()
        self.queued_nbytes = 0
        self.num_refreshing = 0
        """Objects whose new expiry is on its way."""
        self.bandwidth = Average(1e9)
        """Bytes per second of reads."""
        self.latency = Average(0.001)
        """Seconds until a query is answered."""
        self.progress_s = 0.0
        """The time at which the tier last answered, or began to owe an answer."""
        self._store = tier.store
        self._completions = completions
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._num_owed = 0
        self._is_expiring = False
        self._unpinned_nbytes = 0
        """Bytes that the store still counts as pinned, and will hear are not."""
        self._purges: dict[bytes, bool] = {}
        """Prefixes of keys that the store may still have though they are to be forgotten: whether
        it failed to."""
        self._quiet_until_s: dict[str, float] = {}

    @property
    def stats(self) -> TierStats:
        """Counts, and the state of the tier now."""
        stats = self._store.stats
        num_errors = self.counters.num_errors + stats.num_errors
        gauges = TierGauges(
            nbytes=stats.nbytes,
            num_items=stats.num_items,
            queued_nbytes=self.queued_nbytes,
            bandwidth_nbytes_per_s=self.bandwidth.value,
            latency_s=self.latency.value,
            stuck=int(self.is_stuck),
            up=int(stats.problem is None and not self.is_stuck),
            pinned_nbytes=max(stats.pinned_nbytes - self._unpinned_nbytes, 0),
        )
        return TierStats(replace(self.counters, num_errors=num_errors), gauges)

    @property
    def is_stuck(self) -> bool:
        """See `STALL_S`."""
        return self._num_owed > 0 and self._clock() - self.progress_s >= STALL_S

    def is_forgetting(self, key: bytes) -> bool:
        """Whether the store may still have, under such a key, what is to be forgotten: it is not
        read."""
        return any(key.startswith(prefix) for prefix in self._purges)

    def load_s(self, nbytes: int) -> float:
        """The expected seconds of a read of so many bytes."""
        return self.latency.value + nbytes / max(self.bandwidth.value, 1.0)

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes more may wait to be written. An empty queue takes anything."""
        return not self.queued_nbytes or self.queued_nbytes + nbytes <= QUEUE_NBYTES

    def takes(self, key: bytes, nbytes: int) -> bool:
        """Whether an object may wait to be written: not where a later purge would take it along, or
        there is no room."""
        return self.has_room(nbytes) and not any(
            failed and key.startswith(prefix) for prefix, failed in self._purges.items()
        )

    # Calls ----------------------------------------------------------------------------------------

    def ask(self, query: TierQuery) -> None:
        """Find out what is there."""
        self._owe()
        self._run(self._reader, query, urgent=True)

    def read(self, read: TierRead) -> None:
        """Get one object's body."""
        self._owe()
        self._run(self._reader, read)

    def write(self, write: TierWrite) -> None:
        """Store an object. The caller saw that there is room for its bytes."""
        self.queued_nbytes += len(write.body)
        self._run(self._writer, write)

    def refresh(self, refresh: TierRefresh) -> None:
        """Move the expiry of objects."""
        self.num_refreshing += len(refresh.expiries)
        self._unpinned_nbytes += refresh.unpinned_nbytes
        self._run(self._writer, refresh)

    def expire(self, now_s: float) -> None:
        """Let the tier drop some of what has expired, and try failed purges again."""
        for prefix in [prefix for prefix, failed in self._purges.items() if failed]:
            self.purge(TierPurge(prefix))
        if not self.is_stuck and not self._is_expiring:
            self._is_expiring = True
            self._run(self._writer, TierExpire(now_s))

    def delete(self, keys: Sequence[bytes]) -> None:
        """Forget objects."""
        self._run(self._writer, TierDelete(keys))

    def purge(self, purge: TierPurge) -> None:
        """Forget every object whose key begins with a prefix.

        This includes objects on their way to the store. If the store fails, `expire` tries again,
        and none of the objects is read before it has succeeded.
        """
        self._purges[purge.prefix] = False
        self._run(self._writer, purge)

    def close(self, timeout_s: float) -> bool:
        """Write what is queued; False when that took too long and was given up."""
        begin_s = time.monotonic()
        is_written = self._writer.close(timeout_s)
        return self._reader.close(max(0.0, timeout_s - (time.monotonic() - begin_s))) and is_written

    def count(self, done: TierDone) -> None:
        """Learn from the end of a call, before anybody else acts on its result."""
        if done.error:
            self.counters.num_errors += 1
            self._complain(f"a tier failed with {done.error}")
        if isinstance(done.call, TierQuery | TierRead):
            self._num_owed -= 1
            self.progress_s = self._clock()
        match done.call, done.result:
            case TierQuery(), TierQueryResult() as result:
                self.latency.add(done.seconds)
                self._count_corrupt(result.num_corrupt, result.unreadable)
            case TierRead() as read, TierReadResult(body=None) as result:
                self._count_corrupt(int(result.is_corrupt), [read.label.key])
            case TierRead(), TierReadResult(body=memoryview() as body):
                self.counters.num_hits += 1
                self.counters.read_nbytes += len(body)
                self.counters.read_seconds += done.seconds
                self.bandwidth.add(len(body) / max(done.seconds, 1e-6))
            case TierWrite() as write, num_written:
                self.queued_nbytes -= len(write.body)
                self.counters.written_nbytes += num_written if isinstance(num_written, int) else 0
                self.counters.num_dropped_writes += num_written is None
            case TierRefresh() as refresh, _:
                self.num_refreshing -= len(refresh.expiries)
                self._unpinned_nbytes -= refresh.unpinned_nbytes
            case TierExpire(), _:
                self._is_expiring = False
            case TierPurge() as purge, None:
                self._purges[purge.prefix] = True
                self._complain("a tier does not forget what was flushed")
            case TierPurge() as purge, _:
                self._purges.pop(purge.prefix, None)

    def late(self) -> None:
        """Count a request that has stopped waiting for this tier."""
        self.counters.num_late += 1
        self._complain("a tier does not answer in time")

    # Inside ---------------------------------------------------------------------------------------

    def _run(self, io: Io, call: TierCall, *, urgent: bool = False) -> None:
        io.submit(partial(self._work, call), urgent=urgent)

    def _work(self, call: TierCall) -> None:
        """Call the store, in an I/O thread."""
        result, error = None, ""
        begin_s = time.perf_counter()
        try:
            result = call.run(self._store)
        # Whatever a store's libraries raise: a broken tier costs speed, never a request.
        except Exception as raised:
            error = type(raised).__name__
        seconds = time.perf_counter() - begin_s
        self._completions.post(TierDone(self.name, call, result, seconds, error))

    def _count_corrupt(self, num_corrupt: int, keys: Sequence[bytes]) -> None:
        """Count corrupt objects, log them, and delete those under `keys`; nothing where there are
        none."""
        if not num_corrupt:
            return
        self.counters.num_corrupt += num_corrupt
        self._complain("a tier gave back a damaged or foreign object")
        if keys:
            self.delete(keys)

    def _complain(self, event: str) -> None:
        """One line per kind of trouble and minute."""
        now_s = self._clock()
        if now_s >= self._quiet_until_s.get(event, now_s):
            self._quiet_until_s[event] = now_s + COMPLAINT_S
            _log.warning(event, extra={"fields": {"tier": self.name, **asdict(self.counters)}})

    def _owe(self) -> None:
        if not self._num_owed:
            self.progress_s = self._clock()
        self._num_owed += 1


def start_io(tier: NamedStore) -> tuple[Io, Io]:
    """The reader and the writer of a tier: the engine thread where the store is memory, else
    threads of its own."""
    if isinstance(tier.store, MemoryStore):
        return InlineIo(), InlineIo()
    return (
        ThreadIo(f"{tier.name}-read", NUM_READERS),
        ThreadIo(f"{tier.name}-write", 1, niceness=WRITER_NICENESS),
    )


class TierClients:
    """The clients of one engine's tiers, in the order they are read, and the queue of all their
    messages. Its I/O threads run until the clients are closed."""

    def __init__(
        self,
        stores: Sequence[NamedStore] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        start_io: Callable[[NamedStore], tuple[Io, Io]] = start_io,
    ) -> None:
        self.clock = clock
        self.completions: CompletionQueue[TierDone] = CompletionQueue()
        self.clients = tuple(
            TierClient(tier, self.completions, *start_io(tier), clock) for tier in stores
        )
