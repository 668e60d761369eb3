"""Block tables of the sequences of a step as arrays, kept up as they grow. Knows no tensors and no device."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.schedule.sequence import Sequence

_FIRST: Final = 32
"""Pages that a table has room for at first."""


class PageTable:
    """One block table as int32: a step takes in only the pages that are new since the last one."""

    __slots__ = ("_block_table", "_num_pages", "_pages")

    def __init__(self, block_table: Seq[int]) -> None:
        self._block_table = block_table
        self._num_pages = 0
        self._pages: NDArray[np.int32] = np.zeros(_FIRST, dtype=np.int32)

    @property
    def pages(self) -> NDArray[np.int32]:
        """The pages taken in."""
        return self._pages[: self._num_pages]

    def is_of(self, block_table: Seq[int]) -> bool:
        """Whether this is about that very list: a list's pages never change, it only grows."""
        return self._block_table is block_table

    def extend(self) -> None:
        """Take in the pages that the block table has got."""
        table, start, end = self._block_table, self._num_pages, len(self._block_table)
        if end > len(self._pages):
            grown = np.zeros(max(end, 2 * len(self._pages)), dtype=np.int32)
            grown[:start] = self._pages[:start]
            self._pages = grown
        if end > start:
            self._pages[start:end] = table[start:end]
            self._num_pages = end


class PageTables:
    """The page tables of the sequences of the last step."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._tables: dict[Sequence, PageTable] = {}

    def renew(self, sequences: Iterable[Sequence]) -> None:
        """Take in what the block tables of `sequences` have got, and forget all others."""
        tables: dict[Sequence, PageTable] = {}
        for sequence in sequences:
            table = self._tables.get(sequence)
            if table is None or not table.is_of(sequence.block_table):
                table = PageTable(sequence.block_table)
            table.extend()
            tables[sequence] = table
        self._tables = tables

    def slots(self, sequence: Sequence, start: int, end: int) -> NDArray[np.int64]:
        """The slots of tokens `[start, end)` of a sequence that was among those last renewed."""
        positions = np.arange(start, end, dtype=np.int64)
        pages = self._tables[sequence].pages
        slots: NDArray[np.int64] = pages[positions // self.page_size] * np.int64(self.page_size) + positions % self.page_size
        return slots

    def fill(self, out: NDArray[np.int32], sequences: Seq[Sequence]) -> None:
        """Write each one's pages into its row of `out [num_sequences, any]`, as many as there are or fit; the rest stays."""
        for row, sequence in zip(out, sequences, strict=True):
            pages = self._tables[sequence].pages[: len(row)]
            row[: len(pages)] = pages
