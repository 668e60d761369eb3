"""The index's own figures: what is held before, and the rule they are held to."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from bench.index import IndexFigures, measure_index, show_index


def test_as_many_blocks_are_held_as_the_table_says() -> None:
    """Each size is measured beside at least so many blocks, and a prompt found again costs less
    than one inserted."""
    figures = measure_index((100, 1000), num_tokens=4000)
    assert [row.num_held for row in figures] == [100, 1000]
    assert all(row.num_tokens == 4000 and 0 < row.warm_s < row.insert_s for row in figures)


def test_the_rule_is_kept_or_said_to_be_broken() -> None:
    """Too slow beside few blocks, or much slower beside many, fails."""
    few = IndexFigures(10_000, 100_000, 0.01, 0.05, 0.010)
    console = Console(file=io.StringIO())
    assert show_index(console, [few, replace(few, num_held=10**6, warm_s=0.015)])
    assert not show_index(console, [few, replace(few, num_held=10**6, warm_s=0.016)])
    assert not show_index(console, [replace(few, warm_s=0.021), replace(few, num_held=10**6)])
