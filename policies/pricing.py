"""The one place money is computed:

`Usage` x `Prices` -> `Charge`. Decimal throughout, never float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, Inexact, localcontext
from typing import Final

_EXACT: Final = Context(prec=100, traps=[Inexact])
"""No product or sum of token counts and prices comes near 100 digits: a rounding would be a bug and
raises."""

_ONE: Final = Decimal(1)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request in disjoint parts: `input + cache_read + sum(cache_write) == prompt
    tokens`.

    `cache_write` holds (ttl_s, tokens) pairs, one per TTL class, without zeros, longest TTL first.
    """

    input: int
    cache_read: int = 0
    cache_write: tuple[tuple[float, int], ...] = ()
    output: int = 0

    @property
    def num_prompt(self) -> int:
        return self.input + self.cache_read + self.num_written

    @property
    def num_written(self) -> int:
        return sum(tokens for _, tokens in self.cache_write)


def sum_usage(parts: Sequence[Usage]) -> Usage:
    """The tokens of several prompts together."""
    written: dict[float, int] = {}
    for usage in parts:
        for ttl_s, tokens in usage.cache_write:
            written[ttl_s] = written.get(ttl_s, 0) + tokens
    return Usage(
        input=sum(usage.input for usage in parts),
        cache_read=sum(usage.cache_read for usage in parts),
        cache_write=tuple(sorted(written.items(), reverse=True)),
        output=sum(usage.output for usage in parts),
    )


@dataclass(frozen=True, slots=True)
class Prices:
    """USD per million tokens and multipliers of the input price, as resolved for one model."""

    version: str
    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal
    read_multiplier: Decimal
    write_multipliers: Mapping[float, Decimal]
    """TTL in seconds -> multiplier. A TTL between classes is priced as the next longer class."""

    def write_multiplier(self, ttl_s: float) -> Decimal:
        """Of the shortest class that lasts `ttl_s`, else of the longest; 1 where the model has no
        write classes."""
        longer = [class_s for class_s in self.write_multipliers if class_s >= ttl_s]
        if longer:
            return self.write_multipliers[min(longer)]
        return (
            self.write_multipliers[max(self.write_multipliers)] if self.write_multipliers else _ONE
        )

    def times(self, multiplier: Decimal) -> Prices:
        """Every price, so many times."""
        with localcontext(_EXACT):
            return replace(
                self,
                input_usd_per_mtok=self.input_usd_per_mtok * multiplier,
                output_usd_per_mtok=self.output_usd_per_mtok * multiplier,
            )


@dataclass(frozen=True, slots=True)
class Charge:
    """The cost of one request, in USD.

    `saved` is the prompt's cost at input price without a cache minus its cost now: negative for a
    request that only writes. A whole answer from the cache saves all that it cost when it was made.
    """

    input: Decimal
    cache_read: Decimal
    cache_write: Decimal
    output: Decimal
    saved: Decimal

    @property
    def prompt(self) -> Decimal:
        """The cost of the prompt, exact."""
        with localcontext(_EXACT):
            return self.input + self.cache_read + self.cache_write

    @property
    def total(self) -> Decimal:
        """The cost of the request, exact."""
        with localcontext(_EXACT):
            return self.prompt + self.output


NOTHING: Final = Charge(
    input=Decimal(0),
    cache_read=Decimal(0),
    cache_write=Decimal(0),
    output=Decimal(0),
    saved=Decimal(0),
)
"""The cost of a request for which nothing is computed."""


def charge(usage: Usage, prices: Prices) -> Charge:
    """The bill of one request, exact: nothing is rounded."""
    with localcontext(_EXACT):
        per_token = prices.input_usd_per_mtok.scaleb(-6)
        plain = usage.input * per_token
        read = usage.cache_read * prices.read_multiplier * per_token
        written = (
            sum(
                (tokens * prices.write_multiplier(ttl_s) for ttl_s, tokens in usage.cache_write),
                Decimal(0),
            )
            * per_token
        )
        return Charge(
            input=plain,
            cache_read=read,
            cache_write=written,
            output=usage.output * prices.output_usd_per_mtok.scaleb(-6),
            saved=usage.num_prompt * per_token - plain - read - written,
        )


def format_usd(amount: Decimal) -> str:
    """Fixed point, exact, at least eight decimals, never an exponent, no negative zero:
    "0.00109350"."""
    whole, _, decimals = f"{amount:f}".partition(".")
    text = f"{whole}.{decimals.rstrip('0').ljust(8, '0')}"
    return text if amount else text.removeprefix("-")
