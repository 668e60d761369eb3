"""Whole pages of a pool in and out by the native library:
a third of the time that copies by way of arrays take.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np

from engine.memory import MAPPED_NBYTES, buffer
from engine.model.kv_pool import KvPool
from engine.native.library import Pages, library


class NativePages:
    """Implements `engine.model.runner.PageMover` for a pool of bfloat16 on the CPU, its pages in
    multiples of 64 bytes a side."""

    def __init__(self, pool: KvPool) -> None:
        whole = pool.whole_pages()
        part, stride = whole[0, 0].nbytes, whole.stride(0) * whole.itemsize
        if part % 64 or stride % 64 or whole.data_ptr() % 64:
            raise ValueError(f"a page's {part} bytes a side are not a multiple of 64")
        self._library = library()
        self._pool = pool
        self._pages = Pages(whole.data_ptr(), stride, part, len(whole))

    def read_pages(self, pages: Seq[int]) -> memoryview:
        """As `KvPool.read_pages`."""
        nbytes = len(pages) * self._pool.page_nbytes
        if nbytes < MAPPED_NBYTES:  # not a mapping, so not aligned
            return self._pool.read_pages(pages)
        self._pool.check_pages(pages, nbytes)
        body = buffer(nbytes)
        numbers = np.array(pages, np.int32)
        self._library.pcg_take_pages(
            self._pages,
            numbers.ctypes.data,
            len(numbers),
            np.frombuffer(body, np.uint8).ctypes.data,
        )
        return body.toreadonly()

    def write_pages(self, pages: Seq[int], body: memoryview) -> None:
        """As `KvPool.write_pages`."""
        self._pool.check_pages(pages, len(body))
        numbers = np.array(pages, np.int32)
        self._library.pcg_put_pages(
            self._pages,
            numbers.ctypes.data,
            len(numbers),
            np.frombuffer(body, np.uint8).ctypes.data,
        )

    def settle(self, pages: Iterable[int]) -> None:
        """Nothing is ever on its way."""

    def close(self) -> None:
        """Nothing to let go of."""
