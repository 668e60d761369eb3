"""The page pool: never a page twice, and runs where there is room for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.tree.pages import PagePool


@given(st.integers(1, 40), st.data())
def test_random_use_hands_each_page_out_once(num_pages: int, data: st.DataObject) -> None:
    """Against a plain set: what is out is never handed out again, and exactly as many come as were
    asked for."""
    pool = PagePool(num_pages)
    out: set[int] = set()
    for _ in range(data.draw(st.integers(1, 20))):
        if out and data.draw(st.booleans()):
            back = data.draw(st.lists(st.sampled_from(sorted(out)), unique=True))
            pool.free(back)
            out -= set(back)
        else:
            wanted = data.draw(st.integers(0, num_pages - len(out)))
            after = data.draw(st.one_of(st.none(), st.integers(0, num_pages - 1)))
            pages = pool.allocate(wanted, after, data.draw(st.integers(0, 2 * num_pages)))
            assert len(pages) == len(set(pages)) == wanted
            assert not out & set(pages)
            out |= set(pages)
        pool.check()
        assert pool.num_free == num_pages - len(out)


def test_a_run_is_continued() -> None:
    """A sequence that grows stays in one run as long as the next page is free."""
    pool = PagePool(20)
    table = pool.allocate(3, room=10)
    other = pool.allocate(3, room=5)
    for _ in range(7):
        table += pool.allocate(1, after=table[-1])
    assert table == list(range(10))
    assert other == [10, 11, 12]


def test_a_broken_run_goes_on_in_the_next_long_enough_one() -> None:
    """Where the next page is taken, one run holds all of the rest if it can."""
    pool = PagePool(12)
    pages = pool.allocate(12)
    pool.free([pages[i] for i in (1, 3, 4, 5, 8)])
    assert pool.allocate(3, after=0) in ([1, 3, 4], [1, 4, 5])


def test_fragments_are_used_when_there_is_no_run() -> None:
    """Every free page can be had, in pieces if need be."""
    pool = PagePool(9)
    pool.allocate(9)
    pool.free(range(0, 9, 2))
    assert sorted(pool.allocate(5, room=9)) == [0, 2, 4, 6, 8]


def test_pages_used_before_come_before_fresh_ones() -> None:
    """Requests that come one after the other use the same memory again, though the pool has plenty
    they never touched."""
    pool = PagePool(100)
    for _ in range(20):
        table = pool.allocate(8, room=12)
        for _ in range(4):
            table += pool.allocate(1, after=table[-1])
        assert table == list(range(12))
        pool.settle(table[-1])
        pool.free(table)


def test_claimed_room_is_free_again_once_its_owner_is_settled() -> None:
    """What one run did not grow into is the next one's, though the first one's pages stay out."""
    pool = PagePool(20)
    table = pool.allocate(2, room=10)
    assert pool.allocate(3, room=4) == [10, 11, 12]
    pool.settle(table[-1])
    assert pool.allocate(3, room=4) == [2, 3, 4]
    assert pool.allocate(1, after=1) == [6]


def test_a_claim_gives_way_where_nothing_else_is_long_enough() -> None:
    """A growing run loses its room rather than that another one be cut in pieces; and never to one
    that has a place."""
    pool = PagePool(16)
    growing = pool.allocate(2, room=12)
    assert pool.allocate(3) == [12, 13, 14]
    assert pool.allocate(1) == [15]
    assert pool.allocate(5) == [2, 3, 4, 5, 6]
    assert pool.allocate(2, after=growing[-1]) == [7, 8]


def test_misuse_is_refused() -> None:
    """More than is free, pages that are not out, an empty pool."""
    pool = PagePool(2)
    with pytest.raises(MemoryError):
        pool.allocate(3)
    with pytest.raises(AssertionError, match="free already"):
        pool.free([0])
    with pytest.raises(ValueError, match="at least one page"):
        PagePool(0)
