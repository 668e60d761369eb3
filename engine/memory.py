"""Memory by the megabyte: for pools of KV, and for what is moved between tiers.

Knows nothing of what it holds.

A fresh megabyte costs more in page faults than in moving its bytes, so large buffers are mappings
of their own that ask for huge pages, and go back to the system when their last view is gone.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

Payload: TypeAlias = bytes | memoryview
"""Bytes that nobody changes any more. A view is read-only, and of single bytes."""

Lend: TypeAlias = Callable[[int], memoryview]
"""Gives a writable view of so many bytes that nobody else has, whatever they are: `buffer`, or a
stage's `lend`."""

MAPPED_NBYTES: Final = 1024**2
"""From this size on a buffer is a mapping of its own."""

CELL_NBYTES: Final = 64 * 1024
"""Unit in which a stage is lent."""
_FREE: Final = b"\x01"
_LENT: Final = b"\x00"


def mapping(nbytes: int) -> mmap.mmap:
    """Zeroed memory of at least one byte, in huge pages where the system has them; used only where
    it is written."""
    memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def buffer(nbytes: int) -> memoryview:
    """A writable view of `nbytes` bytes that nobody else has."""
    return memoryview(mapping(nbytes) if nbytes >= MAPPED_NBYTES else bytearray(nbytes))


def joined(parts: Sequence[Payload]) -> Payload:
    """The parts, one after the other, in memory of their own."""
    nbytes = sum(map(len, parts))
    if nbytes < MAPPED_NBYTES:
        return b"".join(parts)
    whole, at = buffer(nbytes), 0
    for part in parts:
        whole[at : at + len(part)] = part
        at += len(part)
    return whole.toreadonly()


class Stage:
    """Memory that is lent, comes back when the last view of it is gone, and is lent again: it is
    touched once.

    Safe for any thread. What does not fit now is lent from memory of its own, so `lend` always
    works.
    """

    def __init__(self, nbytes: int) -> None:
        self._memory = mapping(max(nbytes, 1))
        self._cells = bytearray(_FREE * (nbytes // CELL_NBYTES))
        # Views end in any thread, in the middle of anything: what comes back only waits here for
        # the next `lend`.
        self._returned: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    def touch(self) -> None:
        """Have all of it at hand, before anybody borrows: later writes would wait for fresh
        memory."""
        for at in range(0, len(self._memory), mmap.PAGESIZE):
            self._memory[at] = 0

    def lend(self, nbytes: int) -> memoryview:
        """See `Lend`."""
        if nbytes < MAPPED_NBYTES:
            return buffer(nbytes)
        num_cells = -(-nbytes // CELL_NBYTES)
        with self._lock:
            self._take_back()
            first = self._cells.find(_FREE * num_cells)
            if first < 0:
                return buffer(nbytes)
            self._cells[first : first + num_cells] = _LENT * num_cells
        lent = (ctypes.c_ubyte * nbytes).from_buffer(self._memory, first * CELL_NBYTES)
        weakref.finalize(lent, self._returned.append, (first, num_cells)).atexit = False
        return memoryview(lent).cast("B")

    def _take_back(self) -> None:
        while self._returned:
            first, num_cells = self._returned.popleft()
            self._cells[first : first + num_cells] = _FREE * num_cells
