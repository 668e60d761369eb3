"""Pinned objects in a folder: the last that are given up, at work and at start, and counted."""

from __future__ import annotations

from pathlib import Path

from engine.store.base import PINNED_UNTIL_S, Item
from engine.store.disk.store import DiskStore

CAP = 64 * 4096
SIZE = 20_000
NOW_S = 1000.0


def test_pinned_objects_outlast_a_flood_and_a_restart(tmp_path: Path) -> None:
    """Five times the cap goes through the folder, which is then opened with half of it: the pinned
    one is still read."""
    with DiskStore(tmp_path, nbytes=CAP) as store:
        store.put_many([Item(b"pinned", b"p" * SIZE, NOW_S + 1)])
        store.refresh_many({b"pinned": PINNED_UNTIL_S})
        assert store.stats.pinned_nbytes >= SIZE
        for n in range(5 * CAP // SIZE):
            store.put_many(
                [Item(b"other" + bytes([n]), b"o" * SIZE, NOW_S + 500, recompute_cost=9.0)]
            )
            store.get_many([b"other" + bytes([n])], NOW_S)
        num_items = store.stats.num_items
        assert num_items < 5 * CAP // SIZE
    with DiskStore(tmp_path, nbytes=CAP // 2) as store:
        assert store.stats.num_items < num_items
        assert store.stats.pinned_nbytes >= SIZE
        assert store.get_many([b"pinned"], NOW_S + 1e9) == [b"p" * SIZE]
        store.refresh_many({b"pinned": NOW_S + 1})
        assert store.stats.pinned_nbytes == 0
        store.expire(NOW_S + 2)
        assert store.find_many([b"pinned"], NOW_S) == [None]
