"""Durations and sizes: text forms, exact round trips, refusals."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.size import Size, parse_nbytes
from policies.ttl import format_duration, parse_duration, ttl_class_name


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300.0),
        ("300s", 300.0),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("1d", 86400.0),
        (" 30s ", 30.0),
        ("0", 0.0),
        ("300", 300.0),
        (0, 0.0),
        (2.5, 2.5),
    ],
)
def test_parses_every_form(text: object, seconds: float) -> None:
    """Units, sums of units, and bare seconds as number or text."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5x",
        "m",
        "-5m",
        "5 m",
        "5m!",
        "none",
        -1,
        10**400,
        True,
        None,
        [],
        float("nan"),
        float("inf"),
        "inf",
        "nan",
    ],
)
def test_refuses_what_is_no_duration(text: object) -> None:
    """Anything else is a ValueError that says what is expected and does not quote the value."""
    with pytest.raises(ValueError, match=r"^must be a duration such as 30s, 5m or 1h$"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (300, "5m"),
        (1800, "30m"),
        (3600, "1h"),
        (43200, "12h"),
        (86400, "24h"),
        (90, "90s"),
        (0.05, "50ms"),
        (0, "0s"),
        (1.5, "1500ms"),
    ],
)
def test_class_names_are_the_shortest_form(seconds: float, text: str) -> None:
    """The names of the classes that providers sell, and of what lies between."""
    assert ttl_class_name(seconds) == format_duration(seconds) == text


@given(st.integers(min_value=0, max_value=10**9))
def test_milliseconds_survive_a_round_trip(milliseconds: int) -> None:
    """Formatting loses nothing a policy file can say."""
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(
        milliseconds / 1000, rel=1e-12, abs=0
    )


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("8GiB", Size(8 * 1024**3)),
        ("1.5 KiB", Size(1536)),
        ("2MB", Size(2_000_000)),
        ("17", Size(17)),
        ("17B", Size(17)),
        (4096, Size(4096)),
        ("25%", Size(share=Fraction(1, 4))),
        ("12.5%", Size(share=Fraction(1, 8))),
    ],
)
def test_sizes(value: object, size: Size) -> None:
    """Decimal and binary units, shares, plain counts; the text form reads back as the same size."""
    assert Size.parse(value) == size
    assert Size.parse(str(size)) == size


@pytest.mark.parametrize("value", ["", "8gib", "8 G", "-1", -1, 1.5, True, None, "101%", "%"])
def test_refuses_what_is_no_size(value: object) -> None:
    """Units are spelled exactly; there is no negative size and no share above the whole."""
    with pytest.raises(ValueError, match=r"^must be"):
        Size.parse(value)


def test_a_share_is_resolved_by_whoever_knows_the_memory() -> None:
    """25 % of 10 bytes is 2; an absolute size stays what it is."""
    assert Size.parse("25%").resolve(10) == 2
    assert Size.parse("1KiB").resolve(10) == 1024


def test_a_share_means_nothing_for_a_body_limit() -> None:
    """Places without a memory behind them take absolute sizes only."""
    assert parse_nbytes("32MiB") == 32 * 1024**2
    with pytest.raises(ValueError, match="8GiB or 512MiB"):
        parse_nbytes("25%")
