"""A store around a real one that fails on demand: loses, damages, drops,
or holds every read until told.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from engine.memory import Payload
from engine.store.base import BlockStore, Found, Item


class FaultyStore:
    """Behaves as `inner` while no fault is set. Faults are plain attributes and may change at any
    time.

    `lose_reads` answers every get with None; `damage` flips one bit of what a get returns (which no
    `BlockStore` may do: it shows that the reader checks); `drop_puts` stores nothing; `hang` makes
    finds and gets wait before they look, `late` makes gets wait with what they have read, each
    until it is cleared. `num_waiting` calls are held right now, and `reached` is set as soon as one
    is.
    """

    def __init__(self, inner: BlockStore) -> None:
        self.inner = inner
        self.stats = inner.stats
        self.lose_reads = False
        self.damage = False
        self.drop_puts = False
        self.num_waiting = 0
        self.reached = threading.Event()
        self._looking = open_gate()
        self._answering = open_gate()

    @property
    def hang(self) -> bool:
        return not self._looking.is_set()

    @hang.setter
    def hang(self, closed: bool) -> None:
        self._turn(self._looking, closed)

    @property
    def late(self) -> bool:
        return not self._answering.is_set()

    @late.setter
    def late(self, closed: bool) -> None:
        self._turn(self._answering, closed)

    def find_many(self, keys: Sequence[bytes], now_s: float) -> list[Found | None]:
        self._pass(self._looking)
        return self.inner.find_many(keys, now_s)

    def get_many(self, keys: Sequence[bytes], now_s: float) -> list[Payload | None]:
        self._pass(self._looking)
        payloads = self.inner.get_many(keys, now_s)
        self._pass(self._answering)
        if self.lose_reads:
            return [None] * len(keys)
        if self.damage:
            return [
                payload and bytes(payload[:-1]) + bytes([payload[-1] ^ 1]) for payload in payloads
            ]
        return payloads

    def put_many(self, items: Sequence[Item], *, only_longer: bool = False) -> list[bool]:
        if self.drop_puts:
            self.inner.delete_many([item.key for item in items])
            return [False] * len(items)
        return self.inner.put_many(items, only_longer=only_longer)

    def refresh_many(
        self, expiries: Mapping[bytes, float], *, only_longer: bool = False
    ) -> list[bool]:
        if self.drop_puts:
            return [False] * len(expiries)
        return self.inner.refresh_many(expiries, only_longer=only_longer)

    def expire(self, now_s: float) -> None:
        self.inner.expire(now_s)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        self.inner.delete_many(keys)

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        return self.inner.scan()

    def __enter__(self) -> Self:
        self.inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang = self.late = False
        self.inner.__exit__(kind, error, trace)

    def _turn(self, gate: threading.Event, closed: bool) -> None:
        if closed:
            self.reached.clear()
            gate.clear()
        else:
            gate.set()

    def _pass(self, gate: threading.Event) -> None:
        if gate.is_set():
            return
        self.num_waiting += 1
        self.reached.set()
        gate.wait()
        self.num_waiting -= 1


def open_gate() -> threading.Event:
    """An event that is set."""
    gate = threading.Event()
    gate.set()
    return gate
