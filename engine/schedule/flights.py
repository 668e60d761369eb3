"""Prompts being computed, found by their first tokens, and the requests that wait for them.

Knows no cache, pages or model.

A request that begins like one that is being computed need not compute the same: it *follows* that
*flight* until the tokens both begin with are there. No request follows a follower, so none waits in
a circle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.cache.tree.block import TOKEN_NBYTES
from engine.cache.tree.radix import shared_tokens


@dataclass(frozen=True, slots=True, repr=False)
class Beginning:
    """The beginning of a prompt: its packed ids, and after every full block a hash of its tenant
    and all ids up to there."""

    ids: bytes
    marks: tuple[int, ...]

    @classmethod
    def of(cls, tenant: str, ids: bytes, block_size: int) -> Beginning:
        """Of a tenant's prompt. Equal beginnings have equal marks; other tenants' differ."""
        span = block_size * TOKEN_NBYTES
        mark, marks = hash(tenant), []
        for start in range(0, len(ids) - span + 1, span):
            mark = hash((mark, ids[start : start + span]))
            marks.append(mark)
        return cls(ids, tuple(marks))


@dataclass(slots=True, eq=False, repr=False)
class Flight:
    """One request on its way through its prompt: the first `num_computed` tokens are there,
    `num_tokens` will be.

    `followers` wait for so many of them each, in the order they came; `least` is the smallest of
    those numbers.
    """

    request_id: str
    beginning: Beginning
    num_tokens: int
    num_computed: int = 0
    followers: dict[str, int] = field(default_factory=dict)
    least: float = math.inf


class Flights:
    """Flights by every mark they pass. Finding one costs a lookup and a comparison of two prompts,
    whatever their number.

    The engine thread owns it. A request is either a flight, or follows one, or neither.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._flights: dict[str, Flight] = {}
        self._by_mark: dict[int, Flight] = {}
        self._followed: dict[str, Flight] = {}
        self._deadlines: dict[str, float] = {}
        self._soonest_s = math.inf

    @property
    def num_following(self) -> int:
        return len(self._followed)

    def find(self, beginning: Beginning, num_known: int, limit: int) -> tuple[Flight, int] | None:
        """The flight worth waiting for, and how many tokens of the prompt it will have computed.

        It computes at least a block after the first `num_known` tokens of the prompt. Only the
        prompt's first `limit` tokens count.
        """
        depth = num_known // self._block_size
        flight = self._by_mark.get(beginning.marks[depth]) if depth < len(beginning.marks) else None
        if flight is None:
            return None
        num_shared = min(
            shared_tokens(flight.beginning.ids, beginning.ids), flight.num_tokens, limit
        )
        if num_shared - max(num_known, flight.num_computed) < self._block_size:
            return None
        return flight, num_shared

    def lead(self, request_id: str, beginning: Beginning, num_known: int, num_tokens: int) -> None:
        """Others may follow the request from here on: it computes its first `num_tokens` tokens but
        the first `num_known`."""
        flight = self._flights[request_id] = Flight(request_id, beginning, num_tokens, num_known)
        for mark in beginning.marks[num_known // self._block_size : num_tokens // self._block_size]:
            self._by_mark.setdefault(mark, flight)

    def follow(self, request_id: str, flight: Flight, num_tokens: int, until_s: float) -> None:
        """The request waits until `num_tokens` of the flight's tokens are computed, but not past
        `until_s`."""
        self._followed[request_id] = flight
        self._deadlines[request_id] = until_s
        self._soonest_s = min(self._soonest_s, until_s)
        flight.followers[request_id] = num_tokens
        flight.least = min(flight.least, num_tokens)

    def computed(self, request_id: str, num_tokens: int) -> Sequence[str]:
        """The request has computed so many tokens: those who waited for no more, oldest first. They
        follow no longer."""
        flight = self._flights.get(request_id)
        if flight is None:
            return ()
        flight.num_computed = max(flight.num_computed, num_tokens)
        if flight.num_computed < flight.least:
            return ()
        return self._release(
            flight, [name for name, num in flight.followers.items() if num <= flight.num_computed]
        )

    def land(self, request_id: str) -> list[str]:
        """The request computes nothing more that others could wait for: those who still waited.
        They follow no longer."""
        flight = self._flights.pop(request_id, None)
        if flight is None:
            return []
        for mark in flight.beginning.marks:
            if self._by_mark.get(mark) is flight:
                del self._by_mark[mark]
        return self._release(flight, list(flight.followers))

    def leave(self, request_id: str) -> None:
        """The request follows no other any more. Idempotent."""
        flight = self._followed.get(request_id)
        if flight is not None:
            self._release(flight, [request_id])

    def late(self, now_s: float) -> list[str]:
        """Those who have waited as long as they may. They follow no longer."""
        if now_s < self._soonest_s:
            return []
        late = [name for name, until_s in self._deadlines.items() if until_s <= now_s]
        for name in late:
            self.leave(name)
        self._soonest_s = min(self._deadlines.values(), default=math.inf)
        return late

    def _release(self, flight: Flight, request_ids: list[str]) -> list[str]:
        for name in request_ids:
            del self._followed[name], self._deadlines[name], flight.followers[name]
        flight.least = min(flight.followers.values(), default=math.inf)
        return request_ids

    def check(self) -> None:
        """Raise AssertionError unless followers and flights know each other. For tests."""
        followed = {name: flight for flight in self._flights.values() for name in flight.followers}
        assert followed == self._followed
        assert followed.keys() == self._deadlines.keys()
        assert not followed.keys() & self._flights.keys(), "nobody follows a follower"
        assert all(
            self._flights.get(flight.request_id) is flight for flight in self._by_mark.values()
        )
        assert all(
            flight.least == min(flight.followers.values(), default=math.inf)
            for flight in self._flights.values()
        )
