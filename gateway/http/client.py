"""The client's side of a request behind aiohttp: its body within a budget,
its answer as fast as it is taken.

No policy.

An answer that nobody takes ends: whoever takes none of it for `server.write_timeout` is a client
that has gone. What of it waits in this process is at most some pieces of a stream, or a whole
answer that is counted in the budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, closing
from typing import Final

from aiohttp import web

from gateway.budget import Claim
from gateway.calls.exchange import Reply
from gateway.http.body import read_body
from policies.sections import ServerPolicy

PIECE_NBYTES: Final = 64 * 1024
"""Of an answer, given to the connection at a time."""


class HttpClient:
    """A `Client` over one aiohttp request. `claim` is for what it takes of memory, and its owner's
    to close."""

    def __init__(
        self, http: web.Request, policy: ServerPolicy, claim: Claim, *, is_last: bool
    ) -> None:
        self._http = http
        self._policy = policy
        self._claim = claim
        self._is_last = is_last
        self._stream: web.StreamResponse | None = None
        self._whole: Reply | None = None
        self._num_held = 0
        self._end = b""

    async def read(self, max_nbytes: int) -> bytes:
        return await read_body(self._http, max_nbytes, self._policy.body_timeout, self._claim)

    def hold(self, nbytes: int) -> None:
        self._claim.grow(nbytes)
        self._num_held += nbytes

    def hand_over(self) -> AbstractContextManager[object]:
        return closing(self._claim.handed_over())

    async def send(self, reply: Reply) -> None:
        assert self._stream is None
        self._claim.take(max(0, len(reply.body) - self._num_held))
        self._whole = reply

    async def deliver(self) -> None:
        if (
            self._whole is None
            or len(self._whole.body) <= PIECE_NBYTES
            or self._http.method == "HEAD"
        ):
            return
        reply, self._whole = self._whole, None
        await self.open(reply.headers, reply.status, len(reply.body))
        assert self._stream is not None
        rest = memoryview(reply.body)
        while len(rest) > PIECE_NBYTES:
            async with _taken(self._http, self._policy.write_timeout):
                await self._stream.write(bytes(rest[:PIECE_NBYTES]))
            rest = rest[PIECE_NBYTES:]
        self._end = bytes(rest)

    async def open(
        self, headers: Mapping[str, str], status: int = 200, nbytes: int | None = None
    ) -> None:
        self._stream = stream = web.StreamResponse(status=status, headers=headers)
        if nbytes is not None:
            stream.content_length = nbytes
        if self._is_last:
            stream.force_close()
        async with _taken(self._http, self._policy.write_timeout):
            await stream.prepare(self._http)

    async def write(self, data: bytes) -> None:
        assert self._stream is not None
        self._claim.take(len(data))
        for begin in range(0, len(data), PIECE_NBYTES):
            async with _taken(self._http, self._policy.write_timeout):
                if self._http.method != "HEAD":
                    await self._stream.write(data[begin : begin + PIECE_NBYTES])
        self._claim.take(-len(data))

    @property
    def leftover(self) -> web.StreamResponse:
        """For a client that has gone: whatever aiohttp may try to write to nobody."""
        return self._stream or web.Response(status=400)

    async def finish(self) -> web.StreamResponse:
        """The response for aiohttp, once the client has taken all of it. Raises `ConnectionError`
        for a client that does not take it."""
        response = self._stream
        if response is None:
            assert self._whole is not None
            reply = self._whole
            response = web.Response(status=reply.status, body=reply.body, headers=reply.headers)
            if self._is_last:
                response.force_close()
        await transmit(self._http, response, self._policy.write_timeout, self._end)
        return response


async def transmit(
    http: web.Request, response: web.StreamResponse, silence_s: float, end: bytes = b""
) -> None:
    """Send a response, or the `end` of one that has begun. Nothing of it is left in this process
    when this returns.

    Raises `ConnectionError` once nothing of it was taken for `silence_s`, and the connection is
    closed then.
    """
    async with _taken(http, silence_s):
        await response.prepare(http)
        transport = http.transport
        if transport is not None:
            transport.set_write_buffer_limits(high=0)  # written is what the kernel has taken
        if isinstance(response, web.Response):
            await response.write_eof()
        else:
            await response.write_eof(b"" if http.method == "HEAD" else end)
        if transport is not None:
            transport.set_write_buffer_limits()


@asynccontextmanager
async def _taken(http: web.Request, within_s: float) -> AsyncIterator[None]:
    """The client has to take the writes of the block in time; one that takes nothing has gone."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except TimeoutError:
        if http.transport is not None:
            http.transport.abort()  # closing alone would wait for the client to take the rest
        raise ConnectionResetError("the client takes nothing of its answer") from None
