"""Usage as somebody else's answer reports it: the fields of a usage object, merged and read. Pure.
Knows no format.

Streams report usage in pieces. Per field the last value that is present wins: an absent or null
field keeps the earlier value, and 0 is a value (some upstreams report reads only at the end). The
fields of the prompt are more than that: `gateway.wire.collected`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

Fields: TypeAlias = Mapping[str, Any]

BEYOND_COUNTING: Final = 2**53
"""No number of tokens: sums and prices stay exact."""


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """Tokens of one request in disjoint parts, none negative.

    `cache_read` is None where the answer has no such count: unknown, not zero. `writes` are
    tokens by TTL class as the provider names it ("5m"), without zeros; of `unclassed` written
    tokens the class was not reported. `anomaly`: the numbers did not add up and were made to.
    """

    input: int
    cache_read: int | None
    writes: Mapping[str, int]
    unclassed: int
    output: int
    anomaly: bool = False

    @property
    def num_prompt(self) -> int:
        """Tokens of the whole prompt."""
        return self.input + (self.cache_read or 0) + sum(self.writes.values()) + self.unclassed

    def as_input(self, *, classed: bool) -> ReportedUsage:
        """The same, with written tokens as input: those without a TTL class, or all."""
        written = self.unclassed + (sum(self.writes.values()) if classed else 0)
        writes = {} if classed else self.writes
        return replace(self, input=self.input + written, writes=writes, unclassed=0)


@dataclass(frozen=True, slots=True)
class UsageFormat:
    """The places where one wire format reports usage. `usages`: the usage objects of a JSON answer
    or stream event, in order. `failed`: whether that is an error. `ended`: whether no other event
    belongs behind it. `read`: merged fields -> tokens; None where nothing is reported of the
    prompt.

    `prompt`: the names of its fields that are about the prompt. `splits`: name of a total of
    written tokens -> that of their TTL classes. `classed`: providers with this format always report
    the TTL class of what they write."""

    usages: Callable[[Fields], Iterator[Fields]]
    failed: Callable[[Fields], bool]
    read: Callable[[Fields], ReportedUsage | None]
    prompt: frozenset[str] = frozenset()
    ended: Callable[[Fields], bool] = lambda message: False
    splits: Mapping[str, str] = field(default_factory=dict)
    classed: bool = False


def merge(known: dict[str, Any], new: Fields) -> None:
    """Puts every field of `new` that is present into `known`; objects are merged alike. Costs what
    `new` is long, however much is known."""
    for name, value in new.items():
        if isinstance(value, Mapping):
            inner = known.get(name)
            if not isinstance(inner, dict):
                inner = known[name] = {}
            merge(inner, value)
        elif value is not None:
            known[name] = value


def objects(*candidates: object) -> Iterator[Fields]:
    """Those that are objects."""
    return (candidate for candidate in candidates if isinstance(candidate, Mapping))


def count(*candidates: object) -> int | None:
    """The first that is a number of tokens, as it stands; None where none is."""
    for value in candidates:
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if abs(value) < BEYOND_COUNTING and value == int(value):
            return int(value)
    return None


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """Numbers as they were reported, before they are made to agree. `uncached` tokens were neither
    read nor written."""

    uncached: int
    cache_read: int | None
    written: int | None
    split: Mapping[str, int | None]
    output: int | None

    def settled(self) -> ReportedUsage:
        """Negative numbers become 0; a split that is more than its total raises the total."""
        writes = {
            name: tokens for name, tokens in self.split.items() if tokens is not None and tokens > 0
        }
        split = sum(writes.values())
        reported = (self.uncached, self.cache_read, self.written, self.output, *self.split.values())
        negative = any(tokens is not None and tokens < 0 for tokens in reported)
        written = split if self.written is None else max(0, self.written)
        is_split = any(tokens is not None for tokens in self.split.values())
        return ReportedUsage(
            input=max(0, self.uncached),
            cache_read=None if self.cache_read is None else max(0, self.cache_read),
            writes=writes,
            unclassed=max(0, written - split),
            output=max(0, self.output or 0),
            anomaly=negative or split > written or (is_split and split < written),
        )


def summed(parts: Sequence[UsageCounts]) -> UsageCounts:
    """The numbers of several computations together; a number that none of them reported is
    unknown."""
    return UsageCounts(
        uncached=sum(part.uncached for part in parts),
        cache_read=_sum(part.cache_read for part in parts),
        written=_sum(part.written for part in parts),
        split={name: _sum(part.split.get(name) for part in parts) for name in parts[0].split},
        output=_sum(part.output for part in parts),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
