"""Worked examples of the prefix cache over a lower tier: demoted, found again, expired, damaged,
forgotten."""

from __future__ import annotations

import pytest

from engine.cache.tiers.object_format import span_key
from engine.cache.tree.block import PromptKeys, pack
from engine.prompt.rendered import RenderedPrompt
from engine.store.base import Item
from engine.store.memory import MemoryStore
from engine.types import CachePlan, Hit
from tests.fakes.document import DOCUMENT, NO_TAIL, UNMARKED, ask, with_question
from tests.fakes.rig import SYSTEM, TOOLS, Rig, marked, turn


def test_forced_every_hit_comes_from_the_store() -> None:
    """No page stays on the device between requests; the report says where the tokens came from,
    tail included."""
    rig = Rig(store=MemoryStore(1 << 20), force_store=True)
    tokens, offsets = with_question(1, 2)
    rig.run(tokens, marked(SYSTEM), offsets)
    assert rig.cache.stats().gauges.device_nbytes == 0
    report = ask(rig, [7, 8], marked(SYSTEM))
    assert report.tiers == {"ram": 22}
    assert report.hit == Hit(SYSTEM, 22, 300.0)
    running = rig.admit([*DOCUMENT[:10], 5], UNMARKED)
    rig.prefill(running)
    mixed = ask(rig, [7, 8, 9], marked(SYSTEM))
    assert mixed.tiers == {"device": 8, "ram": 16}, "a whole span is found without an entry"
    rig.release(running, [*DOCUMENT[:10], 5])


def test_a_full_device_demotes_and_loses_nothing() -> None:
    """With room below, eviction breaks no promise, and what is read comes back as it was."""
    rig = Rig(num_pages=8, store=MemoryStore(1 << 20))
    plan = marked(turn(0), **NO_TAIL)
    prompts = [[100 * i + j for j in range(20)] for i in range(1, 6)]
    for prompt in prompts:
        rig.run(prompt, plan)
    for prompt in prompts:
        report = rig.run(prompt, plan)
        assert report.hit == Hit(turn(0), 19, 300.0)
        assert sum(report.tiers.values()) == 19
    counters = rig.cache.stats().counters
    assert counters.num_demoted_blocks > counters.num_evicted_blocks == 0
    assert counters.num_loaded_tokens > 0


def test_what_expires_leaves_the_store_and_what_is_refreshed_stays() -> None:
    """A refreshed object does not expire below before its block does above, whether or not the tier
    was told in time."""
    store = MemoryStore(1 << 20)
    rig = Rig(store=store, force_store=True)
    plan = marked((turn(0), 300.0), **NO_TAIL)
    rig.run(DOCUMENT, plan)
    rig.advance(200)
    rig.run(DOCUMENT, plan)
    rig.advance(200)
    assert rig.run(DOCUMENT, plan).skipped == 21
    rig.advance(300)
    assert store.stats.num_items == store.stats.nbytes == 0, "nobody asked, but time was told"
    assert rig.run(DOCUMENT, plan).skipped == 0


def test_what_expires_below_while_it_is_used_is_written_again() -> None:
    """A request may run for longer than the KV it uses is kept: at its end that KV is as good as
    new, below too."""
    rig = Rig(store=MemoryStore(1 << 20), force_store=True)
    tokens, plan = list(range(17)), CachePlan(unmarked_ttl_s=10.0)
    rig.run(tokens, plan)
    lease = rig.admit(tokens, plan)
    assert lease.num_cached == 16
    rig.prefill(lease)
    rig.advance(20)
    rig.release(lease, tokens)
    assert rig.run(tokens, plan).skipped == 16


def test_a_refresh_the_tier_was_not_told_of_yet_counts() -> None:
    """Expiries go down in batches; whoever asks for such an object is not told that it is over."""
    rig = Rig(store=MemoryStore(1 << 20), force_store=True)
    plan = marked((turn(0), 300.0), **NO_TAIL)
    rig.run(DOCUMENT, plan)
    rig.advance(200)
    lease = rig.admit(DOCUMENT, plan)
    rig.prefill(lease)
    rig.cache.release(lease, DOCUMENT, 22)
    rig.advance(200)
    assert rig.run(DOCUMENT, plan).tiers == {"ram": 21}


