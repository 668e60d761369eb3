"""A tier in this process's memory, under a hard cap. Knows nothing of what the bytes mean."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from engine.store.base import Found, Item, StoreStats


class MemoryStore:
    """Least recently used out first. An item counts its key and payload against `cap_nbytes`; room is made before it enters."""

    def __init__(self, cap_nbytes: int) -> None:
        if cap_nbytes < 0:
            raise ValueError(f"cap_nbytes must not be negative: {cap_nbytes}")
        self.cap_nbytes = cap_nbytes
        self.stats = StoreStats()
        self._items: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()

    def find_many(self, keys: Sequence[bytes], now_s: float) -> list[Found | None]:
        """One answer per key, in order; does not count as use."""
        return [self._find(key, now_s) for key in keys]

    def get_many(self, keys: Sequence[bytes], now_s: float) -> list[bytes | None]:
        """One payload or None per key, in order; counts as use."""
        payloads: list[bytes | None] = []
        for key in keys:
            payload, expires_at_s = self._items.get(key, (None, 0.0))
            if payload is not None and expires_at_s > now_s:
                self._items.move_to_end(key)
                self.stats.num_hits += 1
                payloads.append(payload)
            else:
                payloads.append(None)
        self.stats.num_gets += len(keys)
        return payloads

    def put_many(self, items: Sequence[Item]) -> None:
        """Store or refresh, in order. An item larger than the cap is dropped, and so is what was under its key."""
        for key, payload, expires_at_s in items:
            held = self._items.get(key)
            if payload is None:
                if held is not None:
                    self._items[key] = (held[0], expires_at_s)
                continue
            self._remove(key)
            nbytes = len(key) + len(payload)
            if nbytes > self.cap_nbytes:
                self.stats.num_put_drops += 1
                continue
            while self.stats.nbytes + nbytes > self.cap_nbytes:
                self._remove(next(iter(self._items)))
                self.stats.num_evictions += 1
            self._items[key] = (payload, expires_at_s)
            self.stats.nbytes += nbytes
            self.stats.num_items += 1
            self.stats.num_puts += 1

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Forget the keys; unknown ones are ignored."""
        for key in keys:
            self._remove(key)

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        """Every item held when the scan began, expired ones included."""
        for key, (payload, expires_at_s) in list(self._items.items()):
            yield key, Found(len(payload), expires_at_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.delete_many(list(self._items))

    def _find(self, key: bytes, now_s: float) -> Found | None:
        payload, expires_at_s = self._items.get(key, (None, 0.0))
        return Found(len(payload), expires_at_s) if payload is not None and expires_at_s > now_s else None

    def _remove(self, key: bytes) -> None:
        held = self._items.pop(key, None)
        if held is not None:
            self.stats.nbytes -= len(key) + len(held[0])
            self.stats.num_items -= 1
