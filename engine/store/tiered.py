"""Several stores as one, fastest first. Knows nothing of how each of them keeps its bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from engine.store.base import BlockStore, Found, Item, NamedStore, StoreStats


@runtime_checkable
class EvictingStore(Protocol):
    """A store that hands what it evicts for lack of room to `on_evict`, from the thread of the put that needed the room."""

    on_evict: Callable[[Item], None] | None


class TieredStore:
    """Reads ask the stores in order; what a lower one has is promoted to the first. `Found.tier` says who has it.

    A put goes to the first store and on to the next until one takes it that will hand over what it evicts; that is
    demoted then. So a store without `on_evict` is written through, and nothing is lost when it evicts. A key never has
    two contents: a put clears what is below. Refreshes and deletes go to all. Writes wait for each other, reads for none.

    `stats` are sums over the stores, but for gets and hits. Entering enters all stores, in order.
    """

    def __init__(self, tiers: Sequence[NamedStore]) -> None:
        """Raises ValueError without a single store."""
        if not tiers:
            raise ValueError("a tiered store needs at least one store")
        self.stats = StoreStats()
        self._tiers = tuple(tiers)
        self._now_s: float | None = None
        self._writing = threading.RLock()
        self._reading = threading.Lock()
        self._changed: list[set[bytes]] = []
        self._exits = ExitStack()
        for depth, (_, store) in enumerate(self._tiers[:-1], 1):
            if isinstance(store, EvictingStore):
                store.on_evict = self._demotion(depth)

    def find_many(self, keys: Sequence[bytes], now_s: float) -> list[Found | None]:
        """One answer per key from the first store that has it."""
        self._see(now_s)
        found: dict[bytes, Found] = {}
        for name, store in self._tiers:
            missing = [key for key in keys if key not in found]
            answers = store.find_many(missing, now_s) if missing else []
            for key, answer in zip(missing, answers, strict=True):
                if answer is not None:
                    found[key] = answer._replace(tier=name)
        return [found.get(key) for key in keys]

    def get_many(self, keys: Sequence[bytes], now_s: float) -> list[bytes | None]:
        """One payload or None per key from the first store that returns it; copies go up to the first."""
        self._see(now_s)
        got: dict[bytes, bytes] = {}
        lower: list[Item] = []
        changed: set[bytes] = set()
        with self._reading:
            self._changed.append(changed)
        for depth, (_, store) in enumerate(self._tiers):
            missing = [key for key in keys if key not in got]
            if not missing:
                break
            found = store.find_many(missing, now_s) if depth > 0 else [None] * len(missing)
            for key, payload, about in zip(missing, store.get_many(missing, now_s), found, strict=True):
                if payload is not None:
                    got[key] = payload
                    if about is not None:
                        lower.append(Item(key, payload, about.expires_at_s))
        self._promote(lower, changed)
        with self._reading:
            self.stats.num_gets += len(keys)
            self.stats.num_hits += sum(key in got for key in keys)
        return [got.get(key) for key in keys]

    def put_many(self, items: Sequence[Item]) -> None:
        """Store or refresh, in order."""
        with self._writing:
            self._note_change([item.key for item in items])
            for item in items:
                if item.payload is None:
                    for _, store in self._tiers:
                        store.put_many([item])
                else:
                    below = self._put(0, item)
                    for _, store in self._tiers[below:]:
                        store.delete_many([item.key])
            self._sum()

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Forget the keys in every store."""
        with self._writing:
            self._note_change(keys)
            for _, store in self._tiers:
                store.delete_many(keys)
            self._sum()

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        """Every item held, once, as the first store that has it tells."""
        seen: set[bytes] = set()
        for name, store in self._tiers:
            for key, found in store.scan():
                if key not in seen:
                    seen.add(key)
                    yield key, found._replace(tier=name)

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            for _, store in self._tiers:
                entered.enter_context(store)
            self._exits = entered.pop_all()
        self._sum()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._exits.__exit__(kind, error, trace)

    def _put(self, depth: int, item: Item) -> int:
        """Store from `depth` down; the depth below the last store that was given the item."""
        for below, (_, store) in enumerate(self._tiers[depth:], depth + 1):
            store.put_many([item])
            if self._keeps(store, item.key):
                return below
        return len(self._tiers)

    def _keeps(self, store: BlockStore, key: bytes) -> bool:
        hands_over = isinstance(store, EvictingStore) and store.on_evict is not None
        return hands_over and store.find_many([key], float("-inf"))[0] is not None

    def _demotion(self, depth: int) -> Callable[[Item], None]:
        def demote(item: Item) -> None:
            with self._writing:
                held = self._now_s is not None and any(
                    store.find_many([item.key], self._now_s)[0] is not None for _, store in self._tiers[depth:]
                )
                if held:
                    for _, store in self._tiers[depth:]:
                        store.put_many([item._replace(payload=None)])
                else:
                    self._put(depth, item)

        return demote

    def _promote(self, items: Sequence[Item], changed: set[bytes]) -> None:
        """Copy to the first store what has not been put or deleted since the read began; not while others write."""
        if items and self._writing.acquire(blocking=False):
            try:
                self._tiers[0].store.put_many([item for item in items if item.key not in changed])
                self._sum()
            finally:
                self._writing.release()
        with self._reading:
            self._changed = [other for other in self._changed if other is not changed]

    def _note_change(self, keys: Sequence[bytes]) -> None:
        with self._reading:
            for changed in self._changed:
                changed.update(keys)

    def _see(self, now_s: float) -> None:
        with self._reading:
            self._now_s = now_s if self._now_s is None else max(self._now_s, now_s)

    def _sum(self) -> None:
        parts = [store.stats for _, store in self._tiers]
        with self._reading:
            stats = self.stats
            stats.nbytes = sum(part.nbytes for part in parts)
            stats.num_items = sum(part.num_items for part in parts)
            stats.num_puts = sum(part.num_puts for part in parts)
            stats.num_put_drops = sum(part.num_put_drops for part in parts)
            stats.num_evictions = sum(part.num_evictions for part in parts)
            stats.num_expired = sum(part.num_expired for part in parts)
            stats.num_damaged = sum(part.num_damaged for part in parts)
            stats.num_errors = sum(part.num_errors for part in parts)
            stats.problem = next((part.problem for part in parts if part.problem is not None), None)
