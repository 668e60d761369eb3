"""Money: worked numbers from public reports, and what must hold for any usage."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.load import load_policy
from policies.pricing import Charge, Prices, Usage, charge, format_usd

FIVE_MINUTES, ONE_HOUR = 300.0, 3600.0


def prices(input_usd: str = "3.00", output_usd: str = "15.00") -> Prices:
    """Anthropic's multipliers over a base price."""
    return Prices(
        version="test",
        input_usd_per_mtok=Decimal(input_usd),
        output_usd_per_mtok=Decimal(output_usd),
        read_multiplier=Decimal("0.1"),
        write_multipliers={FIVE_MINUTES: Decimal("1.25"), ONE_HOUR: Decimal("2.0")},
    )


def test_a_read_costs_a_tenth() -> None:
    """2455 read, 4 input, 23 output at 3/15: 2455 x 0.30 + 4 x 3 + 23 x 15 = 1093.5 per million."""
    bill = charge(Usage(input=4, cache_read=2455, output=23), prices())
    assert bill.total == Decimal("0.0010935")
    assert bill.saved == Decimal("0.0066285")
    assert format_usd(bill.total) == "0.00109350"


def test_each_ttl_class_has_its_own_price() -> None:
    """600k written for 5m and 400k for 1h at 5.00: 3.75 + 4.00, not one price for both."""
    bill = charge(
        Usage(input=0, cache_write=((ONE_HOUR, 400_000), (FIVE_MINUTES, 600_000))), prices("5.00")
    )
    assert bill.cache_write == bill.total == Decimal("7.75")


def test_a_write_alone_saves_less_than_nothing() -> None:
    """Writing a million tokens for an hour costs twice the plain price."""
    assert charge(Usage(input=0, cache_write=((ONE_HOUR, 1_000_000),)), prices()).saved == Decimal(
        "-3.00"
    )


def test_nothing_costs_nothing() -> None:
    """A request cancelled before its prompt was billed."""
    assert charge(Usage(input=0), prices()) == Charge(*[Decimal(0)] * 5)


@pytest.mark.parametrize(
    ("ttl_s", "multiplier"),
    [(1.0, "1.25"), (300.0, "1.25"), (301.0, "2.0"), (3600.0, "2.0"), (86400.0, "2.0")],
)
def test_a_ttl_between_classes_costs_the_next_longer_one(ttl_s: float, multiplier: str) -> None:
    """Shorter than all: the shortest; longer than all: the longest."""
    assert prices().write_multiplier(ttl_s) == Decimal(multiplier)


def test_without_classes_a_write_costs_what_input_costs() -> None:
    """A model whose provider sells no writes."""
    plain = Prices("test", Decimal(3), Decimal(15), Decimal("0.1"), {})
    assert (
        charge(Usage(input=0, cache_write=((300.0, 10),)), plain).cache_write
        == charge(Usage(input=10), plain).input
    )


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "0.00000000"),
        ("-0", "0.00000000"),
        ("1E+3", "1000.00000000"),
        ("5E-9", "0.000000005"),
        ("0.001234", "0.00123400"),
        ("7.75", "7.75000000"),
        ("-3.00", "-3.00000000"),
        ("0.1234567891230", "0.123456789123"),
    ],
)
def test_money_as_text(amount: str, text: str) -> None:
    """Fixed point, never an exponent, nothing rounded away."""
    assert format_usd(Decimal(amount)) == text
    assert Decimal(text) == Decimal(amount)


counts = st.integers(min_value=0, max_value=10**9)
money = st.decimals(min_value=0, max_value=10**6, places=6)
usages = st.builds(
    Usage,
    input=counts,
    cache_read=counts,
    cache_write=st.lists(
        st.tuples(st.sampled_from([300.0, 1800.0, 3600.0, 43200.0]), counts), max_size=4
    ).map(tuple),
    output=counts,
)
price_lists = st.builds(
    Prices,
    version=st.just("test"),
    input_usd_per_mtok=money,
    output_usd_per_mtok=money,
    read_multiplier=money,
    write_multipliers=st.dictionaries(st.sampled_from([300.0, 3600.0]), money),
)


@given(usages, price_lists)
def test_parts_are_never_negative_and_add_up(usage: Usage, price_list: Prices) -> None:
    """The total is the sum of its parts, and what caching saved is exactly the difference to the
    uncached prompt."""
    bill = charge(usage, price_list)
    parts = (bill.input, bill.cache_read, bill.cache_write, bill.output)
    assert all(part >= 0 for part in parts)
    uncached = charge(Usage(input=usage.num_prompt, output=usage.output), price_list)
    assert sum(map(Fraction, parts)) == Fraction(bill.total)
    assert Fraction(uncached.total) - Fraction(bill.total) == Fraction(bill.saved)


@given(usages, usages, price_lists)
def test_a_bill_is_linear(first: Usage, second: Usage, price_list: Prices) -> None:
    """Two requests cost what one with all their tokens would: no rounding anywhere."""
    both = Usage(
        input=first.input + second.input,
        cache_read=first.cache_read + second.cache_read,
        cache_write=first.cache_write + second.cache_write,
        output=first.output + second.output,
    )
    separate = Fraction(charge(first, price_list).cache_write) + Fraction(
        charge(second, price_list).cache_write
    )
    assert Fraction(charge(both, price_list).cache_write) == separate


@pytest.mark.parametrize(
    ("model_id", "input_usd", "output_usd", "read", "write"),
    [
        ("claude-opus-5-5", "4", "20", "0.05", {300.0: "1.25", 3600.0: "2"}),
        ("claude-opus-4-5-20251101", "5", "25", "0.1", {300.0: "1.25", 3600.0: "2"}),
        ("claude-fable-5-1", "10", "50", "0.025", {300.0: "1.25", 3600.0: "2"}),
        ("claude-sonnet-5", "2", "10", "0.1", {300.0: "1.25", 3600.0: "2"}),
        ("claude-sonnet-4-6", "3", "15", "0.1", {300.0: "1.25", 3600.0: "2"}),
        ("claude-haiku-5-5", "0.1", "0.5", "0.1", {300.0: "1.25", 3600.0: "2"}),
        ("gpt-4o-mini-2024-07-18", "0.15", "0.6", "0.5", {300.0: "1"}),
        ("gpt-5.6-sol", "4", "20", "0.1", {1800.0: "1.25", 43200.0: "2.5"}),
        ("gpt-6.1-sol", "2", "10", "0.05", {1800.0: "1.25", 43200.0: "2.5"}),
        ("gemini-2.5-pro", "1.25", "10", "0.1", {3600.0: "1"}),
        (
            "smollm2-135m-instruct",
            "3",
            "15",
            "0.1",
            {300.0: "1.25", 1800.0: "1.25", 3600.0: "2", 43200.0: "2.5"},
        ),
    ],
)
def test_shipped_prices(
    model_id: str, input_usd: str, output_usd: str, read: str, write: dict[float, str]
) -> None:
    """The list as of its version; ids with a date find their model, unknown ids the default."""
    found = load_policy(None, {}).prices_for(model_id)
    assert found.version == "2026-11-30"
    assert (found.input_usd_per_mtok, found.output_usd_per_mtok) == (
        Decimal(input_usd),
        Decimal(output_usd),
    )
    assert found.read_multiplier == Decimal(read)
    assert found.write_multipliers == {
        ttl_s: Decimal(multiplier) for ttl_s, multiplier in write.items()
    }
