"""The rows of a forward pass, made of the slices of a step. Plain data: no tensors, no model."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from engine.model.page_tables import PageTables
from engine.model.runs import SlotRun
from engine.schedule.sequence import Slice

Attend: TypeAlias = Literal["free", "prompt", "generated"]
"""The way rows attend: `free` the fastest; `prompt` and `generated` the two fixed ways of exact
mode."""

DECODE_ROWS: Final = 4
PREFILL_ROWS: Final = 128
QUERY_ROWS: Final = 64
"""Rows one attention call sees in exact mode: fewer than a linear's, so that a short tail does not
attend for a whole group."""


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Exact mode's fixed row counts: every linear of a prompt token sees `prefill` rows, of a
    generated one `decode`.

    `sampled` is the largest and, padded, the only number of rows the language model head sees.
    """

    prefill: int = PREFILL_ROWS
    decode: int = DECODE_ROWS
    sampled: int = DECODE_ROWS


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Consecutive tokens `[start, start + num_rows)` of one sequence on rows from `row` on.

    `slots` holds the sequence's tokens `[0, start + num_rows)`; `written` are the slots of the
    span's own tokens. The last `num_sampled` rows' logits are for slice
    `slice_index`.
    """

    row: int
    start: int
    token_ids: tuple[int, ...]
    slots: tuple[SlotRun, ...]
    written: tuple[SlotRun, ...]
    slice_index: int
    num_sampled: int

    @property
    def num_rows(self) -> int:
        """Rows of this span."""
        return len(self.token_ids)

    @property
    def end(self) -> int:
        """Tokens the last row attends to."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Group:
    """One forward pass: spans back to back, padded to `num_rows` rows; `num_sampled` head rows,
    padding included."""

    spans: tuple[RowSpan, ...]
    num_rows: int
    num_sampled: int
    attend: Attend


def one_group(slices: Seq[Slice], tables: PageTables) -> Group:
    """All slices in one unpadded forward pass."""
    spans: list[RowSpan] = []
    row = 0
    for index, piece in enumerate(slices):
        spans.append(_span(piece, index, (piece.start, piece.end), row, tables))
        row += spans[-1].num_rows
    return Group(tuple(spans), row, sum(span.num_sampled for span in spans), "free")


def fixed_groups(slices: Seq[Slice], tables: PageTables, rows: RowGroups) -> Iterator[Group]:
    """Forward passes of fixed row counts, in an order in which every token's predecessors come no
    later.

    A token's kind follows from its position alone: below `num_prompt` it is a prompt token,
    whatever step computes it, so that a sequence computed again after preemption gets the same
    bits.
    """
    yield from _pack(slices, tables, rows, prompt=True)
    yield from _pack(slices, tables, rows, prompt=False)


def _pack(
    slices: Seq[Slice], tables: PageTables, rows: RowGroups, *, prompt: bool
) -> Iterator[Group]:
    num_rows = rows.prefill if prompt else rows.decode
    spans: list[RowSpan] = []
    used = sampled = 0

    def close() -> Group:
        return Group(
            tuple(spans),
            num_rows,
            rows.sampled if sampled else 0,
            "prompt" if prompt else "generated",
        )

    for index, piece in enumerate(slices):
        stop = piece.end
        border = piece.sequence.num_prompt
        position, end = (
            (piece.start, min(stop, border)) if prompt else (max(piece.start, border), stop)
        )
        while position < end:
            # A generated token attends alone, as one query row: only so are its bits the same in
            # any batch.
            take = min(end - position, num_rows - used) if prompt else 1
            spans.append(_span(piece, index, (position, position + take), used, tables))
            position, used, sampled = position + take, used + take, sampled + spans[-1].num_sampled
            if used == num_rows or sampled == rows.sampled:
                yield close()
                spans, used, sampled = [], 0, 0
    if spans:
        yield close()


def _span(
    piece: Slice, index: int, bounds: tuple[int, int], row: int, tables: PageTables
) -> RowSpan:
    """`bounds` never cut between rows that are sampled: those of a draft are one by one in exact
    mode."""
    start, end = bounds
    sequence = piece.sequence
    return RowSpan(
        row=row,
        start=start,
        token_ids=tuple(piece.token_ids[start - piece.start : end - piece.start]),
        slots=tables.runs(sequence, 0, end),
        written=tables.runs(sequence, start, end),
        slice_index=index,
        num_sampled=max(0, end - max(start, piece.end - piece.num_sampled)),
    )
