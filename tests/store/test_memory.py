"""What only the memory store promises: which item goes, and that room is made before an item enters."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from engine.store.base import Item
from engine.store.memory import MemoryStore

NOW_S = 100.0


def test_the_least_recently_used_item_goes_first() -> None:
    """A get is use, a find is not."""
    store = MemoryStore(30)
    store.put_many([Item(b"a", bytes(9), NOW_S + 9), Item(b"b", bytes(9), NOW_S + 9), Item(b"c", bytes(9), NOW_S + 9)])
    store.get_many([b"a"], NOW_S)
    store.find_many([b"b"], NOW_S)
    store.put_many([Item(b"d", bytes(9), NOW_S + 9)])
    assert [found is not None for found in store.find_many([b"a", b"b", b"c", b"d"], NOW_S)] == [True, False, True, True]
    assert store.stats.num_evictions == 1


def test_the_cap_holds_inside_a_put() -> None:
    """Even between leaving and entering the items held never weigh more than the cap."""

    class Watched(OrderedDict[bytes, tuple[bytes, float]]):
        most = 0

        def __setitem__(self, key: bytes, value: tuple[bytes, float]) -> None:
            super().__setitem__(key, value)
            self.most = max(self.most, sum(len(k) + len(v[0]) for k, v in self.items()))

    store = MemoryStore(100)
    store._items = watched = Watched()
    for i in range(50):
        store.put_many([Item(bytes([i % 7]), bytes(i % 90), NOW_S + 9)])
    assert 0 < watched.most <= 100


def test_a_negative_cap_is_refused() -> None:
    """Zero is a store that holds nothing; less is a mistake."""
    with pytest.raises(ValueError, match="negative"):
        MemoryStore(-1)
