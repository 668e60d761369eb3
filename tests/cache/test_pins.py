"""Pinned entries: they do not expire, leave last, survive a restart, keep to their budget,
and go when they are told to.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.tiers.object_format import KEY_NBYTES, span_key, stored_entry_key
from engine.cache.tree.block import pack
from engine.store.base import PINNED_UNTIL_S
from engine.store.memory import MemoryStore
from tests.fakes.rig import Rig, marked, turn
from tests.fakes.tier_io import ManualIo

PROMPT = list(range(1, 22))
TTL_S = 300.0
YEAR_S = 365 * 86_400.0
PLAN = marked((turn(0), TTL_S))
OFFSETS = {turn(0): 18, turn(1): len(PROMPT)}


def key_of(rig: Rig) -> bytes:
    """The key of the object of the prompt's entry."""
    (space,) = rig.cache._tenants.values()
    (entry,) = (entry for entry in space.entries if entry.offset == 18)
    return stored_entry_key(space.namespace, entry.key)


def pin(rig: Rig, *, pinned: bool = True) -> str:
    """Pin that entry, or unpin it; the outcome."""
    outcome, used_nbytes, _ = rig.cache.pin(key_of(rig), pinned=pinned)
    rig.cache.check()
    rig.settle()
    assert used_nbytes >= 0
    return outcome


def read(rig: Rig) -> tuple[int, float]:
    """Tokens read by the same prompt again, and the seconds its entry has left."""
    report = rig.run(PROMPT, PLAN, OFFSETS)
    return (0, 0.0) if report.hit is None else (report.hit.offset, report.hit.ttl_left_s)


@pytest.mark.parametrize("has_tier", [False, True])
def test_a_pinned_entry_does_not_expire_until_it_is_unpinned(has_tier: bool) -> None:
    """A year later it is read as it was; unpinned it lives for its own time again, and its KV no
    longer."""
    store = MemoryStore(1 << 20) if has_tier else None
    rig = Rig(store=store)
    rig.run(PROMPT, PLAN, OFFSETS)
    assert pin(rig) == "done"
    rig.advance(YEAR_S)
    assert read(rig) == (18, TTL_S)
    assert rig.cache.stats().gauges.num_pinned_entries == 1
    assert pin(rig) == "done", "pinned already"
    assert pin(rig, pinned=False) == "done"
    rig.advance(TTL_S - 1)
    assert rig.cache.stats().gauges.num_pinned_entries == 0
    assert read(rig)[0] == 18
    rig.advance(TTL_S + 1)
    rig.advance(1)
    assert (rig.cache.stats().gauges.num_entries, rig.cache.stats().gauges.num_blocks) == (0, 0)
    if store is not None:
        store.expire(rig.now_s)
        assert (store.stats.num_items, store.stats.pinned_nbytes) == (0, 0)


def test_an_unread_unpinned_entry_leaves_nothing_behind() -> None:
    """Blocks that waited for eviction or expiry when the pin ended are found again by both."""
    store = MemoryStore(1 << 20)
    rig = Rig(store=store)
    rig.run(PROMPT, PLAN, OFFSETS)
    pin(rig)
    rig.advance(YEAR_S)
    pin(rig, pinned=False)
    rig.advance(TTL_S + 1)
    store.expire(rig.now_s)
    assert rig.cache.stats().gauges.num_blocks == 0
    assert store.stats.num_items == 0
    assert read(rig)[0] == 0


def test_it_leaves_the_device_last() -> None:
    """Others under a live entry go before it, however often they were used, as long as they
    suffice."""
    rig = Rig(num_pages=16)
    rig.run(PROMPT, PLAN, OFFSETS)
    pin(rig)
    for i in range(100, 1000, 100):
        others = list(range(i, i + 24))
        for _ in range(2):
            rig.run(others, marked(turn(0)))
    assert rig.cache.stats().counters.num_evicted_blocks > 0
    assert read(rig)[0] == 18
    pin(rig, pinned=False)
    for i in range(2000, 3000, 100):
        others = list(range(i, i + 24))
        for _ in range(2):
            rig.run(others, marked(turn(0)))
    assert read(rig)[0] == 0, "once unpinned it goes like any other"


def test_a_request_that_needs_every_page_gets_them() -> None:
    """A pin is no reservation: what runs comes first. Below the device the entry is still there."""
    rig = Rig(num_pages=10, store=MemoryStore(1 << 20))
    rig.run(PROMPT, PLAN, OFFSETS)
    pin(rig)
    rig.run(list(range(500, 539)), marked(turn(0)))
    assert read(rig) == (18, TTL_S)


