"""What a disk store holds, in memory: by key, by last use and by expiry. Knows no files and no locks."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Record:
    """One object. `num_readers` threads read its file now; once `removed`, the last of them gives its bytes back."""

    key: bytes
    payload_nbytes: int
    allocated_nbytes: int
    expires_at_s: float
    num_readers: int = 0
    removed: bool = False


class DiskIndex:
    """Records in the order of their last use. Not thread-safe: the store calls it under its lock."""

    def __init__(self) -> None:
        self._records: OrderedDict[bytes, Record] = OrderedDict()
        self._by_expiry: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        """Least recently used first."""
        return iter(self._records.values())

    def get(self, key: bytes) -> Record | None:
        """The record; does not count as use."""
        return self._records.get(key)

    def add(self, record: Record) -> None:
        """Hold it as the most recently used, in the place of another under its key."""
        self._records[record.key] = record
        self._records.move_to_end(record.key)
        self.expire_at(record, record.expires_at_s)

    def remove(self, record: Record) -> None:
        """Forget it; a record that is not held is ignored."""
        if self._records.get(record.key) is record:
            del self._records[record.key]

    def touch(self, record: Record) -> None:
        """It was used now."""
        self._records.move_to_end(record.key)

    def expire_at(self, record: Record, expires_at_s: float) -> None:
        """Its expiry is this."""
        record.expires_at_s = expires_at_s
        heapq.heappush(self._by_expiry, (expires_at_s, record.key))
        if len(self._by_expiry) > 2 * len(self._records) + 64:
            self._by_expiry = [(held.expires_at_s, key) for key, held in self._records.items()]
            heapq.heapify(self._by_expiry)

    def next_to_expire(self) -> Record | None:
        """The record with the earliest expiry."""
        while self._by_expiry:
            expires_at_s, key = self._by_expiry[0]
            record = self._records.get(key)
            if record is not None and record.expires_at_s == expires_at_s:
                return record
            heapq.heappop(self._by_expiry)
        return None

    def victim(self, now_s: float) -> Record | None:
        """What to give up next: what has expired, else what was used least recently; never what is being read."""
        first = self.next_to_expire()
        if first is not None and first.expires_at_s <= now_s and first.num_readers == 0:
            return first
        return next((record for record in self if record.num_readers == 0), None)
