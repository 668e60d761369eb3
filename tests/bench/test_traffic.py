"""What the benchmark makes of what it sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lengths import Pair, median_of
from bench.machine import processor
from bench.traffic import Measured, server_timings


def measured(
    ttft_s: float, *, num_read: int = 0, num_written: int = 0, num_skipped: int = 0
) -> Measured:
    """An answer of eleven tokens, a tenth of a second each after the first."""
    return Measured(ttft_s, ttft_s + 1.0, num_read, num_written, 10, 11, num_skipped)


def test_decode_time_leaves_out_the_first_token() -> None:
    """Eleven tokens, one second after the first text: a tenth of a second each."""
    assert measured(3.0).decode_s == pytest.approx(0.1)


def test_median_is_a_run_that_was() -> None:
    """The run in the middle, not an average."""
    runs = [measured(3.0), measured(1.0), measured(2.0)]
    assert median_of(runs) is runs[2]


@pytest.mark.parametrize(
    ("num_read", "num_skipped", "agrees"),
    [(100, 100, True), (100, 131, True), (100, 132, False), (100, 99, False), (96, 100, False)],
)
def test_counts_agree(num_read: int, num_skipped: int, agrees: bool) -> None:
    """A hundred tokens written: all of them are to be read, and less than two blocks more
    skipped."""
    pair = Pair(
        110,
        measured(1.0, num_written=100),
        measured(0.1, num_read=num_read, num_skipped=num_skipped),
    )
    assert pair.counts_agree is agrees
    assert pair.ratio == pytest.approx(0.1)


def test_server_timings_are_read_in_seconds() -> None:
    """Names and milliseconds of the header."""
    assert server_timings("parse;dur=1.5, prefill;dur=250.0") == {"parse": 0.0015, "prefill": 0.25}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "model name\t: Some CPU\nflags\t: sse avx2 avx512f amx_bf16\n\nmodel name\t: Another\n",
            "Some CPU (amx_bf16, avx512f)",
        ),
        ("model name\t: Old CPU\nflags\t: sse\n", "Old CPU (no vector extensions)"),
    ],
    ids=["new", "old"],
)
def test_processor_is_named_with_what_makes_it_fast(
    text: str, expected: str, tmp_path: Path
) -> None:
    """The first processor's name and its widest extensions."""
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert processor(path) == expected
