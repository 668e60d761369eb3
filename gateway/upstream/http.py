"""An upstream engine or provider over HTTP: bytes there, bytes back.

Knows no wire format. The only module that sends the upstream's key.

One session per upstream, whose connections are at most `max_requests`. Nothing is sent twice: a
request that failed after bytes had left may have been served, and only its sender knows whether it
may be repeated. Connections idle for longer than most servers keep theirs are not used again, so
that no request meets one that is being closed.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from weakref import WeakSet

import aiohttp
from aiohttp import web

from gateway.backends.base import Head, Outgoing, Tail
from gateway.errors import GatewayError, Overloaded, TimedOut, UpstreamFailed
from gateway.upstream.redaction import Redaction
from gateway.wire.plain import plain_headers
from policies.backends import BackendPolicy

IDLE_S: Final = 4.0
"""Shorter than uvicorn's 5 s, behind which vLLM and SGLang listen."""

MAX_LINE_NBYTES: Final = 64 * 1024
"""Of a header field of an answer."""

_AUTOMATIC: Final = ("User-Agent", "Accept", "Content-Type")
"""Fields the library would add where a client sent none."""


class HttpUpstream:
    """An `Upstream`. Owned by the event loop."""

    def __init__(self, policy: BackendPolicy, key_header: str = "authorization") -> None:
        """`key_header` is where its provider's clients send their key."""
        self._policy = policy
        self._key_header = key_header
        self._session: aiohttp.ClientSession | None = None
        self._num_open = 0
        self._waits: set[asyncio.Timeout] = set()
        self._connections: WeakSet[asyncio.Future[None]] = WeakSet()
        self._closed = False

    async def session(self, app: web.Application) -> AsyncIterator[None]:
        """Requests are served between the halves of this: for `app.cleanup_ctx`. Connects nothing
        before it is needed."""
        async with _session(self._policy) as self._session:
            yield

    def close(self) -> None:
        """Requests that are still open end with an error, and no other begins."""
        self._closed = True
        for wait in [wait for wait in self._waits if not wait.expired()]:
            wait.reschedule(asyncio.get_running_loop().time())

    async def exchange(self, outgoing: Outgoing) -> AsyncGenerator[Head | bytes | Tail, None]:
        if self._num_open >= self._policy.max_requests:
            raise Overloaded(
                f"upstream {self._policy.name} is busy; please try again", retry_after_s=1.0
            )
        self._num_open += 1
        response: aiohttp.ClientResponse | None = None
        try:
            async with self._own_errors("answer", within_s=self._policy.timeouts.answer):
                response = await self._send(outgoing)
            self._check(response)
            redaction = Redaction(self._key(), response.status)
            yield Head(response.status, redaction.headers(plain_headers(response.headers)))
            with self._ending_with_its_connection(response):
                try:
                    while piece := await self._more(response):
                        if shown := redaction.take(piece):
                            yield shown
                except GatewayError:
                    while piece := _received(response):
                        if shown := redaction.take(piece):
                            yield shown
                    if rest := redaction.rest():
                        yield rest
                    raise
            if rest := redaction.rest():
                yield rest
            yield Tail()
        finally:
            if response is not None:
                response.close()  # of an answer that was not read to its end, the connection
            self._num_open -= 1

    async def _send(self, outgoing: Outgoing) -> aiohttp.ClientResponse:
        assert self._session is not None
        return await self._session.request(
            outgoing.method,
            self._policy.base_url.join(outgoing.path),
            data=io.BytesIO(outgoing.body),  # in pieces: other requests are served between them
            headers={**outgoing.headers, **self._credentials()},
            allow_redirects=False,
        )

    async def _more(self, response: aiohttp.ClientResponse) -> bytes:
        """The bytes that have come since, at least one; none at the end."""
        async with self._own_errors("rest of an answer", within_s=self._policy.timeouts.silence):
            return await response.content.readany()

    @contextmanager
    def _ending_with_its_connection(self, response: aiohttp.ClientResponse) -> Iterator[None]:
        """Ends the reading of an answer whose connection closes.

        Where the bytes are no HTTP any more, the library closes the connection and leaves its
        reader waiting.
        """
        protocol = None if response.connection is None else response.connection.protocol
        closed = None if protocol is None else protocol.closed
        if closed is None:  # the answer has ended, or its connection has
            yield
            return

        def fail_reader(_: asyncio.Future[None]) -> None:
            if not response.content.is_eof() and response.content.exception() is None:
                response.content.set_exception(aiohttp.ClientPayloadError())

        if closed not in self._connections:
            self._connections.add(closed)
            closed.add_done_callback(_seen)
        closed.add_done_callback(fail_reader)
        try:
            yield
        finally:
            closed.remove_done_callback(fail_reader)

    def _check(self, response: aiohttp.ClientResponse) -> None:
        """Answers that are about this gateway, and would mislead its client."""
        name, key = self._policy.name, self._policy.api_key
        if response.status < 200:
            raise UpstreamFailed(
                f"upstream {name} answered with status {response.status}, which is no answer"
            )
        if 300 <= response.status < 400:
            raise UpstreamFailed(f"upstream {name} answered with a redirect, which is not followed")
        if response.status == 401 and key is not None:
            raise UpstreamFailed(f"upstream {name} does not take this gateway's key")

    def _key(self) -> str:
        """The policy's key; empty where there is none."""
        return "" if self._policy.api_key is None else self._policy.api_key.reveal()

    def _credentials(self) -> dict[str, str]:
        key = self._policy.api_key
        if key is None:
            return {}
        headers = {"auto": self._key_header, "bearer": "authorization", "x-api-key": "x-api-key"}
        header = headers[self._policy.key_header]
        return {header: f"Bearer {key.reveal()}" if header == "authorization" else key.reveal()}

    @asynccontextmanager
    async def _own_errors(self, part: str, *, within_s: float) -> AsyncIterator[None]:
        """Raises the library's errors as the gateway's own: a message of the library may hold the
        address, and its classes mean elsewhere that a client left."""
        name = self._policy.name
        wait = asyncio.timeout(0.0 if self._closed else within_s)
        try:
            async with wait:
                self._waits.add(wait)
                yield
        except TimeoutError:
            if self._closed:
                raise Overloaded(
                    "the gateway is shutting down; please try again", retry_after_s=5.0
                ) from None
            raise TimedOut(f"upstream {name}: no {part} in time") from None
        except aiohttp.ClientConnectorError:
            raise UpstreamFailed(f"upstream {name} cannot be reached") from None
        except (
            aiohttp.ClientError,
            OSError,
            RuntimeError,
        ):  # the last one where a connection has closed between two reads
            raise UpstreamFailed(f"upstream {name} broke off the {part}") from None
        finally:
            self._waits.discard(wait)


def _received(response: aiohttp.ClientResponse) -> bytes:
    """The bytes that came before an answer's connection broke, and were not read yet.

    The library raises a reader's error before it hands out what it holds, so it is taken from
    below that check.
    """
    return response.content._read_nowait(-1)


def _seen(closed: asyncio.Future[None]) -> None:
    """Take the exception of a closed connection: its reader has got it already."""
    if not closed.cancelled():
        closed.exception()


def _session(backend: BackendPolicy) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=backend.max_requests, keepalive_timeout=IDLE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=backend.timeouts.connect),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_AUTOMATIC,
        auto_decompress=False,
        trust_env=False,
        max_line_size=MAX_LINE_NBYTES,
        max_field_size=MAX_LINE_NBYTES,
    )
