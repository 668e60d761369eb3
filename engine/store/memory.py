"""A tier in this process's memory, under a hard cap. Knows nothing of what the bytes mean."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from engine.memory import Payload
from engine.store.base import PINNED_UNTIL_S, Found, Item, StoreStats
from engine.structures.lazy_heap import LazyHeap

SWEEP: Final = 16
"""Expired items that one call drops at most."""


class MemoryStore:
    """Expired items out first, then the least recently used, pinned ones last. An item counts its
    key and payload against `cap_nbytes`; room is made before it enters."""

    def __init__(self, cap_nbytes: int) -> None:
        if cap_nbytes < 0:
            raise ValueError(f"cap_nbytes must not be negative: {cap_nbytes}")
        self.cap_nbytes = cap_nbytes
        self.stats = StoreStats()
        self._lock = threading.Lock()
        self._items: OrderedDict[bytes, tuple[Payload, float]] = OrderedDict()
        self._expiring: LazyHeap[bytes, float] = LazyHeap(lambda key: self._items[key][1])
        self._now_s = float("-inf")

    def find_many(self, keys: Sequence[bytes], now_s: float) -> list[Found | None]:
        """One answer per key, in order."""
        with self._lock:
            self._now_s = max(self._now_s, now_s)
            self._sweep()
            return [self._find(key, now_s) for key in keys]

    def get_many(self, keys: Sequence[bytes], now_s: float) -> list[Payload | None]:
        """One payload or None per key, in order."""
        with self._lock:
            self._now_s = max(self._now_s, now_s)
            return [self._get(key, now_s) for key in keys]

    def put_many(self, items: Sequence[Item], *, only_longer: bool = False) -> list[bool]:
        """Store items, in order. An item larger than the cap is dropped, and so is what was under
        its key."""
        with self._lock:
            return [
                (only_longer and self._outlives(item.key, item.expires_at_s)) or self._put(item)
                for item in items
            ]

    def refresh_many(
        self, expiries: Mapping[bytes, float], *, only_longer: bool = False
    ) -> list[bool]:
        """Move the expiry of items."""
        with self._lock:
            return [
                self._refresh(key, expires_at_s, only_longer=only_longer)
                for key, expires_at_s in expiries.items()
            ]

    def expire(self, now_s: float) -> None:
        """Drop up to `SWEEP` expired items."""
        with self._lock:
            self._now_s = max(self._now_s, now_s)
            self._sweep()

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Forget the keys; unknown ones are ignored."""
        with self._lock:
            for key in keys:
                self._remove(key)

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        """Every item held when the scan began, expired ones included."""
        with self._lock:
            return iter(
                [
                    (key, Found(len(payload), expires_at_s))
                    for key, (payload, expires_at_s) in self._items.items()
                ]
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.delete_many(list(self._items))

    def _find(self, key: bytes, now_s: float) -> Found | None:
        payload, expires_at_s = self._items.get(key, (None, 0.0))
        return (
            Found(len(payload), expires_at_s)
            if payload is not None and expires_at_s > now_s
            else None
        )

    def _get(self, key: bytes, now_s: float) -> Payload | None:
        payload, expires_at_s = self._items.get(key, (None, 0.0))
        if payload is None or expires_at_s <= now_s:
            return None
        self._items.move_to_end(key)
        return payload

    def _outlives(self, key: bytes, expires_at_s: float) -> bool:
        held = self._items.get(key)
        return held is not None and held[1] > expires_at_s

    def _refresh(self, key: bytes, expires_at_s: float, *, only_longer: bool) -> bool:
        held = self._items.get(key)
        if held is None:
            return False
        self._items.move_to_end(key)
        if not (only_longer and self._outlives(key, expires_at_s)):
            self._count_pinned(key, -1)
            self._items[key] = (held[0], expires_at_s)
            self._count_pinned(key, 1)
            self._expiring.add(key)
        return True

    def _put(self, item: Item) -> bool:
        self._remove(item.key)
        nbytes = len(item.key) + len(item.payload)
        if nbytes > self.cap_nbytes:
            return False
        while self.stats.nbytes + nbytes > self.cap_nbytes and self._sweep():
            pass
        while self.stats.nbytes + nbytes > self.cap_nbytes:
            self._remove(self._victim())
        self._items[item.key] = (item.payload, item.expires_at_s)
        self._count_pinned(item.key, 1)
        self._expiring.add(item.key)
        self.stats.nbytes += nbytes
        self.stats.num_items += 1
        return True

    def _sweep(self) -> int:
        """Drop some of what has expired by the latest time seen; how many."""
        num_dropped = 0
        while num_dropped < SWEEP and (key := self._expiring.pop(self._now_s)) is not None:
            self._remove(key)
            num_dropped += 1
        return num_dropped

    def _victim(self) -> bytes:
        """The least recently used that is not pinned, if there is one."""
        for key, (_, expires_at_s) in self._items.items():
            if expires_at_s < PINNED_UNTIL_S:
                return key
        return next(iter(self._items))

    def _count_pinned(self, key: bytes, times: int) -> None:
        payload, expires_at_s = self._items.get(key, (b"", 0.0))
        if expires_at_s >= PINNED_UNTIL_S:
            self.stats.pinned_nbytes += times * (len(key) + len(payload))

    def _remove(self, key: bytes) -> None:
        self._count_pinned(key, -1)
        held = self._items.pop(key, None)
        self._expiring.discard(key)
        if held is not None:
            self.stats.nbytes -= len(key) + len(held[0])
            self.stats.num_items -= 1
