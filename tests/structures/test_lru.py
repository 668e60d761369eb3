"""The bounded mapping against a plain list of what was used when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.structures.lru import LruCache

LIMIT = 10
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "pop"]), st.integers(0, 5), st.integers(1, 12)),
    max_size=100,
)


@given(steps=STEPS)
def test_any_history(steps: list[tuple[str, int, int]]) -> None:
    """The least recently used go until the others fit; too large a value is not held, and neither
    is what was under its key."""
    cache: LruCache[int, int] = LruCache(LIMIT, lambda key, value: value)
    order: list[tuple[int, int]] = []
    for step, key, value in steps:
        held = dict(order).get(key)
        if step == "get":
            assert cache.get(key) == held
        elif step == "pop":
            assert cache.pop(key) == held
        else:
            cache.put(key, value)
        order = [pair for pair in order if pair[0] != key]
        if step == "put" and value <= LIMIT:
            order.append((key, value))
        elif step == "get" and held is not None:
            order.append((key, held))
        while sum(nbytes for _, nbytes in order) > LIMIT:
            del order[0]
        assert (len(cache), cache.total) == (len(order), sum(nbytes for _, nbytes in order))


def test_without_a_cost_values_are_counted() -> None:
    """The limit is how many are held."""
    cache: LruCache[str, str] = LruCache(2)
    for key in ("a", "b", "c"):
        cache.put(key, key.upper())
    assert [cache.get(key) for key in ("a", "b", "c")] == [None, "B", "C"]
