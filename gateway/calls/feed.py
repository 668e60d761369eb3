"""Waits for a backend's next event with a deadline, which does not disturb the backend.

Knows no wire format.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.errors import EngineFailed

E = TypeVar("E")


@dataclass(slots=True)
class EventFeed(Generic[E]):
    """Reads one backend iterator for one request.

    A deadline that cancelled `anext` would end the generator it waits in; here the step goes on and
    is picked up by the next call.
    """

    events: AsyncIterator[E]
    _step: asyncio.Task[E] | None = field(default=None, init=False)

    async def next(self, within_s: float | None = None) -> E | None:
        """The next event, or None where none came within `within_s` seconds. Raises the backend's
        errors."""
        if self._step is None:
            self._step = asyncio.ensure_future(anext(self.events))
        done, _ = await asyncio.wait((self._step,), timeout=within_s)
        if not done:
            return None
        step, self._step = self._step, None
        try:
            return step.result()
        except StopAsyncIteration:
            raise EngineFailed("the engine stopped without finishing the answer") from None

    async def aclose(self) -> None:
        """Stop the backend. It has begun to stop when this returns. Idempotent."""
        if self._step is not None:
            self._step.cancel()
            await asyncio.wait((self._step,))
            if not self._step.cancelled():
                self._step.exception()  # nothing else reads it
            self._step = None
        if isinstance(self.events, AsyncGenerator):
            await self.events.aclose()


class Keepalive:
    """Sends a ping to a client that has been sent nothing for `interval_s`; None: never."""

    def __init__(self, interval_s: float | None) -> None:
        self._interval_s = interval_s
        self._now_s = asyncio.get_running_loop().time
        self._last_sent_s = self._now_s()

    @property
    def left_s(self) -> float | None:
        """Seconds until a ping is due, 0 when it is; None: never."""
        if self._interval_s is None:
            return None
        return max(0.0, self._last_sent_s + self._interval_s - self._now_s())

    def next_chunk(self, data: bytes, ping: bytes) -> bytes:
        """The bytes to send now: `data`, or `ping` where there is none and one is due.

        An event of which the client gets nothing, or a piece of one, is no data.
        """
        due = self.left_s == 0
        if data or due:
            self._last_sent_s = self._now_s()
        return data or (ping if due else b"")
