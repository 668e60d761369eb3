"""All tiers below the device as one: what is read from them, what is written to every one of them.

Knows no pages.

For the engine thread alone, and nothing here waits: I/O threads leave messages, and `poll` takes
them in. What is written is owned by its call, and can be read from there until every tier has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

from engine.cache.tiers.calls import (
    ObjectSpec,
    TierPurge,
    TierQuery,
    TierQueryResult,
    TierRead,
    TierReadResult,
    TierRefresh,
    TierWrite,
)
from engine.cache.tiers.client import TierClients
from engine.cache.tiers.fetch import Fetch
from engine.cache.tiers.reader import TierReader
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.stats import CacheCounters, TierStats
from engine.memory import Payload

REFRESH_S: Final = 0.25
"""New expiries are collected for so long before they are sent. A kill in between loses them."""


class Copied(Protocol):
    """A part of the device's KV that was copied for the tiers."""

    def lost(self) -> None:
        """No tier has stored it."""
        ...


@dataclass(slots=True, eq=False, repr=False)
class _Write:
    """Bytes on their way to `num_left` tiers: they can be read from here meanwhile."""

    key: bytes
    body: Payload
    expires_at_s: float
    tier: str
    num_left: int
    copied: Copied | None
    is_stored: bool = False


@dataclass(slots=True, eq=False, repr=False)
class _Purge:
    """A flush that some tiers have not finished."""

    num_left: int
    then: Callable[[int | None], None]
    num_objects: int | None = 0