def test_the_later_of_two_expiries_is_told_whoever_comes_last() -> None:
    """Two requests read the same KV at once and renew entries of their own: it stays for the one
    that lives longer."""
    store = MemoryStore(1 << 20)
    common = list(range(16))
    hour, minutes = [*common, *range(100, 106)], [*common, *range(200, 206)]
    plans = {
        3600.0: marked((turn(0), 3600.0), **NO_TAIL),
        300.0: marked((turn(0), 300.0), **NO_TAIL),
    }
    before = Rig(store=store)
    before.run(hour, plans[3600.0])
    before.advance(3400)
    before.run(minutes, plans[300.0])
    rig = Rig(store=store)
    rig.advance(3500)
    asked = []
    for tokens, plan in ((hour, plans[3600.0]), (minutes, plans[300.0])):
        rendered = RenderedPrompt(tuple(tokens), {turn(0): len(tokens)}, 0)
        lookup = rig.cache.lookup("default", rendered, plan, rig.now_s)
        asked.append((lookup, rig.cache.fetch(lookup)))
    leases = [rig.cache.admit(lookup, num_reserve=23, fetch=fetch) for lookup, fetch in asked]
    for lease in leases:
        assert lease is not None
        assert lease.report.skipped == 21
        rig.cache.restore(lease, 1 << 20)
        rig.cache.release(lease, list(lease.prompt.rendered.token_ids), 21)
    rig.settle()
    after = Rig(store=store)
    after.advance(4000)
    assert after.run(hour, plans[3600.0]).skipped == 21


@pytest.mark.parametrize(("wait_s", "skipped"), [(299, 21), (300, 0)])
def test_what_expires_while_a_request_waits_for_pages_is_not_used(
    wait_s: float, skipped: int
) -> None:
    """It was read in time, but is over when the request is admitted."""
    rig = Rig(store=MemoryStore(1 << 20), force_store=True)
    plan = marked(turn(0), **NO_TAIL)
    rig.run(DOCUMENT, plan)
    rendered = RenderedPrompt(tuple(DOCUMENT), {turn(0): len(DOCUMENT)}, 0)
    fetch = rig.cache.fetch(rig.cache.lookup("default", rendered, plan, rig.now_s))
    lookup = rig.cache.lookup("default", rendered, plan, rig.now_s + wait_s)
    lease = rig.cache.admit(lookup, num_reserve=23, fetch=fetch)
    assert lease is not None
    assert lease.report.skipped == skipped
    rig.cache.release(lease, [], 0)
    rig.cache.check()


def test_what_was_refreshed_while_a_request_waits_for_pages_is_used() -> None:
    """Another request has renewed the entry since the first one read its KV."""
    rig = Rig(store=MemoryStore(1 << 20), force_store=True)
    plan = marked(turn(0), **NO_TAIL)
    rig.run(DOCUMENT, plan)
    rendered = RenderedPrompt(tuple(DOCUMENT), {turn(0): len(DOCUMENT)}, 0)
    fetch = rig.cache.fetch(rig.cache.lookup("default", rendered, plan, rig.now_s))
    rig.advance(200)
    rig.run(DOCUMENT, plan)
    rig.advance(200)
    lookup = rig.cache.lookup("default", rendered, plan, rig.now_s)
    lease = rig.cache.admit(lookup, num_reserve=23, fetch=fetch)
    assert lease is not None
    assert (lease.report.hit, lease.report.broken_tokens) == (Hit(turn(0), 21, 300.0), 0)
    rig.cache.release(lease, [], 0)
    rig.cache.check()


def test_the_deepest_entry_is_read_from_below_where_the_device_has_a_shorter_one() -> None:
    """Only the end of the path was evicted, less than a span of it: what was promised there is not
    broken."""
    rig = Rig(num_pages=7, store=MemoryStore(1 << 20), span_tokens=16)
    offsets = {TOOLS: 12, SYSTEM: 21}
    plan = marked(TOOLS, SYSTEM)
    rig.run(DOCUMENT, plan, offsets)
    rig.run(list(range(15)), CachePlan(store=False))
    assert rig.cache.stats().gauges.num_blocks == 3, "the shorter one is still there"
    report = rig.run(DOCUMENT, plan, offsets)
    assert (report.hit, report.broken_tokens) == (Hit(SYSTEM, 21, 300.0), 0)


def _damage(store: MemoryStore, how: str) -> None:
    """Spoil every item of the store."""
    items = list(store.scan())
    payloads = [store._items[key][0] for key, _ in items]
    for i, (key, found) in enumerate(items):
        payload = payloads[i]
        spoilt = {
            "flipped": payload[:-1] + bytes([payload[-1] ^ 1]),
            "short": payload[:-1],
            "empty": b"",
            "swapped": payloads[i - 1],
        }[how]
        store.put_many([Item(key, spoilt, found.expires_at_s)])


