"""Several stores as one: where things go, and that no old content ever shows."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.store.base import Item, NamedStore
from engine.store.disk.store import DiskStore
from engine.store.memory import MemoryStore
from engine.store.tiered import TieredStore
from tests.fakes.faulty_store import FaultyStore

T0 = 1_700_000_000.0
A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
ROOM_FOR_TWO = 2 * (32 + 10)


def ten(text: str) -> bytes:
    return text.encode().ljust(10)


@pytest.fixture
def ram() -> MemoryStore:
    return MemoryStore(ROOM_FOR_TWO)


@pytest.fixture
def ssd(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path, nbytes=1 << 20)


def test_what_memory_evicts_is_demoted(ram: MemoryStore, ssd: DiskStore) -> None:
    """A put stays in memory until it is evicted; then it is below with its expiry, and a find says where."""
    with TieredStore([NamedStore("ram", ram), NamedStore("ssd", ssd)]) as store:
        store.put_many([Item(A, ten("1"), T0 + 60), Item(B, ten("2"), T0 + 50)])
        assert list(ssd.scan()) == []
        store.put_many([Item(C, ten("3"), T0 + 60)])
        found = store.find_many([A, B, C], T0)
        assert [f and (f.tier, f.expires_at_s) for f in found] == [("ssd", T0 + 60), ("ram", T0 + 50), ("ram", T0 + 60)]
        assert (store.stats.num_items, store.stats.nbytes) == (3, ram.stats.nbytes + ssd.stats.nbytes)


def test_a_read_promotes(ram: MemoryStore, ssd: DiskStore) -> None:
    """What was read from below is in memory for the next time; what had to make room is below, written once."""
    with TieredStore([NamedStore("ram", ram), NamedStore("ssd", ssd)]) as store:
        store.put_many([Item(A, ten("1"), T0 + 60), Item(B, ten("2"), T0 + 60), Item(C, ten("3"), T0 + 60)])
        assert store.get_many([A], T0) == [ten("1")]
        assert ram.get_many([A], T0) == [ten("1")]
        assert store.get_many([A, B, C], T0) == [ten("1"), ten("2"), ten("3")]
        for _ in range(5):
            for key, payload in ((C, ten("3")), (A, ten("1")), (B, ten("2"))):
                assert store.get_many([key], T0) == [payload]
        assert ram.stats.num_evictions > 10
        assert ssd.stats.num_puts == 3


def test_a_store_that_hands_nothing_over_is_written_through(ssd: DiskStore) -> None:
    """Below a disk the next store has everything too, so that nothing is lost when the disk evicts."""
    below = MemoryStore(1 << 20)
    with TieredStore([NamedStore("ssd", ssd), NamedStore("redis", below)]) as store:
        store.put_many([Item(A, ten("1"), T0 + 60)])
        store.put_many([Item(A, None, T0 + 90)])
        ssd.delete_many([A])
        assert store.find_many([A], T0)[0] == (10, T0 + 90, "redis")
        assert store.get_many([A], T0 + 80) == [ten("1")]
        assert ssd.get_many([A], T0 + 80) == [ten("1")]


def test_old_content_never_shows(ram: MemoryStore, ssd: DiskStore) -> None:
    """A put clears what lower stores have under the key, a delete clears all."""
    with TieredStore([NamedStore("ram", ram), NamedStore("ssd", ssd)]) as store:
        ssd.put_many([Item(A, ten("old"), T0 + 60)])
        store.put_many([Item(A, ten("new"), T0 + 60)])
        ram.delete_many([A])
        assert store.get_many([A], T0) == [None]
        ssd.put_many([Item(A, ten("old"), T0 + 60)])
        store.delete_many([A])
        assert store.get_many([A], T0) == [None]
        assert list(store.scan()) == []


@pytest.mark.parametrize("change", ["put", "delete"])
def test_a_promotion_does_not_undo_a_change(ram: MemoryStore, change: str) -> None:
    """A read that began before a put or delete of its key may answer the old content, but does not bring it back."""
    below = FaultyStore(MemoryStore(1 << 20))
    with TieredStore([NamedStore("ram", ram), NamedStore("ssd", below)]) as store:
        below.put_many([Item(A, ten("old"), T0 + 60)])
        below.late = True
        got: list[bytes | None] = []
        thread = threading.Thread(target=lambda: got.extend(store.get_many([A], T0)))
        thread.start()
        below.reached.wait()
        if change == "put":
            store.put_many([Item(A, ten("new"), T0 + 60)])
        else:
            store.delete_many([A])
        below.late = False
        thread.join()
        assert got == [ten("old")]
        assert store.get_many([A], T0) == [ten("new") if change == "put" else None]


def test_too_large_for_memory_goes_below(ram: MemoryStore, ssd: DiskStore) -> None:
    """What the first store can't hold is put into the next."""
    with TieredStore([NamedStore("ram", ram), NamedStore("ssd", ssd)]) as store:
        store.put_many([Item(A, bytes(1000), T0 + 60)])
        assert store.find_many([A], T0)[0] == (1000, T0 + 60, "ssd")


def test_no_store_at_all() -> None:
    """There is nothing to be the first."""
    with pytest.raises(ValueError, match="at least one"):
        TieredStore([])
