"""Reads from the lower tiers on behalf of requests, and the time each request waits for them.

Knows no pages and writes nothing.

For the engine thread alone, and nothing here waits: `answered` and `read` take in what the tiers
have done. An object is read once however many requests want it. What is read is owned by its call:
a request that ends, or stops waiting, takes nothing away from a thread that is still at work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, Protocol

from engine.cache.tiers.calls import TierQuery, TierQueryResult, TierRead, TierReadResult
from engine.cache.tiers.client import STALL_S, Average, TierClient, TierClients
from engine.cache.tiers.fetch import Fetch, FetchStatus, SpanRead, UnknownEntry, choose, look_for
from engine.cache.tiers.object_format import StoredEntry
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
"""The least time to wait for the bytes of a tier, after another one has used up the request's
patience."""


class InTransit(Protocol):
    """Bytes on their way to the tiers, which can be read meanwhile. `tier` is the first they go
    to."""

    body: Payload
    expires_at_s: float
    tier: str


@dataclass(slots=True)
class Speed:
    """Tokens that the model prefills per second: a running average, None before the first
    measurement."""

    average: Average = field(default_factory=lambda: Average(0.0))

    def recompute_s(self, num_tokens: int) -> float:
        """Seconds to prefill so many tokens; for ever while the speed is not known."""
        return num_tokens / self.average.value if self.average.value else float("inf")


class TierReader:
    """The fetches of one cache. `in_transit(key)` is what is on its way to the tiers under a key;
    `send_refreshes()` sends pending expiries now, before the tiers hear of a time at which the
    objects would have expired."""

    def __init__(
        self,
        tiers: TierClients,
        geometry: Geometry,
        counters: CacheCounters,
        in_transit: Callable[[bytes], InTransit | None],
        send_refreshes: Callable[[], None],
    ) -> None:
        self.speed = Speed()
        self.staged_nbytes = 0
        self._clients = tiers.clients
        self._clock = tiers.clock
        self._geometry = geometry
        self._counters = counters
        self._in_transit = in_transit
        self._send_refreshes = send_refreshes
        self._ids = count(1)
        self._fetches: dict[int, Fetch] = {}
        """Those that wait for a tier or for room."""
        self._queue: deque[Fetch] = deque()
        self._reads: dict[tuple[str, bytes], list[tuple[Fetch, SpanRead]]] = {}
        """The fetches that wait for each read under way."""

    def start(self, fetch: Fetch) -> None:
        """Ask every tier that answers at all, and has nothing to forget of the tenant, what it has
        of the prompt. `fetch` is over at once where that is nothing."""
        namespace = fetch.tenant.namespace
        clients = [
            client
            for client in self._clients
            if not client.is_stuck and not client.is_forgetting(namespace.prefix)
        ]
        fetch.progress_s = self._clock()
        if clients:
            look_for(
                fetch,
                self._geometry,
                lambda key: fetch.tenant.entries.find_live(key, fetch.now_s) is not None,
            )
        objects = [span.label.key for span in fetch.objects]
        entries = [entry.label for entry in fetch.unknown_entries]
        if not objects and not entries:
            fetch.move(FetchStatus.OVER)
            return
        self._send_refreshes()
        fetch.id = next(self._ids)
        self._fetches[fetch.id] = fetch
        fetch.unanswered = list(clients)
        query = TierQuery(fetch.id, objects, entries, namespace, fetch.now_s)
        for client in clients:
            client.ask(query)

    def abandon(self, fetch: Fetch) -> None:
        """Nobody wants the fetch any more, or all of it was used: its bytes are free. Reads under
        way end by themselves. Idempotent."""
        self._end(fetch)
        for span in fetch.reads:
            self._let_go(fetch, span)
        fetch.reads = []
        self.staged_nbytes -= fetch.staged_nbytes
        fetch.staged_nbytes = 0
        while self._queue and self._has_stage(self._queue[0]):
            self._begin(self._queue.popleft())

    def answered(
        self, client: TierClient, query: TierQuery, result: TierQueryResult | None
    ) -> None:
        """A query has ended; without a result where the store raised."""
        fetch = self._fetches.get(query.fetch_id)
        if fetch is None or fetch.status is not FetchStatus.ASKING:
            return
        fetch.unanswered.remove(client)
        fetch.progress_s = self._clock()
        if result is not None:
            for span, found in zip(fetch.objects, result.objects, strict=True):
                if found is not None:
                    span.sources.append(client)
                    span.sources.sort(key=self._clients.index)
                    span.expires_at_s = max(span.expires_at_s, found.expires_at_s)
            for unknown, stored in zip(fetch.unknown_entries, result.entries, strict=True):
                if stored is not None:
                    self._adopt(fetch, unknown, stored)
        if not fetch.unanswered or self._is_complete(fetch):
            self._choose(fetch)

    def read(self, client: TierClient, read: TierRead, result: TierReadResult | None) -> None:
        """A read has ended, for all fetches that still wait for it."""
        body = None if result is None else result.body
        if body is None:
            self._counters.num_lost_reads += 1
        for fetch, span in self._reads.pop((client.name, read.label.key)):
            if span.client is not client:  # cut off meanwhile
                continue
            span.client = None
            if body is not None and len(body) == self._geometry.nbytes(span.start, span.end):
                span.body, span.tier = body, client.name
                fetch.progress_s = self._clock()
                fetch.num_missing -= 1
            else:
                if result is not None and result.is_corrupt:
                    fetch.cause = "corrupt"
                self._waste(fetch, self._clock())
                self._read(fetch, span)
            if not fetch.num_missing:
                self._end(fetch)

    def give_up_late(self) -> None:
        """Stop waiting for what is late."""
        now_s = self._clock()
        for fetch in list(self._fetches.values()):
            if now_s >= self._late_at_s(fetch):
                self._give_up(fetch)

    def late_at_s(self) -> float:
        """The time at which `give_up_late` will have something to do, if nothing comes until then;
        infinity for never."""
        return min(map(self._late_at_s, self._fetches.values()), default=float("inf"))

    def drop(self, prefix: bytes) -> None:
        """Abandon what is read for tenants whose keys begin with `prefix`."""
        for fetch in list(self._fetches.values()):
            if fetch.tenant.namespace.prefix.startswith(prefix):
                self.abandon(fetch)

    def check(self, open_fetches: Iterable[Fetch]) -> None:
        """Raise AssertionError unless everything staged or awaited belongs to one of
        `open_fetches`. For tests."""
        open_fetches, waiting = list(open_fetches), list(self._fetches.values())
        assert all(fetch in open_fetches and not fetch.is_over for fetch in waiting)
        assert self.staged_nbytes == sum(
            fetch.staged_nbytes
            for fetch in open_fetches
            if fetch.status in (FetchStatus.READING, FetchStatus.OVER)
        )
        assert all(fetch in waiting for read in self._reads.values() for fetch, _ in read)
        chosen = [fetch for fetch in waiting if fetch.status is FetchStatus.CHOSEN]
        assert len(chosen) == len(self._queue)
        assert all(fetch in chosen for fetch in self._queue)

    # A fetch's life -------------------------------------------------------------------------------

    def _adopt(self, fetch: Fetch, unknown: UnknownEntry, stored: StoredEntry) -> None:
        """Believe a tier that an entry is live."""
        entries, now_s = fetch.tenant.entries, fetch.now_s
        if stored.expires_at_s <= now_s or stored.ancestor != unknown.ancestor:
            return
        entry = entries.find_live(unknown.key, now_s)
        if entry is None:
            entry = Entry(
                *(unknown.key, unknown.ancestor, unknown.tail, unknown.position, unknown.offset),
                *(stored.ttl_s, stored.expires_at_s, stored.refresh_on_read),
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
        if not all(span.is_there for span in fetch.spans):
            return False
        wanted = fetch.view.plan.readable[:1]
        if not wanted:
            return True
        tail = fetch.tails.get(fetch.view.offset(wanted[0]))
        return self._is_live(fetch, wanted[0]) and (tail is None or tail.is_there)

    def _choose(self, fetch: Fetch) -> None:
        """All that matters is known: start reading, or wait for room to read into."""
        fetch.move(FetchStatus.CHOSEN)
        for span in fetch.objects:
            write = self._in_transit(span.label.key)
            if write is not None:
                span.expires_at_s = write.expires_at_s
                span.body, span.tier = memoryview(write.body), write.tier
        for unknown in fetch.unknown_entries:
            entry = fetch.tenant.entries.find_live(unknown.key, fetch.now_s)
            tail = fetch.tails.get(unknown.offset)
            if entry is not None and tail is not None:
                entry.has_tail = tail.is_there
        fetch.reads = choose(fetch, self._geometry, partial(self._is_live, fetch), self._is_faster)
        fetch.staged_nbytes = sum(
            self._geometry.nbytes(span.start, span.end) for span in fetch.reads
        )
        if self._has_stage(fetch):
            self._begin(fetch)
        else:
            self._queue.append(fetch)

    def _begin(self, fetch: Fetch) -> None:
        """Read all that was chosen; the request's patience begins now."""
        fetch.move(FetchStatus.READING)
        self.staged_nbytes += fetch.staged_nbytes
        now_s = fetch.progress_s = self._clock()
        num_tokens = sum(span.num_tokens for span in fetch.reads)
        fetch.deadline_s = now_s + max(STALL_S, self.speed.recompute_s(num_tokens) / 2)
        fetch.num_missing = sum(span.body is None for span in fetch.reads)
        for span in fetch.reads:  # a span that cannot be had cuts off itself and all behind it
            if span.body is None:
                self._read(fetch, span)
        if not fetch.num_missing:
            self._end(fetch)

    def _read(self, fetch: Fetch, span: SpanRead) -> None:
        """Read a span from the next tier that has it, or join a read under way; without any, the
        reads end before it."""
        client = next((client for client in span.sources if not client.is_stuck), None)
        span.client = client
        if client is None:
            if span.sources:
                fetch.cause = "late"
            self._cut(fetch, span)
            return
        span.sources.remove(client)
        waiting = self._reads.get((client.name, span.label.key))
        if waiting is not None:
            waiting.append((fetch, span))
            return
        self._reads[client.name, span.label.key] = [(fetch, span)]
        client.read(TierRead(span.label, fetch.tenant.namespace, fetch.now_s))

    def _forget_tail(self, fetch: Fetch, span: SpanRead) -> None:
        """A tail that was not read, or could not be, may be no tail any more: once computed, it is
        written again."""
        for unknown in fetch.unknown_entries:
            entry = fetch.tenant.entries.find_live(unknown.key, fetch.now_s)
            if entry is not None and fetch.tails.get(unknown.offset) is span:
                entry.has_tail = False

    def _cut(self, fetch: Fetch, span: SpanRead) -> None:
        """Let the reads end before one that cannot be had."""
        at = fetch.reads.index(span)
        fetch.num_missing -= sum(other.body is None for other in fetch.reads[at:])
        for other in fetch.reads[at:]:
            self._let_go(fetch, other)
            self._forget_tail(fetch, other)
        del fetch.reads[at:]

    def _late_at_s(self, fetch: Fetch) -> float:
        """The time at which the request stops waiting, if nothing more comes until then."""
        patience_s = max(LEAST_WAIT_S, STALL_S - fetch.wasted_s)
        match fetch.status:
            case FetchStatus.ASKING:
                return fetch.progress_s + patience_s
            case FetchStatus.READING:
                clients = [span.client for span in fetch.reads if span.client is not None]
                progress_s = max([fetch.progress_s, *(client.progress_s for client in clients)])
                return min(progress_s + patience_s, fetch.deadline_s)
            case _:
                return float("inf")

    def _give_up(self, fetch: Fetch) -> None:
        """Leave the spans that have not come by now to be computed."""
        self._waste(fetch, self._late_at_s(fetch))
        fetch.cause = "late"
        self._counters.num_late_reads += 1
        if fetch.status is FetchStatus.ASKING:
            for client in fetch.unanswered:
                client.late()
            self._choose(fetch)
            return
        late = [span for span in fetch.reads if span.body is None]
        for client in {span.client for span in late if span.client is not None}:
            client.late()
        self._cut(fetch, late[0])
        self._end(fetch)

    def _end(self, fetch: Fetch) -> None:
        """Nothing more comes. Idempotent."""
        if fetch.is_over:
            return
        if fetch.status is FetchStatus.CHOSEN:
            self._queue.remove(fetch)
            fetch.staged_nbytes = 0
        fetch.move(FetchStatus.OVER)
        self._fetches.pop(fetch.id, None)
        if fetch.wasted_s:
            self._counters.wasted_wait_seconds += fetch.wasted_s
            self._counters.num_wasted_waits += 1
            self._counters.num_long_waits += fetch.wasted_s >= LONG_WAIT_S

    def _let_go(self, fetch: Fetch, span: SpanRead) -> None:
        """Drop what was read of a span, and stop waiting for it; its thread goes on with what it
        owns."""
        span.body = None
        if span.client is not None:
            self._reads[span.client.name, span.label.key].remove((fetch, span))
            span.client = None

    def _waste(self, fetch: Fetch, until_s: float) -> None:
        """Count the time since the request's last progress: what it waited for did not come."""
        fetch.wasted_s += max(0.0, until_s - fetch.progress_s)
        fetch.progress_s = self._clock()

    def _has_stage(self, fetch: Fetch) -> bool:
        return not self.staged_nbytes or self.staged_nbytes + fetch.staged_nbytes <= STAGED_NBYTES

    def _is_live(self, fetch: Fetch, position: Position) -> bool:
        return fetch.tenant.entries.find_live(fetch.view.key(position), fetch.now_s) is not None

    def _is_faster(self, span: SpanRead) -> bool:
        """Whether reading a span beats computing its tokens."""
        if span.body is not None:
            return True
        nbytes = self._geometry.nbytes(span.start, span.end)
        return span.sources[0].load_s(nbytes) < self.speed.recompute_s(span.num_tokens)
