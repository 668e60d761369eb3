"""The lag of the event loop: every request, health checks too, waits at least so long.

Knows no requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

EVERY_S: Final = 0.05


@asynccontextmanager
async def watching_the_loop(
    note: Callable[[float], None], every_s: float = EVERY_S
) -> AsyncIterator[None]:
    """Tells `note` again and again by how many seconds the running loop woke a sleeper too late."""
    watch = asyncio.create_task(_watch(note, every_s))
    try:
        yield
    finally:
        watch.cancel()


async def _watch(note: Callable[[float], None], every_s: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + every_s
        await asyncio.sleep(every_s)
        note(max(0.0, loop.time() - due_s))
