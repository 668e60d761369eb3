"""All tiers below the device as one: what is read from them, what is written to every one of them.
Knows no pages.

For the engine thread alone, and nothing here waits: results come back through the mailbox and are
taken in by `poll`. What is written is owned by its job, and can be read from there until every tier
has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

from engine.cache.tiers.client import PendingWrite, TierClient, open_clients
from engine.cache.tiers.fetch import Fetch
from engine.cache.tiers.io import CompletionQueue
from engine.cache.tiers.object_format import ObjectKey, encode_object
from engine.cache.tiers.reader import TierReader
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.namespace import ObjectNamespace
from engine.cache.tree.stats import CacheCounters, TierStats
from engine.memory import Payload
from engine.store.base import NamedStore

REFRESH_S: Final = 0.25
"""How long new expiries are collected before the tiers are told. A kill in between loses them."""


@dataclass(frozen=True, slots=True, repr=False)
class ObjectSpec:
    """An object about to be written: what it is, whose, and until when it is kept. `prefill_tokens`
    is what it saves, see `engine/cache/tree/eviction.py`. `replaces`: its body may change."""

    label: ObjectKey
    seal: ObjectNamespace
    expires_at_s: float
    prefill_tokens: float = 0.0
    replaces: bool = False


@dataclass(slots=True, eq=False, repr=False)
class _Write:
    """Bytes on their way to `num_left` tiers: they can be read from here meanwhile."""

    body: Payload
    expires_at_s: float
    tier: str
    num_left: int
    is_stored: bool = False


@dataclass(slots=True, eq=False, repr=False)
class _Purge:
    """A flush that some tiers have not finished."""

    num_left: int
    then: Callable[[int | None], None]
    num_objects: int | None = 0


class Tiers:
    """The lanes, in the order they are read; everything is written to all of them. Without stores
    nothing is ever found, and nothing has to be written. A context manager: leaving it gives up
    what `close` has not written."""

    def __init__(
        self,
        stores: Sequence[NamedStore],
        *,
        clock: Callable[[], float] = time.monotonic,
        open_all: Callable[
            [Sequence[NamedStore], CompletionQueue, Callable[[], float]], tuple[TierClient, ...]
        ] = open_clients,
    ) -> None:
        self._clock = clock
        self._mailbox = CompletionQueue()
        self._lanes = open_all(stores, self._mailbox, clock)
        self._writes: dict[bytes, _Write] = {}
        self._fresh: dict[bytes, float] = {}
        self._fresh_since_s = 0.0
        self.attach(Geometry(1, 1, 1), CacheCounters())

    def attach(self, geometry: Geometry, counters: CacheCounters) -> None:
        """Work for a cache of this geometry, and count there."""
        self.reads = TierReader(
            self._lanes, geometry, counters, self._clock, self._writes.get, self.tell_refreshes
        )

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, whenever there is something to poll."""
        self._mailbox.wake = wake

    @property
    def is_empty(self) -> bool:
        """Whether there are no stores."""
        return not self._lanes

    @property
    def has_news(self) -> bool:
        """Whether `poll` would take something in."""
        return not self._mailbox.is_empty

    def wait_s(self) -> float | None:
        """Seconds until `poll` should be called though nothing came; None while nothing is
        pending."""
        due_s = self.reads.late_at_s()
        if self._fresh:
            due_s = min(due_s, self._fresh_since_s + REFRESH_S)
        return None if due_s == float("inf") else max(0.0, due_s - self._clock())

    def stats(self) -> dict[str, TierStats]:
        """Counters and gauges by tier."""
        return {lane.name: TierStats(lane.counters, lane.gauges) for lane in self._lanes}

    def tell_time(self, now_s: float) -> None:
        """Let every tier drop some of what has expired, but nothing whose new expiry it does not
        know yet."""
        self.tell_refreshes()
        for lane in self._lanes:
            lane.tell_time(now_s)
        self._mailbox.drain()

    def poll(self) -> None:
        """Take in what came, stop waiting for what is late, and tell the tiers new expiries that
        are due."""
        self._mailbox.drain()
        self.reads.give_up_late()
        self._mailbox.drain()
        if self._fresh and self._clock() >= self._fresh_since_s + REFRESH_S:
            self.tell_refreshes()

    def start(self, fetch: Fetch) -> None:
        """Read what there is for a request; see `TierReader.start`."""
        self.reads.start(fetch)
        self.poll()

    # Writing --------------------------------------------------------------------------------------

    def has_room(self, nbytes: int) -> bool:
        """Whether some tier would queue so many bytes."""
        return any(lane.has_room(nbytes) for lane in self._lanes)

    def put(self, sealed: ObjectSpec, body: Payload, then: Callable[[bool], None]) -> None:
        """Write an object to every tier that takes it; `then` says whether any has it. One is
        dropped elsewhere."""
        nbytes, lanes = len(body), []
        for lane in self._lanes:
            if lane.takes(sealed.label.key, nbytes):
                lanes.append(lane)
            else:
                lane.counters.num_dropped_writes += 1
        if not lanes:
            then(False)
            return
        key = sealed.label.key
        write = self._writes[key] = _Write(body, sealed.expires_at_s, lanes[0].name, len(lanes))
        self._fresh.pop(key, None)
        make = partial(encode_object, sealed.label, sealed.seal, body)
        for lane in lanes:
            item = PendingWrite(
                key,
                sealed.expires_at_s,
                nbytes,
                sealed.prefill_tokens / nbytes,
                sealed.replaces,
                make,
            )
            lane.put(item, partial(self._written, key, write, then))

    def refresh(self, key: bytes, expires_at_s: float) -> None:
        """Keep an object so long, or longer where somebody else has said so, in every tier that has
        it."""
        if not self._fresh:
            self._fresh_since_s = self._clock()
        self._fresh[key] = max(expires_at_s, self._fresh.get(key, expires_at_s))

    @property
    def num_refreshing(self) -> int:
        """Objects whose new expiry some tier does not know yet."""
        return len(self._fresh) + max((lane.num_refreshing for lane in self._lanes), default=0)

    def tell_refreshes(self) -> None:
        """Hand all new expiries to the tiers now."""
        fresh, self._fresh = self._fresh, {}
        for lane in self._lanes if fresh else ():
            lane.refresh(fresh)

    def curtail(
        self, expiries: Mapping[bytes, float], forgotten: bytes, unpinned_nbytes: int
    ) -> None:
        """Keep objects so long only, in every tier, and the one under `forgotten` no longer;
        `unpinned_nbytes` of KV in them were pinned."""
        self.tell_refreshes()
        for lane in self._lanes:
            lane.curtail(expiries, unpinned_nbytes)
            lane.delete([forgotten])

    def purge(self, prefix: bytes, then: Callable[[int | None], None]) -> None:
        """Forget every object under a prefix of keys, in every tier. Nothing of it is served from
        here on; `then` says how many objects there were, once all tiers are done, or None where one
        failed and is told again until it has done so."""
        self.reads.drop(prefix)
        for keys in (self._writes, self._fresh):
            for key in [key for key in keys if key.startswith(prefix)]:
                del keys[key]
        if self.is_empty:
            then(0)
            return
        purge = _Purge(len(self._lanes), then)
        for lane in self._lanes:
            lane.purge(prefix, partial(self._purged, purge))

    def close(self, timeout_s: float) -> bool:
        """Write what is queued; False when that took too long and the rest was given up."""
        self.tell_refreshes()
        deadline_s = time.monotonic() + timeout_s
        done = [lane.close(max(0.0, deadline_s - time.monotonic())) for lane in self._lanes]
        self._mailbox.drain()
        return all(done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(0.0)

    # What the tiers say of writes -----------------------------------------------------------------

    def _written(
        self, key: bytes, write: _Write, then: Callable[[bool], None], is_stored: bool
    ) -> None:
        write.num_left -= 1
        write.is_stored |= is_stored
        if not write.num_left:
            if self._writes.get(key) is write:
                del self._writes[key]
            then(write.is_stored)

    def _purged(self, purge: _Purge, num_objects: int | None) -> None:
        purge.num_left -= 1
        known = purge.num_objects
        purge.num_objects = None if known is None or num_objects is None else known + num_objects
        if not purge.num_left:
            purge.then(purge.num_objects)
