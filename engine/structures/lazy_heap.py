"""Items in the order of a key that mostly rises: times at which they are due, eviction scores."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar

SLACK: Final = 64
"""Records beyond two per item before the stale ones are dropped."""


class Ordered(Protocol):
    """A number, or a tuple of numbers."""

    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Hashable)
K = TypeVar("K", bound=Ordered)


class LazyHeap(Generic[T, K]):
    """`key(item)` is the item's key now, or None once it is not to be found any more.

    The record of an item whose key rises is not moved, but looked at when it comes up. So only an
    item whose key falls must be added again. Among equal keys the first added comes first.
    """

    def __init__(self, key: Callable[[T], K | None]) -> None:
        self._key = key
        self._records: list[tuple[K, int, T]] = []
        self._recorded: dict[T, K] = {}
        self._serials = count()

    def __len__(self) -> int:
        """Records held, stale ones included: at most two per item, and `SLACK`."""
        return len(self._records)

    def __contains__(self, item: T) -> bool:
        return item in self._recorded

    def add(self, item: T) -> None:
        """Let the item be found by its key. Nothing changes where it is recorded under no larger
        one, or has none."""
        key, recorded = self._key(item), self._recorded.get(item)
        if key is not None and (recorded is None or key < recorded):
            self._push(item, key)
            self._compact()

    def discard(self, item: T) -> None:
        """Let the item not be found any more; one that is not held is ignored."""
        if self._recorded.pop(item, None) is not None:
            self._compact()

    def first(self) -> T | None:
        """The item with the smallest key; None if there is none."""
        while self._records:
            recorded, _, item = self._records[0]
            is_stale = self._recorded.get(item) != recorded
            key = None if is_stale else self._key(item)
            if key is not None and not recorded < key:
                return item
            heapq.heappop(self._records)
            if not is_stale:
                del self._recorded[item]
            if key is not None:
                self._push(item, key)
        return None

    def pop(self, limit: K | None = None) -> T | None:
        """Take out the item with the smallest key, if that is at most `limit`."""
        # No key is smaller than recorded: the usual call costs one comparison.
        if not self._records or (limit is not None and limit < self._records[0][0]):
            return None
        item = self.first()
        if item is None or (limit is not None and limit < self._records[0][0]):
            return None
        heapq.heappop(self._records)
        del self._recorded[item]
        return item

    def _push(self, item: T, key: K) -> None:
        self._recorded[item] = key
        heapq.heappush(self._records, (key, next(self._serials), item))

    def _compact(self) -> None:
        """Keep one record of each item, where most are stale."""
        if len(self._records) > 2 * len(self._recorded) + SLACK:
            self._records = [
                (key, next(self._serials), item) for item, key in self._recorded.items()
            ]
            heapq.heapify(self._records)
