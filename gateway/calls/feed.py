"""Waiting for a backend's next event, no longer than its client can,
without disturbing the backend.

Knows no wire format.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from gateway.errors import EngineFailed

E = TypeVar("E")


class EventFeed(Generic[E]):
    """Reads one backend iterator for one request.

    A deadline that cancelled `anext` would end the generator it waits in; here the step goes on and
    is picked up by the next call.
    """

    def __init__(self, events: AsyncIterator[E]) -> None:
        self._events = events
        self._step: asyncio.Task[E] | None = None

    async def next(self, within_s: float | None = None) -> E | None:
        """The next event, or None when there was none within `within_s` seconds. Raises what the
        backend raises."""
        if self._step is None:
            self._step = asyncio.create_task(self._advance())
        done, _ = await asyncio.wait((self._step,), timeout=within_s)
        if not done:
            return None
        step, self._step = self._step, None
        return step.result()

    async def close(self) -> None:
        """The backend has been told to stop when this returns. Idempotent."""
        if self._step is not None:
            self._step.cancel()
            await asyncio.wait((self._step,))
            if not self._step.cancelled():
                self._step.exception()  # seen: nobody is left to tell
            self._step = None
        if isinstance(self._events, AsyncGenerator):
            await self._events.aclose()

    async def _advance(self) -> E:
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            raise EngineFailed("the engine stopped without finishing the answer") from None


class Keepalive:
    """How long a client has heard nothing: events of which it is told nothing, and pieces of
    events, do not break it."""

    def __init__(self, longest_s: float | None) -> None:
        """It begins now, and lasts no longer than `longest_s`; None: for ever."""
        self._longest_s = longest_s
        self._began_s = _now_s()

    @property
    def left_s(self) -> float | None:
        """Seconds until a sign of life is due, 0 when it is; None: never."""
        return (
            None
            if self._longest_s is None
            else max(0.0, self._began_s + self._longest_s - _now_s())
        )

    def broken(self, data: bytes, sign: bytes) -> bytes:
        """What the client is to hear now: `data`, or `sign` where there is none and one is due."""
        due = self.left_s == 0
        if data or due:
            self._began_s = _now_s()
        return data or (sign if due else b"")


@asynccontextmanager
async def feed(events: AsyncIterator[E]) -> AsyncIterator[EventFeed[E]]:
    """An `EventFeed` that is closed at the end of the block, however it ends."""
    reader = EventFeed(events)
    try:
        yield reader
    finally:
        await reader.close()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
