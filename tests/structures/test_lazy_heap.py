"""The lazy heap finds what a search of everything would, and stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.structures.lazy_heap import SLACK, LazyHeap

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "put off", "sooner", "lose", "discard", "first", "pop"]),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
    max_size=200,
)


@given(steps=STEPS)
def test_any_history(steps: list[tuple[str, int, int]]) -> None:
    """The first item and what is popped are the earliest of a plain dictionary, whatever was put
    off, brought forward or lost since it was held."""
    due: dict[int, float] = {}
    heap: LazyHeap[int, float] = LazyHeap(due.get)
    held: set[int] = set()
    for step, item, seconds in steps:
        match step:
            case "add":
                due.setdefault(item, float(seconds))
                heap.add(item)
                held.add(item)
            case "put off" if item in due:
                due[item] += seconds
            case "sooner" if item in due:
                due[item] -= seconds
                if item in held:
                    heap.add(item)
            case "lose":
                due.pop(item, None)
                held.discard(item)
            case "discard":
                heap.discard(item)
                held.discard(item)
            case "first":
                first = heap.first()
                assert (None if first is None else due[first]) == min(
                    (due[one] for one in held), default=None
                )
            case "pop":
                limit = float(seconds) if seconds else None
                popped = heap.pop(limit)
                soon = [one for one in held if limit is None or due[one] <= limit]
                assert (popped is None) == (not soon)
                if popped is not None:
                    assert due[popped] == min(due[one] for one in soon)
                    held.discard(popped)
        assert all(item in heap for item in held)


def test_stale_records_do_not_pile_up() -> None:
    """An item that is held for ever sooner times, and others that are held and discarded,
    leave a bounded heap behind."""
    due = {0: 1e6}
    heap: LazyHeap[int, float] = LazyHeap(due.__getitem__)
    for i in range(10_000):
        due[0] -= 1
        heap.add(0)
        due[i + 1] = 2e6
        heap.add(i + 1)
        heap.discard(i + 1)
        assert len(heap) <= 2 + SLACK
    assert heap.first() == 0


def test_equal_times_are_found_in_the_order_they_were_held() -> None:
    """Items need no order of their own."""
    first, second = [object(), object()]
    heap: LazyHeap[object, float] = LazyHeap(lambda item: 1.0)
    heap.add(first)
    heap.add(second)
    assert heap.pop(0.9) is None
    assert [heap.pop(1.0), heap.pop(1.0), heap.pop(1.0)] == [first, second, None]
