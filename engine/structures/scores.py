"""The order in which things are evicted: scores by name. The one table for every tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias


class Scored(Protocol):
    """Something that may be evicted.

    `last_use` is a time or a serial number. `worth` is the cost of making it again, per byte.
    `credit` is the clock of its queue at the last use: the highest score evicted until then.
    """

    @property
    def last_use(self) -> float: ...

    @property
    def num_uses(self) -> int: ...

    @property
    def worth(self) -> float: ...

    @property
    def credit(self) -> float: ...


Score: TypeAlias = tuple[float, float]
"""The lowest goes first. Using a thing may only raise its score: a queue looks at a score again
before it acts on it."""


def lru(thing: Scored) -> Score:
    """The one unused for longest."""
    return (0.0, thing.last_use)


def lfu(thing: Scored) -> Score:
    """The one used least often; among equals the one unused for longest."""
    return (float(thing.num_uses), thing.last_use)


def cost(thing: Scored) -> Score:
    """The one whose loss costs least per byte, counting how often it is used.

    GreedyDual-Size-Frequency (Cherkasova, HP Labs 1998): uses x cost / size, on top of the queue's
    clock at the last use, so that what was dear once ages.
    """
    return (thing.credit + thing.num_uses * thing.worth, thing.last_use)


SCORES: Final[Mapping[str, Callable[[Scored], Score]]] = MappingProxyType(
    {"lru": lru, "lfu": lfu, "cost": cost}
)


def score_named(name: str) -> Callable[[Scored], Score]:
    """The score of that name. Raises ValueError for another name, with those there are."""
    if name not in SCORES:
        raise ValueError(f"unknown eviction score {name!r}; known: {', '.join(SCORES)}")
    return SCORES[name]
