"""Packing slices into row groups, and runs of pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.page_tables import PageTables
from engine.model.rows import RowGroups, fixed_groups, one_group
from engine.model.runs import SlotRun
from engine.schedule.sequence import Sequence, Slice
from engine.types import Sampling

pytestmark = pytest.mark.engine

PAGE = 4
ROWS = RowGroups(prefill=8, decode=3, sampled=2)


def made(num_prompt: int, num_output: int) -> Sequence:
    """A sequence whose token ids are their positions."""
    total = num_prompt + num_output
    return Sequence(
        "r",
        list(range(total)),
        num_prompt,
        Sampling(max_tokens=1),
        block_table=list(range(-(-total // PAGE))),
    )


def tables_of(slices: list[Slice]) -> PageTables:
    """The page tables of the slices' sequences."""
    tables = PageTables(PAGE, 100)
    tables.renew(piece.sequence for piece in slices)
    return tables


def runs_of(table: list[int], start: int, end: int) -> list[SlotRun]:
    """The runs of tokens `[start, end)` of a sequence on these pages."""
    sequence = Sequence("r", [], 0, Sampling(max_tokens=1), block_table=table)
    tables = PageTables(PAGE, 100)
    tables.renew([sequence])
    return list(tables.runs(sequence, start, end))


@pytest.mark.parametrize(
    ("table", "start", "end", "expected"),
    [
        ([0, 1, 2], 0, 12, [SlotRun(0, 12)]),
        ([0, 1, 2], 3, 7, [SlotRun(3, 4)]),
        ([5, 6, 2], 0, 10, [SlotRun(20, 8), SlotRun(8, 2)]),
        ([5, 3, 4], 2, 9, [SlotRun(22, 2), SlotRun(12, 5)]),
        ([2, 1, 0], 0, 12, [SlotRun(8, 4), SlotRun(4, 4), SlotRun(0, 4)]),
        ([7], 1, 1, []),
        ([0, 1, 9], 0, 8, [SlotRun(0, 8)]),
    ],
)
def test_runs(table: list[int], start: int, end: int, expected: list[SlotRun]) -> None:
    """Consecutive pages are one run, cut at the tokens asked for."""
    assert runs_of(table, start, end) == expected


@given(table=st.lists(st.integers(0, 9), min_size=1, max_size=6), data=st.data())
def test_runs_name_every_slot_once(table: list[int], data: st.DataObject) -> None:
    """Runs list the slots of the tokens, in order."""
    start = data.draw(st.integers(0, len(table) * PAGE))
    end = data.draw(st.integers(start, len(table) * PAGE))
    slots = [run.first + i for run in runs_of(table, start, end) for i in range(run.num_slots)]
    assert slots == [table[t // PAGE] * PAGE + t % PAGE for t in range(start, end)]


@given(
    cuts=st.lists(st.integers(1, 5), max_size=6),
    pages=st.lists(st.integers(0, 9), min_size=30, max_size=30),
)
def test_a_growing_table_is_followed(cuts: list[int], pages: list[int]) -> None:
    """A page table that grew with its block table has the runs of one made at once."""
    block_table: list[int] = []
    sequence = Sequence("r", [], 0, Sampling(max_tokens=1), block_table=block_table)
    grown = PageTables(PAGE, 100)
    for cut in cuts:
        block_table += pages[len(block_table) : len(block_table) + cut]
        grown.renew([sequence])
        assert list(grown.runs(sequence, 0, len(block_table) * PAGE)) == runs_of(
            block_table, 0, len(block_table) * PAGE
        )


def test_other_pages_are_noticed() -> None:
    """A sequence that got another block table is not looked for in its old pages."""
    sequence = made(8, 0)
    tables = PageTables(PAGE, 100)
    tables.renew([sequence])
    sequence.block_table = [7, 3]
    tables.renew([sequence])
    assert tables.runs(sequence, 0, 8) == (SlotRun(28, 4), SlotRun(12, 4))


def test_one_group_packs_everything() -> None:
    """Fast mode: one pass, no padding, a head row per sampling slice."""
    slices = [Slice(made(10, 0), 2, 5, False), Slice(made(3, 1), 3, 1, True)]
    group = one_group(slices, tables_of(slices))
    assert [(span.row, span.start, span.num_rows, span.num_sampled) for span in group.spans] == [
        (0, 2, 5, 0),
        (5, 3, 1, 1),
    ]
    assert (group.num_rows, group.num_sampled, group.attend) == (6, 1, "free")


def test_fixed_groups_by_position() -> None:
    """A slice over the end of its prompt is prompt rows first, then generated rows, one span
    each."""
    slices = [Slice(made(10, 3), 1, 12, True)]
    groups = list(fixed_groups(slices, tables_of(slices), ROWS))
    shape = [
        (
            g.attend,
            g.num_rows,
            g.num_sampled,
            [(s.start, s.num_rows, s.num_sampled) for s in g.spans],
        )
        for g in groups
    ]
    assert shape == [
        ("prompt", 8, 0, [(1, 8, False)]),
        ("prompt", 8, 0, [(9, 1, False)]),
        ("generated", 3, 2, [(10, 1, False), (11, 1, False), (12, 1, True)]),
    ]


def test_head_rows_are_bounded() -> None:
    """A group closes when its head rows are full, so that the head's row count never changes."""
    slices = [Slice(made(2, 0), 0, 2, True) for _ in range(3)]
    groups = list(fixed_groups(slices, tables_of(slices), ROWS))
    assert [(len(g.spans), g.num_sampled) for g in groups] == [(2, 2), (1, 2)]


@given(
    pieces=st.lists(
        st.tuples(st.integers(1, 12), st.integers(0, 5), st.integers(0, 16), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_every_token_once_and_in_order(pieces: list[tuple[int, int, int, bool]]) -> None:
    """Groups cover every token of every slice once, in order, on rows that do not overlap, and
    sample what was asked."""
    slices = []
    for num_prompt, num_output, start, sample in pieces:
        total = num_prompt + num_output
        start = min(start, total - 1)
        slices.append(Slice(made(num_prompt, num_output), start, total - start, sample))
    seen: dict[int, list[int]] = {index: [] for index in range(len(slices))}
    sampled = []
    for group in fixed_groups(slices, tables_of(slices), ROWS):
        rows = [row for span in group.spans for row in range(span.row, span.row + span.num_rows)]
        assert rows == list(range(len(rows)))
        assert len(rows) <= group.num_rows
        for span in group.spans:
            seen[span.slice_index] += span.token_ids
            sampled += [span.slice_index] * span.num_sampled
            assert sum(run.num_slots for run in span.slots) == span.end
    assert seen == {
        index: list(range(s.start, s.start + s.num_tokens)) for index, s in enumerate(slices)
    }
    assert sorted(sampled) == [index for index, s in enumerate(slices) if s.sample]
