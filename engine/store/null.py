"""A tier that keeps nothing: every put is dropped, every get is a miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from engine.store.base import Found, Item, StoreStats


class NullStore:
    """Losing an item is allowed; this store loses all of them."""

    def __init__(self) -> None:
        self.stats = StoreStats()

    def find_many(self, keys: Sequence[bytes], now_s: float) -> list[Found | None]:
        """None for every key."""
        return [None] * len(keys)

    def get_many(self, keys: Sequence[bytes], now_s: float) -> list[bytes | None]:
        """None for every key."""
        self.stats.num_gets += len(keys)
        return [None] * len(keys)

    def put_many(self, items: Sequence[Item]) -> None:
        """Count the payloads as dropped."""
        self.stats.num_put_drops += sum(item.payload is not None for item in items)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Nothing is there to forget."""

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        """Nothing."""
        return iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass
