"""One suite for every store: what `engine.store.base.BlockStore` promises in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.store.base import BlockStore, Found, Item
from engine.store.memory import MemoryStore
from engine.store.null import NullStore

CAP_NBYTES = 200
STORES: dict[str, Callable[[], BlockStore]] = {
    "memory": lambda: MemoryStore(CAP_NBYTES),
    "memory without room": lambda: MemoryStore(0),
    "null": NullStore,
}
KEYS = [bytes([i]) * 8 for i in range(6)]
NOW_S = 100.0


@pytest.fixture(params=STORES.values(), ids=STORES.keys())
def store(request: pytest.FixtureRequest) -> Iterator[BlockStore]:
    """An open, empty store that may hold at most `CAP_NBYTES`."""
    with request.param() as opened:
        yield opened


def nbytes_held(store: BlockStore) -> int:
    """Keys and payloads, counted by hand."""
    return sum(len(key) + found.nbytes for key, found in store.scan())


def test_a_get_returns_what_was_put_or_nothing(store: BlockStore) -> None:
    """Answers come in the order of the keys, unknown ones are None, twice asked is twice answered."""
    store.put_many([Item(KEYS[0], b"zero", NOW_S + 1), Item(KEYS[1], b"", NOW_S + 1)])
    payloads = store.get_many([KEYS[1], KEYS[2], KEYS[0], KEYS[0]], NOW_S)
    assert payloads[0] in (b"", None)
    assert payloads[1] is None
    assert payloads[2] in (b"zero", None)
    assert payloads[2] == payloads[3]
    for key, payload in zip([KEYS[1], KEYS[2], KEYS[0]], payloads, strict=False):
        expected = None if payload is None else Found(len(payload), NOW_S + 1)
        assert store.find_many([key], NOW_S) == [expected]


def test_an_expired_item_is_never_returned(store: BlockStore) -> None:
    """Neither found nor read from its expiry on."""
    store.put_many([Item(KEYS[0], b"zero", NOW_S)])
    assert store.find_many([KEYS[0]], NOW_S) == [None]
    assert store.get_many([KEYS[0]], NOW_S) == [None]


def test_a_put_without_payload_moves_the_expiry_and_stores_nothing(store: BlockStore) -> None:
    """Both ways, for a known key; an unknown one stays unknown."""
    store.put_many([Item(KEYS[0], b"zero", NOW_S + 1), Item(KEYS[0], None, NOW_S + 50), Item(KEYS[1], None, NOW_S + 50)])
    assert store.find_many(KEYS[:2], NOW_S + 2) in ([Found(4, NOW_S + 50), None], [None, None])
    store.put_many([Item(KEYS[0], None, NOW_S)])
    assert store.get_many([KEYS[0]], NOW_S) == [None]


def test_a_second_put_replaces_the_first(store: BlockStore) -> None:
    """Nothing of the first is ever seen again, not even when the second does not fit."""
    store.put_many([Item(KEYS[0], b"first", NOW_S + 1), Item(KEYS[0], b"second", NOW_S + 2)])
    assert store.get_many([KEYS[0]], NOW_S)[0] in (b"second", None)
    store.put_many([Item(KEYS[0], bytes(2 * CAP_NBYTES), NOW_S + 2)])
    assert store.get_many([KEYS[0]], NOW_S) == [None]
    assert store.stats.num_put_drops >= 1


def test_deleted_is_gone(store: BlockStore) -> None:
    """Unknown keys are ignored."""
    store.put_many([Item(KEYS[0], b"zero", NOW_S + 1)])
    store.delete_many([KEYS[0], KEYS[1]])
    assert store.get_many([KEYS[0]], NOW_S) == [None]
    assert list(store.scan()) == []
    assert store.stats.nbytes == store.stats.num_items == 0


def test_empty_batches_are_fine(store: BlockStore) -> None:
    """No keys, no answers."""
    store.put_many([])
    store.delete_many([])
    assert store.find_many([], NOW_S) == store.get_many([], NOW_S) == []


ITEMS = st.builds(
    Item,
    st.sampled_from(KEYS),
    st.one_of(st.none(), st.binary(max_size=120)),
    st.sampled_from([NOW_S - 1, NOW_S + 1, NOW_S + 9]),
)


@pytest.mark.parametrize("make", STORES.values(), ids=STORES.keys())
@given(batches=st.lists(st.lists(ITEMS, max_size=4), max_size=8))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_random_puts_never_pass_the_cap_nor_mix_items(make: Callable[[], BlockStore], batches: list[list[Item]]) -> None:
    """After every batch: what is there is the last put, the statistics are those of a scan, the cap holds."""
    with make() as store:
        last: dict[bytes, bytes] = {}
        expiry: dict[bytes, float] = {}
        for batch in batches:
            store.put_many(batch)
            for key, payload, expires_at_s in batch:
                if payload is not None:
                    last[key] = payload
                expiry[key] = expires_at_s
            assert nbytes_held(store) == store.stats.nbytes <= CAP_NBYTES
            assert len(list(store.scan())) == store.stats.num_items
            for key, payload in zip(KEYS, store.get_many(KEYS, NOW_S), strict=True):
                assert payload is None or (payload == last[key] and expiry[key] > NOW_S)
