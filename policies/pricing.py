"""The one place money is computed: `Usage` x `Prices` -> `Charge`. Decimal throughout, never float."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request in disjoint parts: `input + cache_read + sum(cache_write) == prompt tokens`.

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


@dataclass(frozen=True, slots=True)
class Prices:
    """USD per million tokens and multipliers of the input price, as resolved for one model."""

    version: str
    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal
    read_multiplier: Decimal
    write_multipliers: Mapping[float, Decimal]
    """TTL in seconds -> multiplier. A TTL between classes is priced as the next longer class."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one request costs, in USD. `saved` is what caching changed against paying input price for the whole prompt."""

    input: Decimal
    cache_read: Decimal
    cache_write: Decimal
    output: Decimal
    saved: Decimal
    storage: Decimal = Decimal(0)

    @property
    def total(self) -> Decimal:
        return self.input + self.cache_read + self.cache_write + self.output + self.storage
