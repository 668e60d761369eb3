"""The contract of a tier: a place for bytes under keys, with an expiry. Knows no tokens, tensors or tenants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self


class Found(NamedTuple):
    """What a tier says of an item without reading it."""

    nbytes: int
    expires_at_s: float


class Item(NamedTuple):
    """Something to store. `payload=None` refreshes the expiry of what is there and stores nothing."""

    key: bytes
    payload: bytes | None
    expires_at_s: float


@dataclass(slots=True)
class StoreStats:
    """Counters since the store opened; `nbytes` and `num_items` are what it holds now."""

    nbytes: int = 0
    num_items: int = 0
    num_puts: int = 0
    num_put_drops: int = 0
    num_gets: int = 0
    num_hits: int = 0
    num_evictions: int = 0


class BlockStore(Protocol):
    """A tier. A get returns exactly the bytes that were put, or None; losing an item is allowed, corrupting one is not.

    The bytes held never exceed the store's cap, not even for a moment. An expired item is never returned. All calls are
    batched and may block: only I/O threads, or the engine thread for the memory store, may call them. No call raises for
    a missing key. Lifecycle is a context manager; after exit nothing may be called.
    """

    stats: StoreStats

    def find_many(self, keys: Sequence[bytes], now_s: float) -> list[Found | None]:
        """One answer per key, in order, without reading payloads."""
        ...

    def get_many(self, keys: Sequence[bytes], now_s: float) -> list[bytes | None]:
        """One payload or None per key, in order."""
        ...

    def put_many(self, items: Sequence[Item]) -> None:
        """Store or refresh; what does not fit is dropped and counted in `stats.num_put_drops`."""
        ...

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Forget the keys; unknown ones are ignored."""
        ...

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        """Every item held, in no order, expired ones included."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
