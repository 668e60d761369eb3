"""Threads that stores' calls run in."""

from __future__ import annotations

import os
import queue
import threading

import pytest

from engine.cache.tiers.io import ThreadIo


@pytest.mark.parametrize("niceness", [0, 3])
def test_threads_are_as_nice_as_they_are_told(niceness: int) -> None:
    """They yield the processor to others of the process, which stays as it is."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    found: queue.Queue[int] = queue.Queue()
    io = ThreadIo("t", 2, niceness=niceness)
    for _ in range(2):
        io.submit(lambda: found.put(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    assert io.close(60.0)
    assert [found.get_nowait(), found.get_nowait()] == [min(before + niceness, 19)] * 2
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
