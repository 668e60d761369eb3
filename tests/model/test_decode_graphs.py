"""Recorded decode steps: which sizes there are, and what happens where there is no room for one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.page_tables import PageTables
from engine.model.paged.decode_graphs import FREE_NBYTES, batch_sizes
from engine.schedule.sequence import Sequence, Slice
from engine.types import Sampling
from tests.fakes.paged_device import FakeRecorder, fake_kit
from tests.fakes.torch_driver import Driver

pytestmark = pytest.mark.engine

Folder = Callable[[str], Path]
OPTIONS: Final[dict[str, Any]] = {
    "dtype": "float32",
    "exact": "off",
    "context": 512,
    "runner": "lean",
    "max_sequences": 8,
}


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (32, (1, 2, 4, 8, 16, 32))]
)
def test_sizes(most: int, sizes: tuple[int, ...]) -> None:
    """Powers of two, and the largest batch there can be."""
    assert batch_sizes(most) == sizes


def load(
    folder: Path, recorder: FakeRecorder, caplog: pytest.LogCaptureFixture
) -> tuple[Driver, list[tuple[str, Any]]]:
    """A driver, and what was logged of graphs."""
    with caplog.at_level(logging.INFO, "engine.model"):
        driver = Driver(folder, fake_kit(recorder), **OPTIONS)
    said = [
        (one.message, one.__dict__["fields"]) for one in caplog.records if "decode" in one.message
    ]
    return driver, said


def test_large_sizes_are_recorded_first(
    tiny_folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """So that smaller ones find their memory; one line says what there is."""
    recorder = FakeRecorder()
    _, said = load(tiny_folder("llama"), recorder, caplog)
    assert [len(graph.output) for graph in recorder.graphs] == [8, 4, 2, 1]
    assert said == [("decode steps recorded", {"batches": [1, 2, 4, 8], "used": True})]


def test_memory_bounds_them(tiny_folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """No graph is recorded in the memory that prefills need; steps of that size are computed as
    they come."""
    recorder = FakeRecorder(free=FREE_NBYTES + 150, cost=100)
    driver, said = load(tiny_folder("llama"), recorder, caplog)
    assert [len(graph.output) for graph in recorder.graphs] == [8, 4]
    assert [fields.get("batch") for _, fields in said] == [2, 1, None]
    one = driver.sequence("one", range(3, 40), range(3))
    driver.prefill(one)
    before = recorder.graphs[-1].num_replays
    driver.decode([one], 2)
    assert recorder.graphs[-1].num_replays == before + 2  # in the graph of four


def test_a_size_that_cannot_be_recorded(
    tiny_folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, the others serve, and a batch larger than all of them is computed as it comes."""
    recorder = FakeRecorder(most=2)
    driver, said = load(tiny_folder("llama"), recorder, caplog)
    assert said[0] == ("a decode graph cannot be recorded", {"batch": 8, "error": "out of memory"})
    assert [len(graph.output) for graph in recorder.graphs] == [2, 1]
    batch = [driver.sequence(f"s{i}", range(3 + i, 30), range(2 * i, 2 * i + 2)) for i in range(3)]
    for sequence in batch:
        driver.prefill(sequence)
    before = [graph.num_replays for graph in recorder.graphs]
    driver.decode(batch, 1)
    assert [graph.num_replays for graph in recorder.graphs] == before


def test_graphs_that_say_something_else_are_not_used(
    tiny_folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """A device whose recorded steps are wrong serves without them, and says so."""

    class Wrong(FakeRecorder):
        def record(self, work: Callable[[], Any]) -> Any:
            return super().record(lambda: work() * -1)

    recorder = Wrong()
    driver, said = load(tiny_folder("llama"), recorder, caplog)
    assert said[-1] == ("decode steps recorded", {"batches": [1, 2, 4, 8], "used": False})
    before = sum(graph.num_replays for graph in recorder.graphs)
    one = driver.sequence("one", range(3, 40), range(3))
    driver.prefill(one)
    driver.decode([one], 2)
    assert sum(graph.num_replays for graph in recorder.graphs) == before


def test_prefills_and_drafts_are_not_replayed(
    tiny_folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """A step with more than one token of anybody, or one that samples nothing, is computed as it
    comes."""
    recorder = FakeRecorder()
    driver, _ = load(tiny_folder("llama"), recorder, caplog)
    before = sum(graph.num_replays for graph in recorder.graphs)
    one = driver.sequence("one", range(3, 40), range(3))
    driver.runner.step([Slice(one, 0, 1, sample=False)])
    driver.prefill(one, 1)
    driver.runner.step([Slice(one, 37, 1, sample=True, draft=(4,))])
    assert sum(graph.num_replays for graph in recorder.graphs) == before


@given(data=st.data())
def test_page_tables_keep_up_with_block_tables(data: st.DataObject) -> None:
    """However block tables grow between steps, and whoever comes and goes, tables and slots are
    what the lists say."""
    tables = PageTables(4, 100)
    sequences = [Sequence(str(i), [], 0, Sampling(max_tokens=1)) for i in range(4)]
    for _ in range(data.draw(st.integers(1, 6))):
        there = data.draw(st.lists(st.sampled_from(sequences), min_size=1, unique_by=id))
        for one in there:
            if data.draw(st.booleans()) and one.block_table:
                one.block_table = list(
                    reversed(one.block_table)
                )  # preempted, and back on other pages
            one.block_table += data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=40))
        tables.renew(there)
        width = data.draw(st.integers(1, 90))
        out = np.full((len(there), width), -1, dtype=np.int32)
        tables.fill(out, there)
        for row, one in zip(out, there, strict=True):
            num = min(width, len(one.block_table))
            assert row[:num].tolist() == one.block_table[:num]
            assert (row[num:] == -1).all()
            end = data.draw(st.integers(1, 4 * len(one.block_table)))
            start = data.draw(st.integers(0, end - 1))
            slots = [4 * one.block_table[i // 4] + i % 4 for i in range(start, end)]
            assert tables.slots(one, start, end).tolist() == slots
