"""An upstream that answers as it is told, over a real socket,
and keeps what it got byte for byte.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import orjson
from aiohttp import web

JSON = {"Content-Type": "application/json"}
SSE = {"Content-Type": "text/event-stream; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Got:
    """A request as it arrived. `headers` has lower-case names."""

    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


@dataclass(frozen=True, slots=True)
class Say:
    """An answer in pieces. `before_head` and `before_piece` hold it until set; with `cut` the
    connection breaks after the pieces, before the head where there are none."""

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)
    before_head: asyncio.Event | None = None
    before_piece: Mapping[int, asyncio.Event] = field(default_factory=dict)
    cut: bool = False


Script: TypeAlias = Callable[[Got], Say]


def say_json(content: object, status: int = 200, **headers: str) -> Say:
    """A whole answer."""
    return Say(
        (orjson.dumps(content),),
        status,
        JSON | {name.replace("_", "-"): text for name, text in headers.items()},
    )


def say_events(*events: bytes, **more: object) -> Say:
    """A stream of one piece per event."""
    return Say(tuple(events), headers=SSE, **more)  # type: ignore[arg-type]


class FakeUpstream:
    """`held` is set when an answer waits at a gate, `left` when the other side closed a connection
    before the answer's end."""

    def __init__(self, script: Script | Say) -> None:
        self._script: Script = script if callable(script) else lambda got: script
        self.got: list[Got] = []
        self.held = asyncio.Event()
        self.left = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[FakeUpstream]:
        """On a free port of this machine, for the length of the block."""
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=1.0,
            auto_decompress=False,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in http.headers.items()}
        try:
            got = Got(http.raw_path, headers, await http.read())
            self.got.append(got)
            return await self._answer(http, self._script(got))
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise

    async def _answer(self, http: web.Request, say: Say) -> web.StreamResponse:
        await self._pass(say.before_head)
        assert http.transport is not None
        response = web.StreamResponse(status=say.status, headers=say.headers)
        if say.pieces or not say.cut:
            await response.prepare(http)
        for i, piece in enumerate(say.pieces):
            await self._pass(say.before_piece.get(i))
            await response.write(piece)
        if say.cut:
            http.transport.close()  # what was written arrives, and then nothing
        else:
            await response.write_eof()
        return response

    async def _pass(self, gate: asyncio.Event | None) -> None:
        if gate is not None:
            self.held.set()
            await gate.wait()
