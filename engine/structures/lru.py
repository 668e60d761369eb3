"""A mapping of bounded size. Knows nothing of what it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values of at most `limit` together, by `cost(key, value)`; without it each costs 1.

    The least recently used goes first. Putting and getting a value are uses.
    """

    def __init__(self, limit: int, cost: Callable[[K, V], int] = lambda key, value: 1) -> None:
        self._limit = limit
        self._cost = cost
        self._values: OrderedDict[K, V] = OrderedDict()
        self.total = 0
        """The cost of all values held; never more than the limit."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, which counts as used now; None for an unknown key."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Hold a value in the place of another under its key; one that alone costs more than the
        limit is not held."""
        self.pop(key)
        cost = self._cost(key, value)
        if cost > self._limit:
            return
        self._values[key] = value
        self.total += cost
        while self.total > self._limit:
            self.pop(next(iter(self._values)))

    def pop(self, key: K) -> V | None:
        """Take a value out; None for an unknown key."""
        value = self._values.pop(key, None)
        if value is not None:
            self.total -= self._cost(key, value)
        return value

    def clear(self) -> None:
        """Take all values out."""
        self._values.clear()
        self.total = 0