def test_it_survives_a_restart_by_what_is_stored() -> None:
    """Another cache over the same store reads it a year later, as pinned, and can unpin it once it
    was read."""
    store = MemoryStore(1 << 20)
    first = Rig(store=store)
    first.run(PROMPT, PLAN, OFFSETS)
    pin(first)
    key = key_of(first)
    second = Rig(store=store)
    second.advance(YEAR_S)
    assert second.cache.pin(key, pinned=False)[0] == "unknown", "it has not heard of it yet"
    assert read(second) == (18, TTL_S)
    second.advance(YEAR_S)
    assert read(second) == (18, TTL_S)
    assert second.cache.pin(key, pinned=False)[0] == "done"
    second.settle()
    third = Rig(store=store)
    third.advance(2 * YEAR_S + TTL_S + 1)
    assert read(third)[0] == 0


def test_every_object_under_it_is_pinned_below() -> None:
    """Spans, tail and entry alike, and none of them afterwards."""
    store = MemoryStore(1 << 20)
    rig = Rig(store=store)
    rig.run(PROMPT, PLAN, OFFSETS)
    pin(rig)
    (space,) = rig.cache._tenants.values()
    (entry,) = space.entries
    assert entry.block is not None
    pinned = {key for key, found in store.scan() if found.expires_at_s >= PINNED_UNTIL_S}
    assert stored_entry_key(space.namespace, entry.key) in pinned
    spans = {span_key(space.namespace, block.key) for block in rig.cache._index.walk(space.root)}
    assert len(pinned & spans) == 2
    assert len(pinned) == 4, "two spans, a tail, the entry"
    assert store.stats.pinned_nbytes > 0
    pin(rig, pinned=False)
    assert not [key for key, found in store.scan() if found.expires_at_s >= PINNED_UNTIL_S]


def test_the_budget_is_not_passed() -> None:
    """The first entry fits, a second does not; a prefix of what is pinned costs nothing more."""
    rig = Rig(pin_nbytes=0)
    rig.run(PROMPT, PLAN, OFFSETS)
    assert pin(rig) == "over_budget"
    nbytes = 5 * rig.device.page_nbytes
    rig = Rig(pin_nbytes=nbytes)
    rig.run(
        PROMPT,
        marked((turn(0), TTL_S), (turn(1), TTL_S)),
        {turn(0): 8, turn(1): 18, turn(2): len(PROMPT)},
    )
    (space,) = rig.cache._tenants.values()
    short, long = sorted(space.entries, key=lambda entry: entry.offset)
    assert rig.cache.pin(stored_entry_key(space.namespace, long.key), pinned=True) == (
        "done",
        nbytes,
        nbytes,
    )
    assert rig.cache.pin(stored_entry_key(space.namespace, short.key), pinned=True) == (
        "done",
        nbytes,
        nbytes,
    )
    rig.run(list(range(100, 120)), marked(turn(0)))
    other = max(
        space.entries, key=lambda entry: entry.written_at_s if not entry.is_pinned else -1.0
    )
    assert (
        rig.cache.pin(stored_entry_key(space.namespace, other.key), pinned=True)[0] == "over_budget"
    )
    rig.cache.check()


def test_a_prefix_of_a_pinned_one_stays_when_it_is_unpinned() -> None:
    """Only what the entry alone kept goes; what another pinned one covers is kept."""
    rig = Rig(store=MemoryStore(1 << 20))
    rig.run(
        PROMPT,
        marked((turn(0), TTL_S), (turn(1), TTL_S)),
        {turn(0): 8, turn(1): 18, turn(2): len(PROMPT)},
    )
    (space,) = rig.cache._tenants.values()
    short, long = (
        stored_entry_key(space.namespace, entry.key)
        for entry in sorted(space.entries, key=lambda entry: entry.offset)
    )
    for key in (short, long):
        assert rig.cache.pin(key, pinned=True)[0] == "done"
    assert rig.cache.pin(long, pinned=False)[0] == "done"
    rig.settle()
    rig.advance(YEAR_S)
    rig.advance(1)
    assert rig.cache.stats().gauges.num_blocks == 2
    report = rig.run(PROMPT, marked((turn(0), TTL_S)), {turn(0): 8, turn(1): len(PROMPT)})
    assert report.hit is not None
    assert report.hit.offset == 8


