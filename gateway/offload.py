"""Work on large bodies, beside the event loop: in one thread,
so that the loop never waits for more than one other.

Python's threads take turns: work in Python gives way within a few milliseconds, a call into C only
when it returns. So whatever is handed over here must not be one long call. What is small is done at
once, where it is: the way to a thread and back takes longer.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

SMALL_NBYTES: Final = 32 * 1024
"""Of a body that takes ten milliseconds at most, whatever is in it."""


class OffloadThread:
    """One thread, started when it is first needed. Work is done in the order in which it came."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "aside")

    async def run(self, nbytes: int, work: Callable[[], T]) -> T:
        """Do `work` here if it is small, else in the thread; returns or raises what it does.

        `nbytes` is the size of its input. Once its caller is cancelled, work is not begun any
        more, but work in progress runs to its end.
        """
        if nbytes <= SMALL_NBYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, _uncollected, work)


def _uncollected(work: Callable[[], T]) -> T:
    with _collector_resting():
        return work()


@contextmanager
def _collector_resting() -> Iterator[None]:
    """Without the cycles' collector, which stops every thread to look at each of the many objects
    that a body becomes; next to all of them are gone, without its help, by the time it goes on."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
