"""What every store promises, run against every store."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.store.base import BlockStore, Found, Item
from engine.store.disk.store import DiskStore
from engine.store.memory import MemoryStore
from tests.store.conftest import Kind

T0 = 1_700_000_000.0
A, B, C = b"a" * 32, b"b" * 32, b"c"


def payload(seed: int, nbytes: int) -> bytes:
    return random.Random(seed).randbytes(nbytes)


@dataclass(frozen=True, slots=True)
class Held:
    """What a store may have under a key. `sure`: a store that keeps what fits must still have
    it."""

    payload: bytes
    expires_at_s: float
    sure: bool = True


@dataclass(slots=True)
class Model:
    """What any store may answer: under each key it has one of `items`, or nothing."""

    keeps: bool
    now_s: float = T0
    items: dict[bytes, tuple[Held, ...]] = field(default_factory=dict)

    def put(self, item: Item, *, only_longer: bool = False, is_held: bool = True) -> None:
        assert is_held or not self.keeps
        new = Held(item.payload, item.expires_at_s, sure=is_held)
        longer = tuple(
            held for held in self.items.get(item.key, ()) if held.expires_at_s > item.expires_at_s
        )
        if not only_longer or not longer:
            self.items[item.key] = (new,)
        elif not self.must_have(item.key):  # whether the old one was still there is not known
            self.items[item.key] = (*longer, new)

    def refresh(self, key: bytes, until_s: float, *, only_longer: bool, is_held: bool) -> None:
        assert is_held or not self.must_have(key)
        assert not is_held or key in self.items
        self.items[key] = tuple(
            Held(
                held.payload,
                max(until_s, held.expires_at_s) if only_longer else until_s,
                sure=held.sure and held.expires_at_s > self.now_s,
            )
            for held in self.items.get(key, ())
        )

    def must_have(self, key: bytes) -> bool:
        """Whether there is but one thing that the store may have, and it may not have nothing."""
        all_held = self.items.get(key, ())
        return self.keeps and [held.sure and self.is_live(held) for held in all_held] == [True]

    def is_live(self, held: Held) -> bool:
        return held.expires_at_s > self.now_s

    def check_get(self, key: bytes, got: bytes | None) -> None:
        live = [held.payload for held in self.items.get(key, ()) if self.is_live(held)]
        assert got in live if got is not None else not self.must_have(key)

    def check_find(self, key: bytes, found: Found | None) -> None:
        live = [
            Found(len(held.payload), held.expires_at_s)
            for held in self.items.get(key, ())
            if self.is_live(held)
        ]
        assert found in live if found is not None else not self.must_have(key)


KEYS = st.sampled_from([bytes([n]) * 32 for n in range(5)] + [b"k", b"z" * 64])
SIZES = st.sampled_from([0, 1, 100, 5000, 30_000])
TTLS = st.sampled_from([-5.0, 1.0, 60.0, 3600.0])
ITEMS = st.tuples(KEYS, st.integers(0, 3), SIZES, TTLS)
STEPS = st.one_of(
    st.tuples(st.just("put"), st.lists(ITEMS, min_size=1, max_size=4), st.booleans()),
    st.tuples(st.just("put"), st.lists(ITEMS, min_size=1, max_size=1), st.booleans()),
    st.tuples(st.just("refresh"), st.dictionaries(KEYS, TTLS, max_size=3), st.booleans()),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("look"), st.lists(KEYS, max_size=4)),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 30.0, 3600.0])),
    st.tuples(st.just("expire")),
)


def check_invariants(store: BlockStore) -> None:
    assert store.stats.nbytes <= getattr(store, "cap_nbytes", float("inf"))
    if isinstance(store, DiskStore):
        store.check()


@given(steps=st.lists(STEPS, max_size=25))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_history(kind: Kind, steps: list[tuple[object, ...]]) -> None:
    """Whatever is done to it, a store returns what was put last or None, nothing expired, and
    within its cap."""
    model = Model(kind.keeps)
    with kind.make() as store:
        for step in steps:
            match step:
                case ("put", list(drawn), bool(only_longer)):
                    items = [
                        Item(key, payload(seed, nbytes), model.now_s + ttl_s)
                        for key, seed, nbytes, ttl_s in drawn
                    ]
                    all_held = store.put_many(items, only_longer=only_longer)
                    for item, is_held in zip(items, all_held, strict=True):
                        model.put(item, only_longer=only_longer, is_held=is_held)
                case ("refresh", dict(ttls), bool(only_longer)):
                    expiries = {key: model.now_s + ttl_s for key, ttl_s in ttls.items()}
                    all_held = store.refresh_many(expiries, only_longer=only_longer)
                    for (key, until_s), is_held in zip(expiries.items(), all_held, strict=True):
                        model.refresh(key, until_s, only_longer=only_longer, is_held=is_held)
                case ("expire",):
                    store.expire(model.now_s)
                case ("delete", bytes(key)):
                    store.delete_many([key, b"unknown"])
                    model.items.pop(key, None)
                case ("wait", float(seconds)):
                    model.now_s += seconds
                case ("look", list(keys)):
                    for key, found in zip(keys, store.find_many(keys, model.now_s), strict=True):
                        model.check_find(key, found)
                    for key, got in zip(keys, store.get_many(keys, model.now_s), strict=True):
                        model.check_get(key, got)
            check_invariants(store)
        for key in list(model.items):
            model.check_get(key, store.get_many([key], model.now_s)[0])
        for key, found in store.scan():
            assert found.nbytes in [len(held.payload) for held in model.items[key]]


def test_the_model_notices_a_store_that_loses() -> None:
    """Control: a store that keeps nothing does not pass as one that keeps."""
    model = Model(keeps=True)
    model.put(Item(A, b"x", T0 + 1))
    with pytest.raises(AssertionError):
        model.check_get(A, None)
    with pytest.raises(AssertionError):
        model.put(Item(A, b"x", T0 + 1), is_held=False)
    with pytest.raises(AssertionError):
        model.refresh(A, T0 + 2, only_longer=True, is_held=False)


def test_the_model_notices_a_store_that_lies() -> None:
    """Control: other bytes, or bytes after the expiry, do not pass."""
    model = Model(keeps=False)
    model.put(Item(A, b"x", T0 + 1))
    with pytest.raises(AssertionError):
        model.check_get(A, b"y")
    model.now_s = T0 + 1
    with pytest.raises(AssertionError):
        model.check_get(A, b"x")


def test_answers_come_in_the_order_of_the_keys(kind: Kind) -> None:
    """A batch has one answer per key, in order, unknown and repeated keys included."""
    with kind.make() as store:
        store.put_many([Item(A, b"1", T0 + 9), Item(B, b"22", T0 + 9)])
        got = store.get_many([B, C, A, B], T0)
        found = store.find_many([B, C, A], T0)
    assert got == [b"22", None, b"1", b"22"]
    assert [f and f.nbytes for f in found] == [2, None, 1]


def test_an_item_lives_until_its_expiry_and_no_longer(kind: Kind) -> None:
    """At the expiry an item is gone from find and get; a refresh before it moves it, either way."""
    with kind.make() as store:
        store.put_many([Item(A, b"x", T0 + 10), Item(B, b"y", T0 + 10)])
        store.find_many([A], T0)
        store.refresh_many({A: T0 + 100, B: T0 + 5})
        assert store.get_many([B], T0 + 5) == [None]
        if kind.keeps:
            assert store.get_many([A], T0 + 99) == [b"x"]
        assert store.get_many([A, B], T0 + 100) == [None, None]
        assert store.find_many([A, B], T0 + 100) == [None, None]


def test_megabytes_come_back(kind: Kind) -> None:
    """Values of several megabytes, of a size no buffer has, and a small one between them, in one
    call and one by one."""
    large, other = payload(1, 3_000_001), payload(2, 1_234_567)
    items = [Item(A, large, T0 + 9), Item(C, b"small", T0 + 9), Item(B, other, T0 + 9)]
    with kind.make() as store:
        store.put_many(items)
        got = [store.get_many([A, C, B], T0), [store.get_many([item.key], T0)[0] for item in items]]
    assert got == ([[large, b"small", other]] * 2 if kind.keeps else [[None, b"small", None]] * 2)


def test_a_refresh_of_nothing_stores_nothing(kind: Kind) -> None:
    """Refreshing an unknown key leaves no trace of it."""
    with kind.make() as store:
        store.find_many([A], T0)
        assert store.refresh_many({A: T0 + 100}) == [False]
        assert store.find_many([A], T0) == [None]
        assert list(store.scan()) == []


def test_the_last_of_a_batch_counts(kind: Kind) -> None:
    """Puts of one key in one call take effect in their order."""
    with kind.make() as store:
        store.put_many([Item(A, b"old", T0 + 5), Item(A, b"new", T0 + 9)])
        store.refresh_many({A: T0 + 11})
        if kind.keeps:
            assert store.find_many([A], T0)[0] is not None
        assert store.get_many([A], T0 + 10) == [b"new"]


def test_scan_names_everything_held(kind: Kind) -> None:
    """A scan tells keys, lengths and expiries, and what was deleted is not there."""
    with kind.make() as store:
        store.put_many([Item(A, b"1", T0 + 9), Item(B, b"22", T0 + 8), Item(C, b"", T0 + 7)])
        store.delete_many([A, b"unknown"])
        held = {key: (found.nbytes, found.expires_at_s) for key, found in store.scan()}
        assert store.get_many([A], T0) == [None]
    assert held == {B: (2, T0 + 8), C: (0, T0 + 7)}


def test_nobody_shortens_what_another_has_promised(kind: Kind) -> None:
    """With `only_longer` neither a put nor a refresh ends an item sooner, and both say that it is
    held; what ends sooner gives way."""
    with kind.make() as store:
        store.put_many([Item(A, b"long", T0 + 90), Item(B, b"short", T0 + 5)])
        items = [Item(A, b"new", T0 + 60), Item(B, b"new", T0 + 60), Item(C, b"new", T0 + 60)]
        assert store.put_many(items, only_longer=True) == [True] * 3
        assert store.get_many([A, B, C], T0 + 10) == [b"long", b"new", b"new"]
        expiries = {A: T0 + 80, B: T0 + 80, b"unknown": T0 + 80}
        assert store.refresh_many(expiries, only_longer=True) == [True, True, False]
        found = store.find_many([A, B], T0 + 10)
        assert [each and each.expires_at_s for each in found] == [T0 + 90, T0 + 80]
        assert store.put_many([Item(A, b"newer", T0 + 60)]) == [True]
        assert store.refresh_many({B: T0 + 20}) == [True]
        found = store.find_many([A, B], T0 + 10)
        assert [each and each.expires_at_s for each in found] == [T0 + 60, T0 + 20]


def test_an_equal_expiry_gives_way(kind: Kind) -> None:
    """A put that ends when the old one does replaces it: only what is kept longer stays."""
    with kind.make() as store:
        store.put_many([Item(A, b"old", T0 + 60)])
        assert store.put_many([Item(A, b"new", T0 + 60)], only_longer=True) == [True]
        assert store.get_many([A], T0) == [b"new"]


def test_a_healthy_store_has_no_problem(kind: Kind) -> None:
    """Asking for what is not there is no trouble."""
    with kind.make() as store:
        store.put_many([Item(A, b"1", T0 + 9)])
        store.get_many([A, B], T0)
        assert (store.stats.num_errors, store.stats.problem) == (0, None)


def test_many_threads(kind: Kind) -> None:
    """Threads that put, refresh, read and delete the same keys at once get what one of them put, or
    None."""
    payloads = [payload(n, 3000 + n) for n in range(4)]
    keys = [bytes([n]) * 32 for n in range(4)]
    wrong: list[object] = []

    def work(store: BlockStore, seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(30):
                n = rng.randrange(4)
                match rng.randrange(5):
                    case 0 | 1:
                        store.put_many([Item(keys[n], payloads[n], T0 + 60)])
                    case 2:
                        store.refresh_many({keys[n]: T0 + 90})
                    case 3 if rng.random() < 0.3:
                        store.delete_many([keys[n]])
                got = store.get_many(keys, T0)
                wrong.extend(g for g, p in zip(got, payloads, strict=True) if g not in (None, p))
        except Exception as error:
            wrong.append(error)

    with kind.make() as store:
        threads = [threading.Thread(target=work, args=(store, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check_invariants(store)
        assert store.stats.num_damaged == 0
    assert wrong == []


def test_evicted_items_are_the_least_recently_used() -> None:
    """The memory store makes room for a new item by the one unused for longest."""
    with MemoryStore(3 * 33) as store:
        store.put_many([Item(bytes([n]) * 32, b"x", T0 + 9) for n in range(3)])
        store.get_many([bytes([0]) * 32], T0)
        store.put_many([Item(b"n" * 32, b"x", T0 + 9)])
        assert {key[0] for key, _ in store.scan()} == {0, 2, ord("n")}
