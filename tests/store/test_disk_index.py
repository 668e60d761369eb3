"""The disk store's index against plain lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.store.base import PINNED_UNTIL_S
from engine.store.disk.index import DiskIndex, ObjectRecord
from engine.structures.scores import SCORES

EXPIRIES = st.integers(0, 20) | st.just(PINNED_UNTIL_S)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "touch", "expire", "pin"]), st.integers(0, 7), EXPIRIES
    ),
    max_size=300,
)


@given(steps=STEPS, eviction=st.sampled_from(list(SCORES)))
def test_any_history(steps: list[tuple[str, int, float]], eviction: str) -> None:
    """Order of use, next to expire and the victim are what a search of all records says; memory
    stays in proportion."""
    index = DiskIndex(eviction)
    order: list[ObjectRecord] = []
    for step, n, expires_at_s in steps:
        key = bytes([n])
        held = index.get(key)
        if step == "add":
            record = ObjectRecord(key, 1, 1, float(expires_at_s), worth=float(n % 3))
            index.add(record)
            order = [*(other for other in order if other.key != key), record]
        elif held is not None and step == "remove":
            index.remove(held)
            order.remove(held)
        elif held is not None and step == "touch":
            index.touch(held)
            order.remove(held)
            order.append(held)
        elif held is not None and step == "expire":
            index.expire_at(held, float(expires_at_s))
        elif held is not None:
            held.num_readers = 1 - held.num_readers
        assert list(index) == order
        first = index.next_to_expire()
        assert (first and first.expires_at_s) == min(
            (record.expires_at_s for record in order), default=None
        )
        victim = index.victim(10.0)
        free = [record for record in order if record.num_readers == 0]
        if first is not None and first.expires_at_s <= 10.0 and first.num_readers == 0:
            assert victim is first
        else:
            assert victim is min(
                free, key=lambda record: (record.is_pinned, SCORES[eviction](record)), default=None
            )
            plain = [record for record in free if not record.is_pinned]
            assert eviction != "lru" or victim is ((plain or free)[0] if free else None)
        assert index.pinned_nbytes == sum(record.is_pinned for record in order)
        assert len(index._queue) <= 2 * len(order) + 65
        assert len(index._by_expiry) <= 2 * len(order) + 65


def test_a_replaced_record_is_not_removed_twice() -> None:
    """Removing the old record of a key leaves the new one."""
    index = DiskIndex()
    old, new = ObjectRecord(b"k", 1, 1, 1.0), ObjectRecord(b"k", 2, 2, 2.0)
    index.add(old)
    index.add(new)
    index.remove(old)
    assert index.get(b"k") is new
    assert index.next_to_expire() is new


def test_what_is_dear_stays_until_others_were_used_more() -> None:
    """By cost: a byte that takes long to make outlives one used as often, until the clock of what
    went has passed it."""
    index = DiskIndex("cost")
    dear = ObjectRecord(b"dear", 1, 1, 99.0, worth=3.0)
    index.add(dear)
    for n in range(4):
        index.add(ObjectRecord(bytes([n]), 1, 1, 99.0, worth=1.0))
    gone = []
    for n in range(4, 14):
        victim = index.victim(0.0)
        assert victim is not None
        index.remove(victim)
        gone.append(victim)
        index.add(ObjectRecord(bytes([n]), 1, 1, 99.0, worth=1.0))
    assert gone[0].key == b"\0"
    assert gone.index(dear) == 8


def test_a_score_of_another_name_is_refused() -> None:
    """Said where the store is made."""
    with pytest.raises(ValueError, match="unknown eviction score 'mru'"):
        DiskIndex("mru")


@pytest.mark.parametrize("eviction", SCORES)
def test_pinned_records_are_the_last_victims(eviction: str) -> None:
    """Whatever was used more often or later goes first; unpinned it is a victim like any other."""
    index = DiskIndex(eviction)
    pinned = ObjectRecord(b"p", 1, 8, PINNED_UNTIL_S)
    index.add(pinned)
    others = [ObjectRecord(bytes([n]), 1, 1, 99.0, worth=9.0) for n in range(3)]
    for other in others:
        index.add(other)
        index.touch(other)
    assert index.pinned_nbytes == 8
    for other in others[:2]:
        assert index.victim(0.0) is other
        index.remove(other)
    index.expire_at(pinned, 99.0)
    assert index.pinned_nbytes == 0
    assert index.victim(0.0) is pinned
    index.expire_at(pinned, PINNED_UNTIL_S)
    index.remove(others[2])
    assert index.victim(0.0) is pinned
    index.add(ObjectRecord(b"p", 1, 3, PINNED_UNTIL_S))
    assert index.pinned_nbytes == 3
