"""Reads from the lower tiers on behalf of requests: who waits for what, and until when.

Knows no pages and writes nothing.

For the engine thread alone, and nothing here waits: results come back through the mailbox. An
object is read once however many requests want it. What is read is owned by its job: a request that
ends, or stops waiting, takes nothing away from a thread that is still at work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from engine.cache.tiers.client import (
    STALL_S,
    Average,
    TierClient,
    TierQuery,
    TierQueryResult,
    TierReadResult,
)
from engine.cache.tiers.fetch import Fetch, UnknownEntry, choose, look_for
from engine.cache.tiers.object_format import StoredEntry
from engine.cache.tiers.pieces import SpanRead
from engine.cache.tree.entries import Entry
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.stats import CacheCounters
from engine.memory import Payload
from engine.prompt.types import Position

STAGED_NBYTES: Final = 1024**3
"""Bytes that may be read and not yet on the device. One request alone may pass it, so that it can
be served at all."""

LONG_WAIT_S: Final = 0.3

LEAST_WAIT_S: Final = 0.02
"""What is left to wait for the bytes of a tier after another one has used up the request's
patience."""


class InTransit(Protocol):
    """Bytes on their way to the tiers, which can be read meanwhile. `tier` is the first they go
    to."""

    body: Payload
    expires_at_s: float
    tier: str


@dataclass(slots=True, eq=False, repr=False)
class _Read:
    """Who waits for a read under way."""

    waiters: list[tuple[Fetch, SpanRead]]


@dataclass(slots=True)
class Speed:
    """Tokens that the model prefills per second: a running average, None before the first
    measurement."""

    average: Average = field(default_factory=lambda: Average(0.0))

    def recompute_s(self, num_tokens: int) -> float:
        """Seconds to prefill so many tokens; for ever while the speed is not known."""
        return num_tokens / self.average.value if self.average.value else float("inf")


class TierReader:
    """The fetches of one cache. `passing(key)` is what is on its way to the tiers under a key;
    `tell()` has them know at once until when objects are kept, before they hear of a time at which
    they would think them over."""

    def __init__(
        self,
        lanes: Sequence[TierClient],
        geometry: Geometry,
        counters: CacheCounters,
        clock: Callable[[], float],
        passing: Callable[[bytes], InTransit | None],
        tell: Callable[[], None],
    ) -> None:
        self.speed = Speed()
        self.staged_nbytes = 0
        self._lanes = lanes
        self._geometry = geometry
        self._counters = counters
        self._clock = clock
        self._passing = passing
        self._tell = tell
        self._fetches: dict[Fetch, None] = {}
        self._queue: deque[Fetch] = deque()
        self._reads: dict[tuple[TierClient, bytes], _Read] = {}

    def start(self, fetch: Fetch) -> None:
        """Ask every tier that answers at all, and has nothing to forget of the tenant, what it has
        of the prompt. `fetch` is over at once where that is nothing."""
        namespace = fetch.space.seal.namespace
        lanes = [
            lane for lane in self._lanes if not lane.is_stuck and not lane.is_forgetting(namespace)
        ]
        fetch.progress_s = self._clock()
        if not lanes:
            fetch.is_over = True
            return
        look_for(
            fetch,
            self._geometry,
            lambda key: fetch.space.entries.find_live(key, fetch.now_s) is not None,
        )
        objects = [piece.label.key for piece in self._askable(fetch)]
        if not objects and not fetch.places:
            fetch.is_over = True
            return
        self._tell()
        question = TierQuery(
            objects, [place.label for place in fetch.places], fetch.space.seal, fetch.now_s
        )
        self._fetches[fetch] = None
        fetch.unanswered = list(lanes)
        for lane in lanes:
            lane.ask(question, partial(self._told, fetch, lane))

    def abandon(self, fetch: Fetch) -> None:
        """Nobody wants it any more, or all of it was used: its bytes are free. Reads under way end
        by themselves."""
        self._end(fetch)
        for piece in fetch.pieces:
            self._let_go(fetch, piece)
        fetch.pieces = []
        self.staged_nbytes -= fetch.staged_nbytes
        fetch.staged_nbytes = 0
        while self._queue and self._has_stage(self._queue[0]):
            self._begin(self._queue.popleft())

    def give_up_late(self) -> None:
        """Stop waiting for what is late."""
        now_s = self._clock()
        for fetch in list(self._fetches):
            if now_s >= self._late_at_s(fetch):
                self._give_up(fetch)

    def late_at_s(self) -> float:
        """When `give_up_late` will have something to do, if nothing comes until then; infinity for
        never."""
        return min((self._late_at_s(fetch) for fetch in self._fetches), default=float("inf"))

    def drop(self, prefix: bytes) -> None:
        """Abandon what is read for tenants whose keys begin with `prefix`."""
        for fetch in list(self._fetches):
            if fetch.space.seal.namespace.startswith(prefix):
                self.abandon(fetch)

    def check(self, open_fetches: Sequence[Fetch]) -> None:
        """Raise AssertionError unless everything staged or awaited belongs to one of
        `open_fetches`. For tests."""
        assert all(fetch in open_fetches for fetch in self._fetches)
        assert self.staged_nbytes == sum(
            fetch.staged_nbytes for fetch in open_fetches if not fetch.is_queued
        )
        waiting = [fetch for read in self._reads.values() for fetch, _ in read.waiters]
        assert all(fetch in self._fetches for fetch in waiting)
        assert all(fetch in self._fetches for fetch in self._queue)

    # A fetch's life -------------------------------------------------------------------------------

    @staticmethod
    def _askable(fetch: Fetch) -> list[SpanRead]:
        return [*fetch.spans, *fetch.tails.values()]

    def _told(self, fetch: Fetch, lane: TierClient, answer: TierQueryResult | None) -> None:
        """A tier said what it has."""
        if fetch.is_over or fetch.is_chosen:
            return
        fetch.unanswered.remove(lane)
        fetch.progress_s = self._clock()
        if answer is not None:
            for piece, found in zip(self._askable(fetch), answer.objects, strict=True):
                if found is not None:
                    piece.holders.append(lane)
                    piece.holders.sort(key=self._lanes.index)
                    piece.expires_at_s = max(piece.expires_at_s, found.expires_at_s)
            for place, entry in zip(fetch.places, answer.entries, strict=True):
                if entry is not None:
                    self._adopt(fetch, place, entry)
        if not fetch.unanswered or self._is_complete(fetch):
            self._choose(fetch)

    def _adopt(self, fetch: Fetch, place: UnknownEntry, stored: StoredEntry) -> None:
        """Believe a tier that an entry is live."""
        entries, now_s = fetch.space.entries, fetch.now_s
        if stored.expires_at_s <= now_s or stored.ancestor != place.ancestor:
            return
        entry = entries.find_live(place.key, now_s)
        if entry is None:
            times = stored.ttl_s, stored.expires_at_s, stored.refresh_on_read
            entry = Entry(
                place.key, place.ancestor, place.tail, place.position, place.offset, *times
            )
            entry.ends_at_s = stored.ends_at_s
            entries.add(entry)
            self._counters.num_found_entries += 1
            return
        entry.ttl_s = max(entry.ttl_s, stored.ttl_s)
        entry.expires_at_s = max(entry.expires_at_s, stored.expires_at_s)
        entry.ends_at_s = max(entry.ends_at_s, stored.ends_at_s)

    def _is_complete(self, fetch: Fetch) -> bool:
        """Whether nothing another tier may say could make the read longer."""
        if not all(piece.is_there for piece in fetch.spans):
            return False
        wanted = fetch.view.plan.readable[:1]
        if not wanted:
            return True
        offset = fetch.view.offset(wanted[0])
        tail = fetch.tails.get(offset)
        return self._is_live(fetch, wanted[0]) and (tail is None or tail.is_there)

    def _choose(self, fetch: Fetch) -> None:
        """All that matters is known: start reading, or wait for room to read into."""
        fetch.is_chosen = True
        for piece in self._askable(fetch):
            write = self._passing(piece.label.key)
            if write is not None:
                piece.expires_at_s = write.expires_at_s
                piece.body, piece.tier = memoryview(write.body), write.tier
        for place in fetch.places:
            entry, tail = (
                fetch.space.entries.find_live(place.key, fetch.now_s),
                fetch.tails.get(place.offset),
            )
            if entry is not None and tail is not None:
                entry.has_tail = tail.is_there
        fetch.pieces = choose(fetch, self._geometry, partial(self._is_live, fetch), self._is_worth)
        fetch.staged_nbytes = sum(
            self._geometry.nbytes(piece.start, piece.end) for piece in fetch.pieces
        )
        if self._has_stage(fetch):
            self._begin(fetch)
        else:
            fetch.is_queued = True
            self._queue.append(fetch)

    def _begin(self, fetch: Fetch) -> None:
        """Read all pieces; the request's patience begins now."""
        fetch.is_queued = False
        self.staged_nbytes += fetch.staged_nbytes
        now_s = fetch.progress_s = self._clock()
        num_tokens = sum(piece.num_tokens for piece in fetch.pieces)
        fetch.deadline_s = now_s + max(STALL_S, self.speed.recompute_s(num_tokens) / 2)
        fetch.num_missing = sum(piece.body is None for piece in fetch.pieces)
        for piece in fetch.pieces:  # a piece that cannot be had cuts off itself and all behind it
            if piece.body is None:
                self._read(fetch, piece)
        if not fetch.num_missing:
            self._end(fetch)

    def _read(self, fetch: Fetch, piece: SpanRead) -> None:
        """Read a piece from the next tier that has it, or join a read under way; without any, the
        pieces end before it."""
        lane = piece.lane = next((lane for lane in piece.holders if not lane.is_stuck), None)
        if lane is None:
            if piece.holders:
                fetch.cause = "late"
            self._cut(fetch, piece)
            return
        piece.holders.remove(lane)
        read = self._reads.get((lane, piece.label.key))
        if read is not None:
            read.waiters.append((fetch, piece))
            return
        self._reads[lane, piece.label.key] = _Read([(fetch, piece)])
        lane.read(
            piece.label, fetch.space.seal, fetch.now_s, partial(self._got, lane, piece.label.key)
        )

    def _got(self, lane: TierClient, key: bytes, got: TierReadResult) -> None:
        """A read ended, for all who still wait for it."""
        read = self._reads.pop((lane, key))
        if got.body is None:
            self._counters.num_lost_reads += 1
        for fetch, piece in read.waiters:
            if piece.lane is not lane:  # cut off meanwhile
                continue
            piece.lane = None
            if got.body is not None and len(got.body) == self._geometry.nbytes(
                piece.start, piece.end
            ):
                piece.body, piece.tier = got.body, lane.name
                fetch.progress_s = self._clock()
                fetch.num_missing -= 1
            else:
                fetch.cause = "corrupt" if got.is_corrupt else fetch.cause
                self._waste(fetch, self._clock())
                self._read(fetch, piece)
            if not fetch.num_missing:
                self._end(fetch)

    def _forget_tail(self, fetch: Fetch, piece: SpanRead) -> None:
        """A tail that was not read, or could not be, may be no tail any more: once computed, it is
        written again."""
        for place in fetch.places:
            entry = fetch.space.entries.find_live(place.key, fetch.now_s)
            if entry is not None and fetch.tails.get(place.offset) is piece:
                entry.has_tail = False

    def _cut(self, fetch: Fetch, piece: SpanRead) -> None:
        """Let the pieces end before one that cannot be had."""
        at = fetch.pieces.index(piece)
        fetch.num_missing -= sum(other.body is None for other in fetch.pieces[at:])
        for other in fetch.pieces[at:]:
            self._let_go(fetch, other)
            self._forget_tail(fetch, other)
        del fetch.pieces[at:]

    def _late_at_s(self, fetch: Fetch) -> float:
        """When the request stops waiting, if nothing more comes until then."""
        if fetch.is_queued:
            return float("inf")
        patience_s = max(LEAST_WAIT_S, STALL_S - fetch.wasted_s)
        if not fetch.is_chosen:
            return fetch.progress_s + patience_s
        progress_s = max(
            [
                fetch.progress_s,
                *(piece.lane.progress_s for piece in fetch.pieces if piece.lane is not None),
            ]
        )
        return min(progress_s + patience_s, fetch.deadline_s)

    def _give_up(self, fetch: Fetch) -> None:
        """What has not come by now is computed."""
        self._waste(fetch, self._late_at_s(fetch))
        fetch.cause = "late"
        self._counters.num_late_reads += 1
        if not fetch.is_chosen:
            for lane in fetch.unanswered:
                lane.late()
            self._choose(fetch)
            return
        late = [piece for piece in fetch.pieces if piece.body is None]
        for lane in {piece.lane for piece in late if piece.lane is not None}:
            lane.late()
        self._cut(fetch, late[0])
        self._end(fetch)

    def _end(self, fetch: Fetch) -> None:
        """Nothing more comes."""
        if fetch.is_over:
            return
        fetch.is_over = True
        self._fetches.pop(fetch, None)
        if fetch.is_queued:
            fetch.is_queued = False
            self._queue.remove(fetch)
            fetch.staged_nbytes = 0
        if fetch.wasted_s:
            self._counters.wasted_wait_seconds += fetch.wasted_s
            self._counters.num_wasted_waits += 1
            self._counters.num_long_waits += fetch.wasted_s >= LONG_WAIT_S

    def _let_go(self, fetch: Fetch, piece: SpanRead) -> None:
        """Drop what was read of a piece, and stop waiting for it; its thread goes on with what it
        owns."""
        piece.body = None
        if piece.lane is not None:
            self._reads[piece.lane, piece.label.key].waiters.remove((fetch, piece))
            piece.lane = None

    def _waste(self, fetch: Fetch, until_s: float) -> None:
        """Count the time since the request's last progress: what it waited for did not come."""
        fetch.wasted_s += max(0.0, until_s - fetch.progress_s)
        fetch.progress_s = self._clock()

    def _has_stage(self, fetch: Fetch) -> bool:
        return not self.staged_nbytes or self.staged_nbytes + fetch.staged_nbytes <= STAGED_NBYTES

    def _is_live(self, fetch: Fetch, position: Position) -> bool:
        return fetch.space.entries.find_live(fetch.view.key(position), fetch.now_s) is not None

    def _is_worth(self, piece: SpanRead) -> bool:
        """Whether reading a piece beats computing its tokens."""
        if piece.body is not None:
            return True
        nbytes = self._geometry.nbytes(piece.start, piece.end)
        return piece.holders[0].load_s(nbytes) < self.speed.recompute_s(piece.num_tokens)