@pytest.mark.parametrize("how", ["flipped", "short", "empty", "swapped"])
def test_a_damaged_payload_is_a_miss_and_a_broken_promise(how: str) -> None:
    """A bad checksum, a torn item or another block's bytes are never used; the next request heals
    the cache."""
    store = MemoryStore(1 << 20)
    rig = Rig(store=store, force_store=True)
    tokens, offsets = with_question(1, 2)
    rig.run(tokens, marked(SYSTEM), offsets)
    _damage(store, how)
    report = rig.run(tokens, marked(SYSTEM), offsets)
    assert (report.skipped, report.hit, report.broken_tokens) == (0, None, 22)
    assert report.miss is not None
    assert report.miss.cause == "broken_promise"
    assert rig.cache.stats().counters.num_broken_corrupt_tokens == 22
    assert rig.run(tokens, marked(SYSTEM), offsets).hit == Hit(SYSTEM, 22, 300.0)


def test_the_match_ends_at_the_span_that_was_lost() -> None:
    """Spans before it are used; those after it, and the entry's tail, are not."""
    store = MemoryStore(1 << 20)
    rig = Rig(store=store, force_store=True)
    offsets = {TOOLS: 8, SYSTEM: 22}
    rig.run([*DOCUMENT, 1], marked(TOOLS, SYSTEM), offsets)
    space = rig.cache._tenants["default"]
    second = PromptKeys(space.root, pack(DOCUMENT), 4, []).ancestor(16)
    store.delete_many([span_key(space.namespace, second)])
    report = rig.run([*DOCUMENT, 1], marked(TOOLS, SYSTEM), offsets)
    assert (report.skipped, report.hit, report.broken_tokens) == (8, Hit(TOOLS, 8, 300.0), 14)


def test_a_store_that_keeps_nothing_is_as_good_as_none() -> None:
    """Evicted blocks are gone, nothing fails."""
    rig = Rig(num_pages=6, store=MemoryStore(0))
    rig.run(DOCUMENT, marked(turn(0)))
    rig.run(list(range(23)), UNMARKED)
    assert rig.run(DOCUMENT, CachePlan(store=False)).skipped == 0


def test_forcing_needs_a_store() -> None:
    """There is nowhere to put the pages otherwise."""
    with pytest.raises(ValueError, match="needs a tier"):
        Rig(force_store=True)


def test_what_arrives_after_a_flush_is_not_kept() -> None:
    """Half of a prompt is on the device and half on its way from below when its tenant is
    forgotten: nothing stays."""
    rig = Rig(num_pages=8, store=MemoryStore(1 << 20))
    tokens, plan = list(range(17)), CachePlan()
    rig.run(tokens, plan)
    rig.run(list(range(100, 122)), CachePlan(store=False, read=False))
    rendered = RenderedPrompt(tuple(tokens), {turn(0): len(tokens)}, 0)
    lookup = rig.cache.lookup("default", rendered, plan, rig.now_s)
    lease = rig.cache.admit(lookup, num_reserve=18, fetch=rig.cache.fetch(lookup))
    assert lease is not None
    assert lease.held
    assert lease.arrivals
    rig.cache.flush("default")
    while lease.arrivals:
        rig.cache.restore(lease, rig.device.page_nbytes)
    rig.cache.check()
    rig.cache.release(lease, tokens, lease.num_cached)
    rig.cache.check()
    gauges = rig.cache.stats().gauges
    assert (gauges.num_blocks, gauges.num_free_pages) == (0, gauges.num_pages)


def test_a_flushed_request_takes_nothing_of_its_successor_along() -> None:
    """A block flushed while in use has the key of the one computed after the flush: its end deletes
    nothing of that one."""
    rig = Rig(store=MemoryStore(1 << 20), force_store=True)
    rig.run(DOCUMENT, UNMARKED)
    old = rig.admit(DOCUMENT, UNMARKED)
    rig.cache.flush(None)
    rig.run(DOCUMENT, UNMARKED)
    rig.cache.release(old, DOCUMENT, old.num_cached)
    rig.cache.check()
    assert rig.run(DOCUMENT, UNMARKED).tiers == {"ram": 16}, "whole spans"
