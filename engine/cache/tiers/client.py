"""One tier below the device and the threads that move its bytes.

Knows objects and keys, but no blocks, leases or plans.

All methods are for the engine thread and none waits, but where the store is memory. Results come
back through the mailbox.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, TypeVar

from engine.cache.stats import TierCounters, TierGauges
from engine.cache.tiers.io import CompletionQueue, InlineIo, Io, ThreadIo
from engine.cache.tiers.object_format import (
    ObjectKey,
    ObjectNamespace,
    StoredEntry,
    decode_entry,
    decode_object,
)
from engine.memory import Payload
from engine.store.base import Found, Item, NamedStore, delete_prefix
from engine.store.memory import MemoryStore

_log = logging.getLogger(__name__)

NUM_READERS: Final = 2
WRITER_NICENESS: Final = 5
"""Writing 92 MB to a disk keeps a core busy for half a second, which the next request would pay
for. A thread so nice still has a quarter of a core where all are busy, which is more than what
prefill has to write."""

QUEUE_NBYTES: Final = 256 * 1024**2
"""Bytes that may wait to be written to one tier; more are dropped."""

STALL_S: Final = 0.25
"""A tier that owes answers and gave none for so long is *stuck*: nobody waits for it, nobody asks
it, until it answers."""

COMPLAINT_S: Final = 60.0
"""How long the log is spared another line about the same trouble of the same tier."""

WEIGHT: Final = 0.3
"""Of the latest measurement in a running average."""

_NOT_STORED: Final = -1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class TierQuery:
    """What a request wants to know of a tier: which of `objects` it has, and the entries under
    `entries`."""

    objects: Sequence[bytes]
    entries: Sequence[ObjectKey]
    seal: ObjectNamespace
    now_s: float


@dataclass(frozen=True, slots=True, repr=False)
class TierQueryResult:
    """One answer per object and one per entry; None for what is not there or not acceptable.
    `num_corrupt` of them were damaged or foreign; those under `refused` are in the store still."""

    objects: list[Found | None]
    entries: list[StoredEntry | None]
    num_corrupt: int
    refused: list[bytes]


@dataclass(frozen=True, slots=True, repr=False)
class TierReadResult:
    """A read that ended: `body` is None when the object was gone, or was not what it should be
    (`is_corrupt`)."""

    body: memoryview | None
    is_corrupt: bool


@dataclass(frozen=True, slots=True, repr=False)
class PendingWrite:
    """An object to be stored, whose payload of about `nbytes` the tier's own thread makes; `worth`
    as in `Item`. `replaces`: it is not always the same, so what is under the key is overwritten."""

    key: bytes
    expires_at_s: float
    nbytes: int
    worth: float
    replaces: bool
    make: Callable[[], Payload]


class Average:
    """A running average of what was measured, or a guess before anything was."""

    def __init__(self, guess: float) -> None:
        self.value = guess
        self._is_guess = True

    def add(self, measured: float) -> None:
        """Take a measurement in."""
        self.value = measured if self._is_guess else self.value + WEIGHT * (measured - self.value)
        self._is_guess = False


class TierClient:
    """A store, the `reader` that runs its finds and gets, and the `writer` that runs everything
    else, strictly in order."""

    def __init__(
        self,
        tier: NamedStore,
        mailbox: CompletionQueue,
        reader: Io,
        writer: Io,
        clock: Callable[[], float],
    ) -> None:
        self.name = tier.name
        self.counters = TierCounters()
        self.queued_nbytes = 0
        self.num_refreshing = 0
        """Objects whose new expiry is on its way."""
        self._unpinned_nbytes = 0
        """What is pinned no more, as the store will hear."""
        self.bandwidth = Average(1e9)
        """Bytes per second of reads."""
        self.latency = Average(0.001)
        """Seconds until a question is answered."""
        self.progress_s = 0.0
        """When the lane last answered, or began to owe an answer."""
        self._store = tier.store
        self._mailbox = mailbox
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._num_owed = 0
        self._is_told = False
        self._purges: dict[bytes, bool] = {}
        """Prefixes of keys that the store may still have though they are to be forgotten: whether
        it failed to."""
        self._quiet_until_s: dict[str, float] = {}

    @property
    def gauges(self) -> TierGauges:
        """What the tier holds and does now."""
        stats = self._store.stats
        return TierGauges(
            nbytes=stats.nbytes,
            num_items=stats.num_items,
            queued_nbytes=self.queued_nbytes,
            bandwidth_nbytes_per_s=self.bandwidth.value,
            latency_s=self.latency.value,
            stuck=int(self.is_stuck),
            up=int(stats.problem is None and not self.is_stuck),
            pinned_nbytes=max(stats.pinned_nbytes - self._unpinned_nbytes, 0),
        )

    @property
    def is_stuck(self) -> bool:
        """See `STALL_S`."""
        return self._num_owed > 0 and self._clock() - self.progress_s >= STALL_S

    def is_forgetting(self, key: bytes) -> bool:
        """Whether what the store has under such a key may be what is to be forgotten: it is not
        read."""
        return any(key.startswith(prefix) for prefix in self._purges)

    def load_s(self, nbytes: int) -> float:
        """How long a read of so many bytes should take."""
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

    # Reads ----------------------------------------------------------------------------------------

    def ask(self, question: TierQuery, then: Callable[[TierQueryResult | None], None]) -> None:
        """Find out what is there; None when the store failed."""

        def look() -> TierQueryResult:
            num_damaged = self._store.stats.num_damaged
            found = self._store.find_many(question.objects, question.now_s)
            keys = [label.key for label in question.entries]
            payloads = self._store.get_many(keys, question.now_s) if keys else []
            # Another thread's finds are among these: never more than what is missing here.
            num_damaged = min(
                self._store.stats.num_damaged - num_damaged, [*found, *payloads].count(None)
            )
            pairs = zip(payloads, question.entries, strict=True)
            entries = [_open_entry(payload, label, question.seal) for payload, label in pairs]
            triples = zip(keys, payloads, entries, strict=True)
            refused = [
                key for key, payload, entry in triples if payload is not None and entry is None
            ]
            return TierQueryResult(found, entries, num_damaged + len(refused), refused)

        def told(answer: TierQueryResult | None, seconds: float) -> None:
            self._answered()
            if answer is not None:
                self.latency.add(seconds)
                self._distrust(answer.num_corrupt, answer.refused)
            then(answer)

        self._owe()
        self._run(self._reader, look, told, urgent=True)

    def read(
        self,
        label: ObjectKey,
        seal: ObjectNamespace,
        now_s: float,
        then: Callable[[TierReadResult], None],
    ) -> None:
        """Get one object's body."""

        def get() -> TierReadResult:
            num_damaged = self._store.stats.num_damaged
            (payload,) = self._store.get_many([label.key], now_s)
            if payload is None:
                return TierReadResult(None, is_corrupt=self._store.stats.num_damaged > num_damaged)
            body = decode_object(payload, label, seal)
            return TierReadResult(body, is_corrupt=body is None)

        def told(got: TierReadResult | None, seconds: float) -> None:
            self._answered()
            got = got or TierReadResult(None, is_corrupt=False)
            if got.body is not None:
                self.counters.num_hits += 1
                self.counters.read_nbytes += len(got.body)
                self.counters.read_seconds += seconds
                self.bandwidth.add(len(got.body) / max(seconds, 1e-6))
            self._distrust(int(got.is_corrupt), [label.key])
            then(got)

        self._owe()
        self._run(self._reader, get, told)

    def late(self) -> None:
        """A request has stopped waiting for this tier."""
        self.counters.num_late += 1
        self._complain("a tier does not answer in time")

    # Writes ---------------------------------------------------------------------------------------

    def put(self, item: PendingWrite, then: Callable[[bool], None]) -> None:
        """Store an object, and then say whether the store has it. The caller saw that there is room
        for its bytes.

        One that is there already is not written again, unless it may have changed, and none is ever
        kept shorter: another host may have promised more.
        """

        def store() -> int:
            key, expires_at_s = item.key, item.expires_at_s
            if not item.replaces:
                (is_held,) = self._store.refresh_many({key: expires_at_s}, only_longer=True)
                if is_held:
                    return 0
            made = Item(key, item.make(), expires_at_s, item.worth)
            (is_held,) = self._store.put_many([made], only_longer=True)
            return item.nbytes if is_held else _NOT_STORED

        def told(nbytes: int | None, seconds: float) -> None:
            self.queued_nbytes -= item.nbytes
            is_stored = nbytes is not None and nbytes != _NOT_STORED
            self.counters.written_nbytes += nbytes if nbytes is not None and is_stored else 0
            self.counters.num_dropped_writes += not is_stored
            then(is_stored)

        self.queued_nbytes += item.nbytes
        self._run(self._writer, store, told)

    def refresh(self, expiries: Mapping[bytes, float]) -> None:
        """Tell the tier until when objects are kept. None is ever kept shorter."""

        def told(result: object, seconds: float) -> None:
            self.num_refreshing -= len(expiries)

        self.num_refreshing += len(expiries)
        self._run(self._writer, lambda: self._store.refresh_many(expiries, only_longer=True), told)

    def curtail(self, expiries: Mapping[bytes, float], unpinned_nbytes: int) -> None:
        """Tell the tier until when objects are kept that were kept longer so far, `unpinned_nbytes`
        of KV for ever."""

        def told(result: object, seconds: float) -> None:
            self._unpinned_nbytes -= unpinned_nbytes

        self._unpinned_nbytes += unpinned_nbytes
        self._run(self._writer, lambda: self._store.refresh_many(expiries), told)

    def tell_time(self, now_s: float) -> None:
        """Let the tier drop some of what has expired, though nobody asks it for anything, and what
        it failed to forget."""
        for prefix in [prefix for prefix, failed in self._purges.items() if failed]:
            self.purge(prefix, lambda num_keys: None)
        if not self.is_stuck and not self._is_told:
            self._is_told = True

            def told(result: object, seconds: float) -> None:
                self._is_told = False

            self._run(self._writer, lambda: self._store.expire(now_s), told)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Forget objects."""
        self._run(self._writer, lambda: self._store.delete_many(keys), _ignore)

    def purge(self, prefix: bytes, then: Callable[[int | None], None]) -> None:
        """Forget every object whose key begins with `prefix`, those on their way to the store
        included; then say how many, or None when the store failed: it is told again with the time,
        and none of them is read before it has done so."""

        def forget() -> int | None:
            try:
                return delete_prefix(self._store, prefix)
            except OSError:  # it does not tell what it has
                return None

        def told(num_keys: int | None, seconds: float) -> None:
            if num_keys is None:
                self._purges[prefix] = True
                self._complain("a tier does not forget what was flushed")
            else:
                self._purges.pop(prefix, None)
            then(num_keys)

        self._purges[prefix] = False
        self._run(self._writer, forget, told)

    def close(self, timeout_s: float) -> bool:
        """Write what is queued; False when that took too long and was given up."""
        begin_s = time.monotonic()
        is_written = self._writer.close(timeout_s)
        return self._reader.close(max(0.0, timeout_s - (time.monotonic() - begin_s))) and is_written

    # Inside ---------------------------------------------------------------------------------------

    def _run(
        self,
        io: Io,
        work: Callable[[], T],
        told: Callable[[T | None, float], None],
        *,
        urgent: bool = False,
    ) -> None:
        """Do `work` in `io` and have the engine thread told its result and seconds; a store that
        raises has none."""

        def job() -> None:
            result: T | None = None
            begin_s = time.perf_counter()
            try:
                result = work()
            # Whatever a store's libraries raise: a broken tier costs speed, never a request.
            except Exception as error:
                self._mailbox.post(partial(self._failed, type(error).__name__))
            seconds = time.perf_counter() - begin_s
            self._mailbox.post(lambda: told(result, seconds))

        io.submit(job, urgent=urgent)

    def _failed(self, kind: str) -> None:
        self.counters.num_errors += 1
        self._complain(f"a tier failed with {kind}")

    def _distrust(self, num_corrupt: int, keys: Sequence[bytes]) -> None:
        """Count what was not what it should be, say so, and forget the objects under `keys`.
        Nothing when there are none."""
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

    def _answered(self) -> None:
        self._num_owed -= 1
        self.progress_s = self._clock()


def open_clients(
    tiers: Sequence[NamedStore], mailbox: CompletionQueue, clock: Callable[[], float]
) -> tuple[TierClient, ...]:
    """A lane per tier: in the engine thread where the store is memory, else with threads of its
    own."""
    lanes = []
    for tier in tiers:
        if isinstance(tier.store, MemoryStore):
            reader: Io = InlineIo()
            writer: Io = InlineIo()
        else:
            reader = ThreadIo(f"{tier.name}-read", NUM_READERS)
            writer = ThreadIo(f"{tier.name}-write", 1, niceness=WRITER_NICENESS)
        lanes.append(TierClient(tier, mailbox, reader, writer, clock))
    return tuple(lanes)


def _open_entry(
    payload: Payload | None, label: ObjectKey, seal: ObjectNamespace
) -> StoredEntry | None:
    body = None if payload is None else decode_object(payload, label, seal)
    return None if body is None else decode_entry(body)


def _ignore(result: object, seconds: float) -> None:
    """Nobody waits for it."""
