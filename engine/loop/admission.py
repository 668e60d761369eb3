"""From the queue to pages: a request waits for another that computes the same, for lower tiers,
for room; then it starts.

Knows no model and no answers. The states of a waiting request, in this order: `FOLLOWING`
(single-flight), `LOADING` (tiers), `WAITING` (pages and a seat), `RESTORING` (the spans that were
read are put into its pages).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from engine.cache.lookup import Lookup
from engine.loop.page_reservations import PageReservations
from engine.loop.request import EngineRequest, LoopParts
from engine.messages import Started
from engine.schedule.flights import Beginning, Flights
from engine.schedule.sequence import Sequence, Status

RESTORE_NBYTES: Final = 16 * 1024**2
"""Bytes put onto the device between two steps, so that answers being read never stop for long."""

MAX_FETCHES: Final = 4
"""Reads of one request's prefix: it is read again where the device lost its own part while the
request queued."""


class Admission:
    """Owned by the step loop; nothing here waits."""

    def __init__(self, parts: LoopParts, room: PageReservations) -> None:
        self._room = room
        self._cache = parts.cache
        self._scheduler = parts.scheduler
        self._requests = parts.requests
        self._stats = parts.stats
        self._emit = parts.emit
        self._block_size = parts.limits.block_size
        self._flights = Flights(parts.limits.block_size)
        self._loading: dict[str, EngineRequest] = {}
        self._restoring: dict[str, EngineRequest] = {}

    @property
    def num_loading(self) -> int:
        """Waiting requests whose prefix is being read."""
        return len(self._loading)

    @property
    def num_following(self) -> int:
        """Waiting requests whose prefix another request is computing."""
        return self._flights.num_following

    # In -------------------------------------------------------------------------------------------

    def enter(self, request: EngineRequest) -> None:
        """A request that was put into the queue begins to wait, or starts if it needs nothing."""
        self._begin(request)
        self.admit()

    def settle(self) -> None:
        """Poll the tiers, and stop the waits for other requests that took too long."""
        with self._stats.timed("engine_cache_seconds_total"):
            self._cache.tiers.poll()
        for request_id, request in list(self._loading.items()):
            if request.fetch is None or request.fetch.is_over:
                del self._loading[request_id]
                self._scheduler.ready(request.sequence)
        late = self._flights.late(self._cache.now_s)
        for request_id in late:
            self._requests[request_id].is_patient = False
        self._release(late)

    def admit(self) -> None:
        """Start the waiting requests that fit."""
        self._scheduler.admit(self._try_admit)

    def restore(self) -> None:
        """Put the spans that were read onto the device, oldest request first, a slice at a time; a
        request that has all of its spans starts."""
        left = RESTORE_NBYTES
        for request_id, request in list(self._restoring.items()):
            lease = request.pages
            with self._stats.timed("engine_cache_seconds_total"):
                left -= self._cache.restore(lease, left)
            if not lease.arrivals:
                del self._restoring[request_id]
                request.sequence.move(Status.PREFILL)
                self.computed(request)
            if left <= 0:
                break
        self.admit()

    # On -------------------------------------------------------------------------------------------

    def computed(self, request: EngineRequest) -> None:
        """More of a prompt is in the cache: the requests that waited for that much go on.

        They find the request's entries there too, if those count as read for any of them.
        """
        released = self._flights.computed(request.request_id, request.sequence.num_computed)
        if any(self._requests[name].job.submit.plan.single_flight == "read" for name in released):
            with self._stats.timed("engine_cache_seconds_total"):
                self._cache.write_entries(request.pages, request.sequence.num_computed)
        self._release(released)

    def leave(self, request: EngineRequest) -> None:
        """A request has all of its prompt, or has ended: no other waits for it any more, and it
        waits for nothing."""
        self._loading.pop(request.request_id, None)
        self._restoring.pop(request.request_id, None)
        self._flights.leave(request.request_id)
        self._release(self._flights.land(request.request_id))

    def forget(self, tenant: str | None) -> None:
        """After a flush of the tenant, or of all: no request waits any more for what a flushed one
        computes."""
        running = [self._requests[sequence.request_id] for sequence in self._scheduler.running]
        mine = [request for request in running if tenant in (None, request.job.submit.tenant)]
        self._release([name for request in mine for name in self._flights.land(request.request_id)])

    def check(self) -> None:
        """Raise AssertionError unless every waiting request is in the table of its status. For
        tests."""
        self._flights.check()
        following = [r for r in self._requests.values() if r.sequence.status is Status.FOLLOWING]
        assert len(following) == self._flights.num_following
        assert all(r.sequence.status is Status.LOADING for r in self._loading.values())
        assert all(r.sequence.status is Status.RESTORING for r in self._restoring.values())

    # Inside ---------------------------------------------------------------------------------------

    def _begin(self, request: EngineRequest) -> None:
        """Wait for a request that computes the same, else for the lower tiers; the sequence may be
        admitted if for neither."""
        if not self._follow(request):
            self._fetch(request)

    def _release(self, request_ids: Iterable[str]) -> None:
        """End the waits of requests for others: the rest may wait for the first of them now."""
        for request_id in request_ids:
            request = self._requests[request_id]
            self._scheduler.ready(request.sequence)
            self._begin(request)

    def _look_up(self, request: EngineRequest) -> Lookup:
        """The request's lookup, made once and matched again only where the tree has changed."""
        if request.lookup is None:
            submit = request.job.submit
            request.lookup = self._cache.lookup(
                submit.tenant, request.job.rendered, submit.plan, submit.started_at_s
            )
        else:
            request.lookup = self._cache.current(request.lookup)
        return request.lookup

    @contextmanager
    def _matching(self, request: EngineRequest) -> Iterator[None]:
        """Add the seconds of the block to the request's match time and to the cache's."""
        begin_s = time.perf_counter()
        with self._stats.timed("engine_cache_seconds_total"):
            yield
        request.match_s += time.perf_counter() - begin_s

    def _follow(self, request: EngineRequest) -> bool:
        """Whether the request now waits for another; if not, others may wait for it."""
        submit = request.job.submit
        if submit.plan.single_flight == "off":
            return False
        with self._matching(request):
            lookup = self._look_up(request)
            if request.beginning is None:
                request.beginning = Beginning.of(submit.tenant, lookup.prompt.ids, self._block_size)
            beginning = request.beginning
        num_found, num_prompt = lookup.num_found, request.sequence.num_prompt
        found = (
            self._flights.find(beginning, num_found, num_prompt - 1)
            if submit.plan.read and request.is_patient
            else None
        )
        if found is None:
            self._flights.lead(request.request_id, beginning, num_found, lookup.num_kept)
            return False
        if request.until_s is None:
            request.num_found, request.until_s = (
                num_found,
                self._cache.now_s + submit.plan.max_wait_s,
            )
            self._stats.add("engine_followers_total")
        flight, num_tokens = found
        self._flights.follow(request.request_id, flight, num_tokens, request.until_s)
        request.sequence.move(Status.FOLLOWING)
        return True

    def _fetch(self, request: EngineRequest) -> None:
        """Start to read the prompt from lower tiers; the sequence is LOADING unless that is over at
        once."""
        sequence = request.sequence
        request.num_fetches += 1
        with self._matching(request):
            request.fetch = self._cache.fetch(self._look_up(request))
        if request.fetch is not None and not request.fetch.is_over:
            sequence.move(Status.LOADING)
            self._loading[sequence.request_id] = request

    def _try_admit(self, sequence: Sequence) -> bool:
        request = self._requests[sequence.request_id]
        if request.last_lease is not None:
            return self._room.resume(request)
        while (
            request.fetch is not None
            and request.fetch.is_outrun
            and request.num_fetches < MAX_FETCHES
        ):
            self._cache.abandon(request.fetch)
            self._fetch(request)
            if sequence.status is Status.LOADING:
                return False
        return self._start(request)

    def _start(self, request: EngineRequest) -> bool:
        job, sequence = request.job, request.sequence
        with self._matching(request):
            lease = self._cache.admit(
                self._look_up(request),
                self._room.num_first(sequence),
                fetch=request.fetch,
                spare_pages=self._room.spare_pages(),
                num_known=request.num_found,
            )
        if lease is None:
            return False
        request.lease, request.lookup, request.fetch = lease, None, None
        if lease.arrivals:
            sequence.move(Status.RESTORING)
            self._restoring[sequence.request_id] = request
        request.started_s = time.perf_counter()
        sequence.num_cached = sequence.num_computed = sequence.num_known = lease.num_cached
        self._stats.add("engine_prompt_tokens_total", sequence.num_prompt)
        self._stats.add("engine_skipped_tokens_total", lease.num_cached)
        self._stats.add("engine_shared_tokens_total", lease.report.shared)
        match_s, before_s = request.match_s, job.submitted_s + job.render_s
        queue_s = max(0.0, request.started_s - match_s - before_s)
        self._emit(Started(sequence.request_id, lease.report, job.render_s, match_s, queue_s))
        if not lease.arrivals:
            self.computed(request)
        return True
