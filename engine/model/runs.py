"""Where a sequence's tokens lie in the pool, as runs of consecutive slots.

Plain data: knows no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, TypeVar

from engine.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SlotRun:
    """`num_slots` consecutive slots from `first`: a piece of a sequence that can be read in
    place."""

    first: int
    num_slots: int


class RunTable:
    """A block table as runs of slots, kept up as it grows: a step does only what is new since the
    last one."""

    __slots__ = ("_block_table", "_lengths", "_num_pages", "_page_size", "_pages")

    def __init__(self, block_table: Seq[int], page_size: int) -> None:
        self._block_table = block_table
        self._page_size = page_size
        self._num_pages = 0
        self._pages: list[int] = []
        """The first page of every run."""
        self._lengths: list[int] = []
        """Its number of pages."""

    def is_of(self, block_table: Seq[int]) -> bool:
        """Whether this is about that very list: a list's pages never change, it only grows."""
        return self._block_table is block_table

    def extend(self) -> None:
        """Take in the pages that the block table has got."""
        table, pages, lengths = self._block_table, self._pages, self._lengths
        for index in range(self._num_pages, len(table)):
            page = table[index]
            if pages and page == pages[-1] + lengths[-1]:
                lengths[-1] += 1
            else:
                pages.append(page)
                lengths.append(1)
        self._num_pages = len(table)

    def cover(self, start: int, end: int) -> tuple[SlotRun, ...]:
        """The slots of tokens `[start, end)`, in token order, as the fewest runs."""
        size = self._page_size
        runs: list[SlotRun] = []
        position = 0
        for page, length in zip(self._pages, self._lengths, strict=True):
            stop = position + length * size
            first, last = max(start, position), min(end, stop)
            if first < last:
                runs.append(SlotRun(page * size + first - position, last - first))
            position = stop
            if position >= end:
                break
        return tuple(runs)


class KeptTable(Protocol):
    """Something made of a block table, and kept up as that grows."""

    def is_of(self, block_table: Seq[int]) -> bool:
        """Whether this is about that very list: a list's pages never change, it only grows."""
        ...

    def extend(self) -> None:
        """Take in the pages that the block table has got."""
        ...


TableT = TypeVar("TableT", bound=KeptTable)


def renewed(
    tables: Mapping[Sequence, TableT],
    sequences: Iterable[Sequence],
    make: Callable[[Seq[int]], TableT],
) -> dict[Sequence, TableT]:
    """The tables of `sequences` with all that their block tables have got: those there were, else
    made."""
    kept: dict[Sequence, TableT] = {}
    for sequence in sequences:
        table = tables.get(sequence)
        if table is None or not table.is_of(sequence.block_table):
            table = make(sequence.block_table)
        table.extend()
        kept[sequence] = table
    return kept


class RunTables:
    """The run tables of the sequences of the last step."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._tables: dict[Sequence, RunTable] = {}

    def renew(self, sequences: Iterable[Sequence]) -> None:
        """Take in what the block tables of `sequences` have got, and forget all others."""
        self._tables = renewed(
            self._tables, sequences, lambda block_table: RunTable(block_table, self.page_size)
        )

    def cover(self, sequence: Sequence, start: int, end: int) -> tuple[SlotRun, ...]:
        """The slots of tokens `[start, end)` of a sequence that was among those last renewed."""
        return self._tables[sequence].cover(start, end)


def cut_runs(runs: Iterable[SlotRun], num_slots: int) -> tuple[SlotRun, ...]:
    """The first `num_slots` slots of `runs`."""
    kept: list[SlotRun] = []
    for run in runs:
        if num_slots <= 0:
            break
        kept.append(SlotRun(run.first, min(run.num_slots, num_slots)))
        num_slots -= run.num_slots
    return tuple(kept)


def skip_runs(runs: Iterable[SlotRun], num_slots: int) -> tuple[SlotRun, ...]:
    """`runs` without their first `num_slots` slots."""
    kept: list[SlotRun] = []
    for run in runs:
        if run.num_slots > num_slots:
            kept.append(SlotRun(run.first + num_slots, run.num_slots - num_slots))
        num_slots = max(0, num_slots - run.num_slots)
    return tuple(kept)
