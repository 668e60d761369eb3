"""Block tables of the sequences of a step as arrays, kept up as they grow.

Knows no tensors and no device.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.model.runs import SlotRun
from engine.schedule.sequence import Sequence

_FIRST: Final = 32
"""Pages that a table has room for at first."""


class PageTable:
    """One block table as int32: a step takes in only the pages that are new since the last one."""

    __slots__ = ("_num_pages", "_pages", "_pool_pages", "block_table")

    def __init__(self, block_table: Seq[int], pool_pages: int) -> None:
        self.block_table = block_table
        self._pool_pages = pool_pages
        self._num_pages = 0
        self._pages: NDArray[np.int32] = np.zeros(_FIRST, dtype=np.int32)

    @property
    def pages(self) -> NDArray[np.int32]:
        """The pages taken in."""
        return self._pages[: self._num_pages]

    def extend(self) -> None:
        """Take in the pages that the block table has got. Raises `IndexError` for one that the pool
        does not have."""
        table, start, end = self.block_table, self._num_pages, len(self.block_table)
        if end > len(self._pages):
            grown = np.zeros(max(end, 2 * len(self._pages)), dtype=np.int32)
            grown[:start] = self._pages[:start]
            self._pages = grown
        if end > start:
            new = table[start:end]
            if not 0 <= min(new) <= max(new) < self._pool_pages:
                raise IndexError(f"a page of {new} is not among the pool's {self._pool_pages}")
            self._pages[start:end] = new
            self._num_pages = end


class PageTables:
    """The page tables of the sequences of the last step, over a pool of `pool_pages` pages.

    `slots`, `runs` and `pages` are of sequences that were among those last renewed.
    """

    def __init__(self, page_size: int, pool_pages: int) -> None:
        self.page_size = page_size
        self._pool_pages = pool_pages
        self._tables: dict[Sequence, PageTable] = {}

    def renew(self, sequences: Iterable[Sequence]) -> None:
        """Take in what the block tables of `sequences` have got, and forget all others. Raises
        `IndexError`."""
        before, self._tables = self._tables, {}
        for sequence in sequences:
            table = before.get(sequence)
            # A list's pages never change, it only grows; after a preemption it is another list.
            if table is None or table.block_table is not sequence.block_table:
                table = PageTable(sequence.block_table, self._pool_pages)
            table.extend()
            self._tables[sequence] = table

    def pages(self, sequence: Sequence) -> NDArray[np.int32]:
        """The pages of a sequence, in place until the next `renew`."""
        return self._tables[sequence].pages

    def slots(self, sequence: Sequence, start: int, end: int) -> NDArray[np.int64]:
        """The slots of tokens `[start, end)` of a sequence."""
        positions = np.arange(start, end, dtype=np.int64)
        pages = self._tables[sequence].pages
        slots: NDArray[np.int64] = (
            pages[positions // self.page_size] * np.int64(self.page_size)
            + positions % self.page_size
        )
        return slots

    def runs(self, sequence: Sequence, start: int, end: int) -> tuple[SlotRun, ...]:
        """The slots of tokens `[start, end)` of a sequence, in token order, as the fewest runs."""
        if start >= end:
            return ()
        size = self.page_size
        first, last = start // size, -(-end // size)
        pages = self._tables[sequence].pages[first:last]
        breaks = ((pages[1:] - pages[:-1]) != 1).nonzero()[0].tolist()
        runs: list[SlotRun] = []
        page = 0
        for stop in (*(index + 1 for index in breaks), last - first):
            # Tokens before `start` in the first page and from `end` on in the last are cut off.
            begin = max(start, (first + page) * size)
            num_slots = min(end, (first + stop) * size) - begin
            runs.append(SlotRun(int(pages[page]) * size + begin % size, num_slots))
            page = stop
        return tuple(runs)

    def fill(self, out: NDArray[np.int32], sequences: Seq[Sequence]) -> None:
        """Write each one's pages into its row of `out [num_sequences, any]`, as many as there are
        or fit; the rest stays."""
        for row, sequence in zip(out, sequences, strict=True):
            pages = self._tables[sequence].pages[: len(row)]
            row[: len(pages)] = pages
