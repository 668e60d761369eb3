"""Items in the order in which they are due, kept lazily. Knows no clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

SLACK: Final = 64
"""Records beyond two per watched item before the stale ones are dropped."""


class Deadlines(Generic[T]):
    """A heap of watched items. `due_s(item)` is when an item is due now, None once it is not to be
    watched any more.

    The record of an item that is put off is not moved, but looked at when it comes up. So only an
    item that is due sooner than before must be watched again.
    """

    def __init__(self, due_s: Callable[[T], float | None]) -> None:
        self._due_s = due_s
        self._heap: list[tuple[float, int, T]] = []
        self._recorded: dict[T, float] = {}
        self._serials = count()

    def __len__(self) -> int:
        """Records held, stale ones included: at most two per watched item, and `SLACK`."""
        return len(self._heap)

    def __contains__(self, item: T) -> bool:
        """Whether the item is found no later than when it is due."""
        return item in self._recorded

    def watch(self, item: T) -> None:
        """Have the item found once it is due. Nothing changes where it is watched from as early."""
        due_s, recorded_s = self._due_s(item), self._recorded.get(item)
        if due_s is None or (recorded_s is not None and recorded_s <= due_s):
            return
        self._push(item, due_s)
        self._compact()

    def discard(self, item: T) -> None:
        """Do not watch the item any more; one that is not watched is ignored."""
        if self._recorded.pop(item, None) is not None:
            self._compact()

    def first(self) -> T | None:
        """The item that is due first, still watched; None if nothing is."""
        while self._heap:
            recorded_s, _, item = self._heap[0]
            due_s = self._due_s(item) if self._recorded.get(item) == recorded_s else None
            if due_s is not None and due_s <= recorded_s:
                return item
            heapq.heappop(self._heap)
            if self._recorded.get(item) == recorded_s:
                del self._recorded[item]
                if due_s is not None:
                    self._push(item, due_s)
        return None

    def pop(self, now_s: float) -> T | None:
        """Take out the item that is due first, if it is due by now."""
        # Whatever is recorded for later is due later: the usual call costs one comparison.
        if not self._heap or self._heap[0][0] > now_s:
            return None
        item = self.first()
        if item is None or self._heap[0][0] > now_s:
            return None
        heapq.heappop(self._heap)
        del self._recorded[item]
        return item

    def _push(self, item: T, due_s: float) -> None:
        self._recorded[item] = due_s
        heapq.heappush(self._heap, (due_s, next(self._serials), item))

    def _compact(self) -> None:
        """Keep one record of each watched item, where most are stale."""
        if len(self._heap) > 2 * len(self._recorded) + SLACK:
            records = self._recorded.items()
            self._heap = [(due_s, next(self._serials), item) for item, due_s in records]
            heapq.heapify(self._heap)
