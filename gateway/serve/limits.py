"""The bound on requests in the gateway at a time. Knows no tenants and no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Overloaded


class InFlight:
    """Counts requests being served and refuses more than `limit`, so that bodies and queues stay
    bounded."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("limit must be at least 1")
        self._limit = limit
        self._num = 0
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._freed = asyncio.Event()

    def __len__(self) -> int:
        return self._num

    def close(self) -> None:
        """Refuse every new request from now on."""
        self._closed = True

    @contextmanager
    def slot(self) -> Iterator[None]:
        """The place of one request. Raises `Overloaded` at once where none is free."""
        if self._closed:
            raise Overloaded("the gateway is shutting down; please try again", retry_after_s=5.0)
        if self._num >= self._limit:
            raise Overloaded("the gateway is full; please try again", retry_after_s=1.0)
        self._num += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num -= 1
            self._freed.set()
            if self._num == 0:
                self._idle.set()

    async def wait_free(self) -> None:
        """Returns when a place is free."""
        await self.wait_at_most(self._limit - 1)

    async def wait_at_most(self, number: int) -> None:
        """Returns when no more than `number` requests are being served."""
        while self._num > number:
            self._freed.clear()
            await self._freed.wait()

    async def wait_idle(self) -> None:
        """Returns when no request is being served."""
        await self._idle.wait()
