"""Deadlines find what a search of everything would, and stay small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.structures.deadlines import SLACK, Deadlines

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["watch", "put off", "sooner", "lose", "discard", "first", "pop"]),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
    max_size=200,
)


@given(steps=STEPS)
def test_any_history(steps: list[tuple[str, int, int]]) -> None:
    """The first item and what is popped are the earliest of a plain dictionary, whatever was put
    off, brought forward or lost since it was watched."""
    due: dict[int, float] = {}
    deadlines: Deadlines[int] = Deadlines(due.get)
    watched: set[int] = set()
    for step, item, seconds in steps:
        match step:
            case "watch":
                due.setdefault(item, float(seconds))
                deadlines.watch(item)
                watched.add(item)
            case "put off" if item in due:
                due[item] += seconds
            case "sooner" if item in due:
                due[item] -= seconds
                if item in watched:
                    deadlines.watch(item)
            case "lose":
                due.pop(item, None)
                watched.discard(item)
            case "discard":
                deadlines.discard(item)
                watched.discard(item)
            case "first":
                first = deadlines.first()
                assert (None if first is None else due[first]) == min(
                    (due[one] for one in watched), default=None
                )
            case "pop":
                popped = deadlines.pop(float(seconds))
                soon = [one for one in watched if due[one] <= seconds]
                assert (popped is None) == (not soon)
                if popped is not None:
                    assert due[popped] == min(due[one] for one in soon)
                    watched.discard(popped)
        assert all(item in deadlines for item in watched)


def test_stale_records_do_not_pile_up() -> None:
    """An item that is watched for ever sooner times, and others that are watched and discarded,
    leave a bounded heap behind."""
    due = {0: 1e6}
    deadlines: Deadlines[int] = Deadlines(due.__getitem__)
    for i in range(10_000):
        due[0] -= 1
        deadlines.watch(0)
        due[i + 1] = 2e6
        deadlines.watch(i + 1)
        deadlines.discard(i + 1)
        assert len(deadlines) <= 2 + SLACK
    assert deadlines.first() == 0


def test_equal_times_are_found_in_the_order_they_were_watched() -> None:
    """Items need no order of their own."""
    first, second = [object(), object()]
    deadlines: Deadlines[object] = Deadlines(lambda item: 1.0)
    deadlines.watch(first)
    deadlines.watch(second)
    assert deadlines.pop(0.9) is None
    assert [deadlines.pop(1.0), deadlines.pop(1.0), deadlines.pop(1.0)] == [first, second, None]
