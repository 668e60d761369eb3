"""Parts of the rows of a pass that the lean attention takes one by one.

Single rows of sequences that begin alike are one part. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

from engine.model.runs import SlotRun, skip_runs

MAX_RUNS: Final = 6
"""More runs than this are copied together rather than attended one by one."""

MIN_SHARED: Final = 64
"""Fewer slots than this are not worth reading together."""


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Consecutive rows of one sequence: `num_rows` from `row` on, the first of them at position
    `start`.

    `runs` hold the sequence's tokens `[0, start + num_rows)`.
    """

    row: int
    num_rows: int
    start: int
    runs: tuple[SlotRun, ...]

    @property
    def end(self) -> int:
        """Tokens the last row attends to."""
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True)
class SharedPrefixRows:
    """Single rows from `row` on, of sequences that all begin with the slots of `shared`; `own` are
    each one's other slots."""

    row: int
    shared: SlotRun
    own: tuple[tuple[SlotRun, ...], ...]

    @property
    def num_rows(self) -> int:
        return len(self.own)

    @property
    def num_own(self) -> int:
        """Slots of the row that has the most of its own."""
        return max(sum(run.num_slots for run in runs) for runs in self.own)


Part: TypeAlias = SequenceRows | SharedPrefixRows


def plan_parts(
    spans: Seq[SequenceRows], window: int | None, max_shared_rows: int
) -> tuple[Part, ...]:
    """All rows in order, as parts to attend one by one; what a window hides from a single row is
    left out."""
    parts: list[Part] = []
    for begins, same in groupby(spans, _first_slot):
        group = list(same)
        if begins is None:
            parts += group
        elif len(group) > 1 and (window is None or all(span.end <= window for span in group)):
            for at in range(0, len(group), max_shared_rows):
                parts += _shared_parts(group[at : at + max_shared_rows])
        else:
            parts += [_single_part(span, window) for span in group]
    return tuple(parts)


def _first_slot(span: SequenceRows) -> int | None:
    """Equal for single rows that could be taken together; None for several rows. Slots are never
    negative."""
    if span.num_rows > 1:
        return None
    return span.runs[0].first if len(span.runs) <= MAX_RUNS else -1 - span.row


def _shared_parts(spans: Seq[SequenceRows]) -> list[Part]:
    num_shared = min(span.runs[0].num_slots for span in spans)
    if num_shared < MIN_SHARED:
        return [_single_part(span, None) for span in spans]
    shared = SlotRun(spans[0].runs[0].first, num_shared)
    return [
        SharedPrefixRows(
            spans[0].row, shared, tuple(skip_runs(span.runs, num_shared) for span in spans)
        )
    ]


def _single_part(span: SequenceRows, window: int | None) -> SharedPrefixRows:
    runs = span.runs if window is None else skip_runs(span.runs, max(0, span.end - window))
    return SharedPrefixRows(span.row, runs[0], (runs[1:],))
