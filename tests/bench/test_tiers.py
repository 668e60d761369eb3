"""What the tiers' section prints and when it passes, on made-up figures. No gateway."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from bench.tiers import TierFigures, show_tiers

COLD = TierFigures("cold", "", 6.0, 0)
DEVICE = TierFigures("device hit", "device", 0.1, 3983)
RAM = TierFigures("memory, forced", "ram", 0.14, 3983, 92_000_000, 10e9)
SSD = TierFigures("ssd", "ssd", 0.2, 3983, 92_000_000, 1e9, 300_000)
SEALED = replace(SSD, name="ssd, encrypted", ttft_s=0.21)
REDIS = TierFigures("redis, another gateway", "redis", 0.2, 3983, 92_000_000, 1e9)


def shown(*tiers: TierFigures) -> tuple[bool, str]:
    """The verdict and what is printed."""
    said = StringIO()
    good = show_tiers(Console(file=said, width=160), (COLD, DEVICE, *tiers))
    return good, said.getvalue()


def test_every_row_stands_beside_its_medium_and_its_bound() -> None:
    """100 ms of a device hit, 1.5 times 92 ms of reading and 30 ms: 268 ms; what encryption costs;
    what was resident."""
    good, text = shown(RAM, SSD, SEALED)
    assert good
    (line,) = [line for line in text.splitlines() if line.startswith("│ ssd ")]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        *("ssd", "ssd", "92.0 MB", "1.00 GB/s", "200 ms", "3.3%", "268 ms", "pass"),
    ]
    assert "ssd: 0.3 MB in the page cache before the read" in text
    assert "ssd, encrypted: +10 ms against ssd" in text
    assert "PASS: TTFT <= device hit + 1.5 x read / speed of the medium + 30 ms" in text


@pytest.mark.parametrize(
    "bad",
    [
        replace(REDIS, ttft_s=0.269),
        replace(REDIS, speed=1.3e9, ttft_s=0.24),
        replace(REDIS, served_by="ssd"),
        replace(REDIS, num_read=3840),
    ],
    ids=["late", "late for a faster medium", "another tier", "not all of it"],
)
def test_one_row_that_is_not_good_fails_the_section(bad: TierFigures) -> None:
    """Too slow for its medium, served by somebody else, or not read to the end."""
    assert shown(RAM, SSD, SEALED, REDIS, REDIS)[0]
    good, text = shown(RAM, SSD, SEALED, bad, REDIS)
    assert not good
    assert text.count("│ FAIL") == 1
