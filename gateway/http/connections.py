"""Bounds on the number of connections, and on their waiting for a request.

Knows no HTTP but when a request is on.

A connection waits when no whole head of a request has come on it: from its first moment, and again
behind every answer. Where there are too many, the one that has waited longest makes room. Where all
of them work, or have only just come, a few more are let in, for probes alone.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import structlog
from aiohttp import web

KEPT_FOR_PROBES: Final = 16
"""Connections beyond the limit, on which only health is told."""

KEPT_FILES: Final = 128
"""Open files for everything but connections: stores, logs, sockets of workers, spare ones."""

FEWEST: Final = 16
"""Of connections, however few files there may be."""

GRACE_S: Final = 1.0
"""A connection that has waited for less does not make room: its request may be on the way."""

LOG_EVERY_S: Final = 1.0
"""Between two lines of the log about connections that cannot be accepted."""

_log = structlog.get_logger("pcg.http")


def most_connections(asked: int, num_upstream: int) -> int:
    """The number of connections that the limit of open files leaves beside `num_upstream` to
    upstreams, or `asked` if that is less."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return asked or 2**20
    left = max(FEWEST, soft - KEPT_FILES - KEPT_FOR_PROBES - num_upstream)
    return min(asked, left) if asked else left


def raise_file_limit() -> None:
    """As far as this process may, for itself and those it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Connections:
    """All of a listener's. Owned by the event loop."""

    def __init__(self, limit: int, head_s: float) -> None:
        """At most `limit` that work or wait; a head has to be whole within `head_s` of its first
        byte."""
        self._limit = limit
        self.head_s = head_s
        self._num_open = 0
        self._waiting: dict[Connection, float] = {}
        self._probing: dict[Connection, float] = {}
        self._by_transport: WeakKeyDictionary[asyncio.BaseTransport, Connection] = (
            WeakKeyDictionary()
        )

    def guarded(self, factory: Callable[[], asyncio.Protocol]) -> Callable[[], Connection]:
        """A protocol factory whose connections are counted here."""
        return lambda: Connection(self, factory())

    @contextmanager
    def working(self, transport: asyncio.BaseTransport | None) -> Iterator[bool]:
        """A request is being served; whether its connection is there for probes alone."""
        connection = None if transport is None else self._by_transport.get(transport)
        if connection is None:
            yield False
            return
        connection.peers.pop(connection, None)
        connection.stop_waiting()
        try:
            yield connection.peers is self._probing
        finally:
            if connection.transport is not None:
                connection.peers[connection] = asyncio.get_running_loop().time()

    def opened(self, connection: Connection, transport: asyncio.Transport) -> bool:
        """Whether it may stay. The one that has waited longest may have to go for it."""
        if self._num_open >= self._limit:
            self._make_room(self._waiting, GRACE_S)
        if self._num_open >= self._limit + KEPT_FOR_PROBES:
            self._make_room(self._probing, 0.0)
        if self._num_open >= self._limit + KEPT_FOR_PROBES:
            return False
        connection.peers = self._waiting if self._num_open < self._limit else self._probing
        self._num_open += 1
        self._by_transport[transport] = connection
        connection.peers[connection] = asyncio.get_running_loop().time()
        connection.await_head()
        return True

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        self._num_open -= 1
        connection.peers.pop(connection, None)

    @staticmethod
    def _make_room(waiting: dict[Connection, float], least_s: float) -> None:
        """End the one that has waited longest, if that is long enough."""
        longest, since_s = next(iter(waiting.items()), (None, 0.0))
        if longest is not None and asyncio.get_running_loop().time() - since_s >= least_s:
            longest.end()


class Connection(asyncio.Protocol):
    """One connection, between its transport and the protocol that serves it.

    `peers` are those that wait like it, with the time since when: all, or those for probes alone.
    """

    def __init__(self, all_of_them: Connections, inner: asyncio.Protocol) -> None:
        self._all = all_of_them
        self._inner = inner
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None
        self.peers: dict[Connection, float] = {}
        self._is_served = False

    def await_head(self) -> None:
        """End unless a head is whole in time."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._all.head_s, self._expire)

    def stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Now; it counts no more."""
        transport, self.transport = self.transport, None
        if transport is not None:
            self.stop_waiting()
            self._all.closed(self)
            transport.abort()

    def _expire(self) -> None:
        self._timer = None
        self.end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast(asyncio.Transport, transport)
        if not self._all.opened(self, made):
            made.abort()
            return
        self.transport, self._is_served = made, True
        self._inner.connection_made(made)

    def data_received(self, data: bytes) -> None:
        if self.transport is not None:
            if self._timer is None and self in self.peers:  # the first bytes of a head
                self.await_head()
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport is not None:
            self.transport = None
            self.stop_waiting()
            self._all.closed(self)
        if self._is_served:
            self._inner.connection_lost(exc)


class GuardedRunner(web.AppRunner):
    """Runs an application whose connections are counted."""

    __slots__ = ("_guarded",)

    def __init__(self, app: web.Application, connections: Connections, **options: Any) -> None:
        super().__init__(app, **options)
        self._guarded = connections

    @property
    def server(self) -> Any:
        """The protocol factory that a site listens with."""
        server = super().server
        return None if server is None else self._guarded.guarded(server)


class AcceptErrors:
    """An exception handler of the loop: errors of accepting are told in a line, and not again
    within a second."""

    def __init__(self) -> None:
        self._logged_s: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or "accept" not in context.get("message", ""):
            loop.default_exception_handler(context)
        elif self._logged_s is None or loop.time() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = loop.time()
            _log.error("connections cannot be accepted", error=error.strerror)
