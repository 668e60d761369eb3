"""The index of a disk store, in memory: by key, by last use and by expiry.

Knows no files and no locks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from engine.store.base import PINNED_UNTIL_S
from engine.structures.lazy_heap import LazyHeap
from engine.structures.scores import score_named


@dataclass(slots=True, eq=False)
class ObjectRecord:
    """One object. `num_readers` threads read its file now; once `removed`, the last of them gives
    its bytes back."""

    key: bytes
    payload_nbytes: int
    allocated_nbytes: int
    expires_at_s: float
    worth: float = 0.0
    num_readers: int = 0
    removed: bool = False
    num_uses: int = 1
    last_use: int = 0
    credit: float = 0.0
    """The index's clock at the last use."""

    @property
    def is_pinned(self) -> bool:
        """Whether it goes only where nothing else is left."""
        return self.expires_at_s >= PINNED_UNTIL_S


Rank: TypeAlias = tuple[bool, float, float]
"""Pinned or not, then the score."""


class DiskIndex:
    """Records in the order of their last use. Not thread-safe: the store calls it under its lock.

    `eviction` names a score; what is pinned comes after all that is not. A record of the queue is
    not moved when it is used: it is looked at again when it comes up.
    """

    def __init__(self, eviction: str = "lru") -> None:
        """Raises ValueError for a score of another name."""
        self._score = score_named(eviction)
        self._records: OrderedDict[bytes, ObjectRecord] = OrderedDict()
        self._by_expiry: LazyHeap[ObjectRecord, float] = LazyHeap(
            lambda record: record.expires_at_s
        )
        self._queue: LazyHeap[ObjectRecord, Rank] = LazyHeap(self._rank)
        self._uses = count()
        self._clock = 0.0
        self.pinned_nbytes = 0
        """Allocated bytes of pinned records."""

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ObjectRecord]:
        """Least recently used first."""
        return iter(self._records.values())

    def get(self, key: bytes) -> ObjectRecord | None:
        """The record; does not count as use."""
        return self._records.get(key)

    def add(self, record: ObjectRecord) -> None:
        """Hold it as the most recently used, in the place of another under its key."""
        self._forget(record.key)
        self._records[record.key] = record
        self.pinned_nbytes += record.is_pinned * record.allocated_nbytes
        record.last_use, record.credit = next(self._uses), self._clock
        self._queue.add(record)
        self.expire_at(record, record.expires_at_s)

    def remove(self, record: ObjectRecord) -> None:
        """Forget it; a record that is not held is ignored."""
        if self._records.get(record.key) is record:
            self._forget(record.key)

    def touch(self, record: ObjectRecord) -> None:
        """It was used now."""
        if self._records.get(record.key) is record:
            self._records.move_to_end(record.key)
            record.num_uses += 1
            record.last_use, record.credit = next(self._uses), self._clock

    def expire_at(self, record: ObjectRecord, expires_at_s: float) -> None:
        """Its expiry is this."""
        was_pinned, record.expires_at_s = record.is_pinned, expires_at_s
        if self._records.get(record.key) is not record:
            return
        if was_pinned != record.is_pinned:
            self.pinned_nbytes += record.allocated_nbytes * (1 if record.is_pinned else -1)
            self._queue.add(record)
        self._by_expiry.add(record)

    def next_to_expire(self) -> ObjectRecord | None:
        """The record with the earliest expiry."""
        return self._by_expiry.first()

    def victim(self, now_s: float) -> ObjectRecord | None:
        """The record to evict next: an expired one, else the one with the lowest score.

        A record that is being read is never a victim.
        """
        first = self.next_to_expire()
        if first is not None and first.expires_at_s <= now_s and first.num_readers == 0:
            return first
        popped: list[ObjectRecord] = []
        while (victim := self._queue.pop()) is not None:
            popped.append(victim)
            if not victim.num_readers:
                self._clock = max(self._clock, self._score(victim)[0])
                break
        for record in popped:
            self._queue.add(record)
        return victim

    def _rank(self, record: ObjectRecord) -> Rank:
        return (record.is_pinned, *self._score(record))

    def _forget(self, key: bytes) -> None:
        held = self._records.pop(key, None)
        if held is not None:
            self.pinned_nbytes -= held.is_pinned * held.allocated_nbytes
            self._by_expiry.discard(held)
            self._queue.discard(held)
