"""Memory by the megabyte: for pools of KV, and for what is moved between tiers. Knows nothing of what it holds.

A fresh megabyte costs more in page faults than in moving its bytes, so large buffers are mappings of their own that ask
for huge pages, and go back to the system when their last view is gone.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeAlias

Payload: TypeAlias = bytes | memoryview
"""Bytes that nobody changes any more. A view is read-only, and of single bytes."""

MAPPED_NBYTES: Final = 1024**2
"""From this size on a buffer is a mapping of its own."""


def mapping(nbytes: int) -> mmap.mmap:
    """Zeroed memory of at least one byte, in huge pages where the system has them; used only where it is written."""
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
