"""The contract of a tier: a place for bytes under keys, with an expiry.

Knows no tokens, tensors or tenants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from engine.memory import Payload

PINNED_UNTIL_S: Final = 2.0**33
"""An expiry, in epoch seconds, that never comes (the year 2242): what has it, or a later one, is
*pinned*."""


class Found(NamedTuple):
    """The size and the expiry of an item that a store holds."""

    nbytes: int
    expires_at_s: float


class Item(NamedTuple):
    """Something to store under a key of 1 to 64 bytes.

    `recompute_cost` is the cost of making it again, per byte, in any unit; a store may evict by
    it.
    """

    key: bytes
    payload: Payload
    expires_at_s: float
    recompute_cost: float = 0.0


@dataclass(slots=True)
class StoreStats:
    """The state of a store, as far as it can know; the client of a tier counts what it moves.

    `nbytes` is everything that counts against the cap: for a folder the allocated blocks of all
    files and directories, bytes reserved for writes under way included; a store shared with others
    does not know and says 0. `pinned_nbytes` are those of pinned items, 0 where nobody counts.
    `num_damaged` items were found not to be what was put, `num_errors` calls of the medium failed
    since the store opened. `num_undeleted` items are deleted here, but not yet on the medium.
    `problem` is why the store does not work now, None while it does.
    """

    nbytes: int = 0
    num_items: int = 0
    pinned_nbytes: int = 0
    num_damaged: int = 0
    num_errors: int = 0
    num_undeleted: int = 0
    problem: str | None = None


class BlockStore(Protocol):
    """A tier. A get returns exactly the bytes that were put last, or None; losing an item is
    allowed, corrupting one is not.

    A put that is dropped leaves nothing under its key. The bytes held never exceed the store's cap,
    not even for a moment. An expired item is never returned. All calls are batched, may block, and
    may come from several threads at once: only I/O threads, or the engine thread for the memory
    store, may call them. No call raises for a missing key, and none but `scan` for a medium that
    fails: what cannot be stored is dropped, what cannot be read is None, and the store works again
    when its medium does. Entering may raise `StoreError`. Lifecycle is a context manager; after
    exit nothing may be called.

    With `only_longer` no item ends sooner than before, however many processes share the store:
    whatever is held longer than asked stays as it is.
    """

    stats: StoreStats

    def find_many(self, keys: Sequence[bytes], now_s: float) -> list[Found | None]:
        """One answer per key, in order, without reading payloads; does not count as use."""
        ...

    def get_many(self, keys: Sequence[bytes], now_s: float) -> list[Payload | None]:
        """One payload or None per key, in order; counts as use."""
        ...

    def put_many(self, items: Sequence[Item], *, only_longer: bool = False) -> list[bool]:
        """Store items, in order; for each whether its key is held now, until its expiry or later.
        What does not fit is dropped."""
        ...

    def refresh_many(
        self, expiries: Mapping[bytes, float], *, only_longer: bool = False
    ) -> list[bool]:
        """Move the expiry of items, an expired one that is still there included; for each key
        whether it is held. Counts as use: somebody reads the same item in another tier."""
        ...

    def expire(self, now_s: float) -> None:
        """Delete some of what has expired by `now_s`."""
        ...

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Forget the keys; unknown ones are ignored."""
        ...

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        """Every item held, in no order, expired ones included. Raises OSError where the medium does
        not tell them all: who wants to forget them must know."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class NamedStore(NamedTuple):
    """A store and the tier it is in reports: `ram`, `ssd`, `redis`."""

    name: str
    store: BlockStore


DELETE_BATCH: Final = 256
"""Items deleted with one call, so that no call takes long."""


def delete_prefix(store: BlockStore, prefix: bytes) -> int:
    """Forget every item whose key begins with `prefix`; how many there were. Raises OSError as
    `scan` does, and where the medium still has anything that was deleted."""
    keys = [key for key, _ in store.scan() if key.startswith(prefix)]
    for at in range(0, len(keys), DELETE_BATCH):
        store.delete_many(keys[at : at + DELETE_BATCH])
    if store.stats.num_undeleted:
        raise OSError(f"{store.stats.num_undeleted} objects could not be deleted yet")
    return len(keys)