def test_what_is_unpinned_counts_no_more_before_a_slow_tier_has_heard_of_it() -> None:
    """The answer says so at once, and another entry may take the room; later the tier's own count
    says the same."""
    writer, store = ManualIo(), MemoryStore(1 << 20)
    rig = Rig(store=store, writer=writer)
    rig.run(PROMPT, PLAN, OFFSETS)
    key = key_of(rig)
    rig.run(list(range(100, 121)), PLAN, OFFSETS)
    (space,) = rig.cache._tenants.values()
    (other,) = (
        each
        for each in (stored_entry_key(space.namespace, entry.key) for entry in space.entries)
        if each != key
    )
    assert rig.cache.pin(key, pinned=True)[0] == "done"
    rig.settle()
    pinned_nbytes, overhead_nbytes = (
        store.stats.pinned_nbytes,
        store.stats.pinned_nbytes - 5 * rig.device.page_nbytes,
    )
    assert rig.cache.stats().gauges.pin_nbytes == pinned_nbytes
    writer.is_open = False
    assert rig.cache.pin(key, pinned=False)[1] == overhead_nbytes
    assert store.stats.pinned_nbytes == pinned_nbytes, "it has not heard of it"
    rig.cache._pins.budget_nbytes = overhead_nbytes + 5 * rig.device.page_nbytes
    assert rig.cache.pin(other, pinned=True)[0] == "done"
    assert rig.cache.pin(other, pinned=False)[0] == "done"
    writer.is_open = True
    writer.run()
    rig.settle()
    assert (store.stats.pinned_nbytes, rig.cache.stats().gauges.pin_nbytes) == (0, 0)


def test_a_flush_forgets_it() -> None:
    """On the device and below: nothing is left, and nothing counts as pinned."""
    store = MemoryStore(1 << 20)
    rig = Rig(store=store)
    rig.run(PROMPT, PLAN, OFFSETS)
    pin(rig)
    rig.cache.flush("default")
    rig.settle()
    assert (store.stats.num_items, store.stats.pinned_nbytes) == (0, 0)
    assert rig.cache.stats().gauges.pin_nbytes == 0
    assert read(rig)[0] == 0


def test_what_is_not_there_cannot_be_pinned() -> None:
    """A key of nothing is unknown; an entry whose KV left the device is absent."""
    rig = Rig(num_pages=10, store=MemoryStore(1 << 20))
    rig.run(PROMPT, PLAN, OFFSETS)
    assert rig.cache.pin(bytes(KEY_NBYTES), pinned=True)[0] == "unknown"
    key = key_of(rig)
    rig.run(list(range(500, 539)), marked(turn(0)))
    assert rig.cache.pin(key, pinned=True)[0] == "absent"
    assert read(rig)[0] == 18
    assert rig.cache.pin(key, pinned=True)[0] == "done"


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["run", "pin", "unpin", "time", "flush"]), st.integers(0, 3)),
        max_size=30,
    )
)
@pytest.mark.parametrize("has_tier", [False, True])
def test_any_history(has_tier: bool, steps: list[tuple[str, int]]) -> None:
    """Whatever is pinned and not unpinned or flushed is read, though the device holds two prompts
    of four; all invariants hold, and without pins nothing outlives its time."""
    store = MemoryStore(1 << 20) if has_tier else None
    rig = Rig(num_pages=64 if store is None else 13, store=store)
    prompts = [[*range(8), *range(100 * n, 100 * n + 13)] for n in range(1, 5)]
    keys: dict[int, bytes] = {}
    pinned: set[int] = set()
    for step, n in steps:
        if step == "run":
            rig.run(prompts[n], PLAN, OFFSETS)
            (space,) = rig.cache._tenants.values()
            (entry,) = (entry for entry in space.entries if entry.tail == pack(prompts[n][16:18]))
            keys[n] = stored_entry_key(space.namespace, entry.key)
        elif step == "pin" and n in keys:
            pinned |= {n} if rig.cache.pin(keys[n], pinned=True)[0] == "done" else set()
        elif step == "unpin" and n in pinned:
            pinned -= {n} if rig.cache.pin(keys[n], pinned=False)[0] == "done" else set()
        elif step == "time":
            rig.advance(150.0)
        elif step == "flush" and n == 0:
            rig.cache.flush(None)
            pinned.clear()
        rig.settle()
    for n in pinned:
        report = rig.run(prompts[n], PLAN, OFFSETS)
        assert report.hit is not None
        assert (report.hit.offset, report.hit.ttl_left_s) == (18, TTL_S)
    assert rig.cache.stats().gauges.num_pinned_entries == len(pinned)
    for n in pinned:
        rig.run(prompts[n], PLAN, OFFSETS)
        assert rig.cache.pin(keys[n], pinned=False)[0] == "done"
    rig.settle()
    rig.advance(TTL_S + 1)
    rig.advance(1)
    gauges = rig.cache.stats().gauges
    assert (gauges.num_blocks, gauges.num_entries, gauges.num_pinned_entries) == (0, 0, 0)
    assert store is None or store.stats.pinned_nbytes == 0


def test_a_kill_right_after_a_pin_loses_nothing_of_it() -> None:
    """What was stored before is told its new time at once, and the entry comes last."""
    store = MemoryStore(1 << 20)
    rig = Rig(store=store)
    rig.run(PROMPT, PLAN, OFFSETS)
    rig.settle()
    rig.cache.pin(key_of(rig), pinned=True)
    rig.cache.write_back.copy(1 << 20)
    second = Rig(store=store)
    second.advance(YEAR_S)
    assert read(second) == (18, TTL_S)