class Tiers:
    """The tiers of one cache, in the order they are read; everything is written to all of them.
    Without clients nothing is ever found, and nothing has to be written."""

    def __init__(self, tiers: TierClients, geometry: Geometry, counters: CacheCounters) -> None:
        self._clients = {client.name: client for client in tiers.clients}
        self._clock = tiers.clock
        self._completions = tiers.completions
        self._ids = count(1)
        self._writes: dict[int, _Write] = {}
        self._in_transit: dict[bytes, _Write] = {}
        """The latest write under each key, unless it was flushed."""
        self._purges: dict[int, _Purge] = {}
        self._refreshes: dict[bytes, float] = {}
        self._refreshes_since_s = 0.0
        self.reads = TierReader(
            tiers, geometry, counters, self._in_transit.get, self.send_refreshes
        )

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, whenever there is something to poll."""
        self._completions.wake = wake

    @property
    def is_empty(self) -> bool:
        """Whether there are no tiers."""
        return not self._clients

    @property
    def has_news(self) -> bool:
        """Whether `poll` would take something in."""
        return not self._completions.is_empty

    def wait_s(self) -> float | None:
        """Seconds until `poll` should be called though nothing came; None while nothing is
        pending."""
        due_s = self.reads.late_at_s()
        if self._refreshes:
            due_s = min(due_s, self._refreshes_since_s + REFRESH_S)
        return None if due_s == float("inf") else max(0.0, due_s - self._clock())

    def stats(self) -> dict[str, TierStats]:
        """Counters and gauges by tier."""
        return {name: client.stats for name, client in self._clients.items()}

    def expire(self, now_s: float) -> None:
        """Let every tier drop some of what has expired, but nothing whose new expiry it does not
        know yet."""
        self.send_refreshes()
        for client in self._clients.values():
            client.expire(now_s)
        self._take_messages()

    def poll(self) -> None:
        """Take in what came, stop waiting for what is late, and send the tiers new expiries that
        are due."""
        self._take_messages()
        self.reads.give_up_late()
        self._take_messages()
        if self._refreshes and self._clock() >= self._refreshes_since_s + REFRESH_S:
            self.send_refreshes()

    def start(self, fetch: Fetch) -> None:
        """Read what there is for a request; see `TierReader.start`."""
        self.reads.start(fetch)
        self.poll()

    # Writing --------------------------------------------------------------------------------------

    def has_room(self, nbytes: int) -> bool:
        """Whether some tier would queue so many bytes."""
        return any(client.has_room(nbytes) for client in self._clients.values())

    def put(self, spec: ObjectSpec, body: Payload, copied: Copied | None = None) -> None:
        """Write an object to every tier that takes it; it is dropped elsewhere. `copied` is lost
        where none has stored it."""
        key, clients = spec.label.key, []
        for client in self._clients.values():
            if client.takes(key, len(body)):
                clients.append(client)
            else:
                client.counters.num_dropped_writes += 1
        if not clients:
            if copied is not None:
                copied.lost()
            return
        write_id = next(self._ids)
        write = _Write(key, body, spec.expires_at_s, clients[0].name, len(clients), copied)
        self._writes[write_id] = self._in_transit[key] = write
        self._refreshes.pop(key, None)
        for client in clients:
            client.write(TierWrite(write_id, spec, body))

    def refresh(self, key: bytes, expires_at_s: float) -> None:
        """Keep an object so long, or longer where somebody else has said so, in every tier that has
        it."""
        if not self._refreshes:
            self._refreshes_since_s = self._clock()
        self._refreshes[key] = max(expires_at_s, self._refreshes.get(key, expires_at_s))

    @property
    def num_refreshing(self) -> int:
        """Objects whose new expiry some tier does not know yet."""
        return len(self._refreshes) + max(
            (client.num_refreshing for client in self._clients.values()), default=0
        )

    def send_refreshes(self) -> None:
        """Send all new expiries to the tiers now."""
        refreshes, self._refreshes = self._refreshes, {}
        for client in self._clients.values() if refreshes else ():
            client.refresh(TierRefresh(refreshes))

    def shorten(
        self, expiries: Mapping[bytes, float], forgotten: bytes, unpinned_nbytes: int
    ) -> None:
        """Keep objects only so long, in every tier, and the one under `forgotten` no longer;
        `unpinned_nbytes` of KV in them were pinned."""
        self.send_refreshes()
        for client in self._clients.values():
            client.refresh(TierRefresh(expiries, False, unpinned_nbytes))
            client.delete([forgotten])

    def purge(self, prefix: bytes, then: Callable[[int | None], None]) -> None:
        """Forget every object under a prefix of keys, in every tier. Nothing of it is served from
        here on; `then` says how many objects there were, once all tiers are done, or None where one
        failed and is told again until it has done so."""
        self.reads.drop(prefix)
        for keys in (self._in_transit, self._refreshes):
            for key in [key for key in keys if key.startswith(prefix)]:
                del keys[key]
        if self.is_empty:
            then(0)
            return
        purge_id = next(self._ids)
        self._purges[purge_id] = _Purge(len(self._clients), then)
        for client in self._clients.values():
            client.purge(TierPurge(prefix, purge_id))

    def close(self, timeout_s: float) -> bool:
        """Write what is queued; False when that took too long and the rest was given up."""
        self.send_refreshes()
        deadline_s = time.monotonic() + timeout_s
        done = [
            client.close(max(0.0, deadline_s - time.monotonic()))
            for client in self._clients.values()
        ]
        self._take_messages()
        return all(done)

    # Messages of the tiers ------------------------------------------------------------------------

    def _take_messages(self) -> None:
        for done in self._completions.take():
            client = self._clients[done.tier]
            client.count(done)
            match done.call, done.result:
                case TierQuery() as query, (TierQueryResult() | None) as result:
                    self.reads.answered(client, query, result)
                case TierRead() as read, (TierReadResult() | None) as result:
                    self.reads.read(client, read, result)
                case TierWrite() as write, result:
                    self._written(write.write_id, is_stored=result is not None)
                case TierPurge() as purge, (int() | None) as result:
                    self._purged(purge.purge_id, result)

    def _written(self, write_id: int, *, is_stored: bool) -> None:
        write = self._writes[write_id]
        write.num_left -= 1
        write.is_stored |= is_stored
        if write.num_left:
            return
        del self._writes[write_id]
        if self._in_transit.get(write.key) is write:
            del self._in_transit[write.key]
        if write.copied is not None and not write.is_stored:
            write.copied.lost()

    def _purged(self, purge_id: int, num_objects: int | None) -> None:
        purge = self._purges.get(purge_id)
        if purge is None:  # a failed purge was tried again
            return
        purge.num_left -= 1
        known = purge.num_objects
        purge.num_objects = None if known is None or num_objects is None else known + num_objects
        if not purge.num_left:
            del self._purges[purge_id]
            purge.then(purge.num_objects)
