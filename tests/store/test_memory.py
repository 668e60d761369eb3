"""What only the memory store promises: which item goes,
and that room is made before an item enters.
"""

from __future__ import annotations

from collections import OrderedDict

import pytest

from engine.store.base import PINNED_UNTIL_S, Item
from engine.store.memory import MemoryStore

NOW_S = 100.0


def test_the_least_recently_used_item_goes_first() -> None:
    """A get is use, a find is not."""
    store = MemoryStore(30)
    store.put_many(
        [
            Item(b"a", bytes(9), NOW_S + 9),
            Item(b"b", bytes(9), NOW_S + 9),
            Item(b"c", bytes(9), NOW_S + 9),
        ]
    )
    store.get_many([b"a"], NOW_S)
    store.find_many([b"b"], NOW_S)
    store.put_many([Item(b"d", bytes(9), NOW_S + 9)])
    assert [found is not None for found in store.find_many([b"a", b"b", b"c", b"d"], NOW_S)] == [
        True,
        False,
        True,
        True,
    ]


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


def test_expired_items_make_room_before_live_ones() -> None:
    """An item that is over goes first, though a live one was used longer ago."""
    store = MemoryStore(3 * 11)
    store.put_many(
        [
            Item(b"a", b"0123456789", 100.0),
            Item(b"b", b"0123456789", 10.0),
            Item(b"c", b"0123456789", 100.0),
        ]
    )
    store.expire(20.0)
    store.put_many([Item(b"d", b"0123456789", 100.0)])
    assert [found is not None for found in store.find_many([b"a", b"b", b"c", b"d"], 20.0)] == [
        True,
        False,
        True,
        True,
    ]


def test_a_refreshed_item_outlives_its_first_expiry() -> None:
    """The sweep looks at the expiry an item has now."""
    store = MemoryStore(1 << 10)
    store.put_many([Item(b"a", b"1", 10.0)])
    store.refresh_many({b"a": 30.0})
    assert store.find_many([b"a"], 20.0) != [None]
    store.expire(40.0)
    assert (store.stats.num_items, store.stats.nbytes) == (0, 0)


def test_a_refreshed_item_is_in_use() -> None:
    """Whoever has it elsewhere refreshes it without reading it here."""
    store = MemoryStore(2 * 11)
    store.put_many(
        [
            Item(b"a", b"0123456789", 100.0),
            Item(b"b", b"0123456789", 100.0),
        ]
    )
    store.refresh_many({b"a": 101.0})
    store.put_many([Item(b"c", b"0123456789", 100.0)])
    assert [found is not None for found in store.find_many([b"a", b"b", b"c"], 20.0)] == [
        True,
        False,
        True,
    ]


def test_an_item_that_expires_sooner_than_it_did_is_dropped_in_time() -> None:
    """Whether its expiry was cut, or it was deleted and put again."""
    store = MemoryStore(1 << 10)
    store.put_many([Item(b"a", b"1", 1e6), Item(b"b", b"2", 1e6)])
    store.refresh_many({b"a": 30.0})
    store.delete_many([b"b"])
    store.put_many([Item(b"b", b"2", 30.0)])
    store.expire(40.0)
    assert store.stats.num_items == 0


def test_pinned_items_are_given_up_last() -> None:
    """Used longest ago, a pinned item stays while there is another; its bytes are counted."""
    store = MemoryStore(2 * 11)
    store.put_many(
        [
            Item(b"a", b"0123456789", 100.0),
            Item(b"b", b"0123456789", 100.0),
        ]
    )
    store.refresh_many({b"a": PINNED_UNTIL_S})
    assert store.stats.pinned_nbytes == 11
    store.put_many([Item(b"c", b"0123456789", 100.0)])
    assert [found is not None for found in store.find_many([b"a", b"b", b"c"], 0.0)] == [
        True,
        False,
        True,
    ]
    store.put_many([Item(b"d", b"0123456789abcdefghij", 100.0)])
    assert (store.stats.num_items, store.stats.pinned_nbytes) == (1, 0)
