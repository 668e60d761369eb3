"""Lower tiers by themselves: what is loaded and what computed, how much is read ahead,
whose time counts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from engine.cache.lease import Lease
from engine.cache.prefix_cache import PrefixCache
from engine.cache.tiers import reader as reads
from engine.cache.tiers.client import STALL_S, TierClients
from engine.cache.tiers.fetch import Fetch, FetchStatus
from engine.cache.tiers.io import InlineIo
from engine.cache.tiers.object_format import span_key
from engine.cache.tree.block import PromptKeys, pack
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.store.base import Item
from engine.store.disk.store import DiskStore
from engine.store.memory import MemoryStore
from engine.types import CachePlan, PlannedEntry
from tests.fakes.device import FakeDevice
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.tier_io import ManualIo, StillClock, inline_tiers, manual_tiers

BLOCK, SPAN, LENGTH = 4, 16, 100
TOKENS = tuple(range(LENGTH))
ENTRY = Position("messages", 0)
END = Position("messages", 1)
BARE = CachePlan(any_prefix=True)


def marked(ttl_s: float = 300.0, *, store: bool = True, unmarked_ttl_s: float = 300.0) -> CachePlan:
    planned = (PlannedEntry(ENTRY, ttl_s),)
    return CachePlan(
        readable=(ENTRY,), writable=planned, unmarked_ttl_s=unmarked_ttl_s, store=store
    )


class Host:
    """A cache with a device of its own over tiers, as one tenant's requests see it."""

    def __init__(self, tiers: TierClients, tenant: str = "t") -> None:
        self.tenant = tenant
        self.device = FakeDevice(200, BLOCK)
        self.cache = PrefixCache(
            device=self.device,
            num_pages=200,
            page_nbytes=self.device.page_nbytes,
            block_size=BLOCK,
            fingerprint="model",
            root_secret=b"0123456789abcdef",
            tiers=tiers,
            span_tokens=SPAN,
        )

    def seek(self, plan: CachePlan, now_s: float = 1000.0, *, offset: int = 50) -> Fetch:
        fetch = self.cache.fetch(self.cache.lookup(self.tenant, rendered(offset), plan, now_s))
        assert fetch is not None
        return fetch

    def admit(
        self,
        plan: CachePlan,
        now_s: float = 1000.0,
        *,
        offset: int = 50,
        fetch: Fetch | None = None,
    ) -> Lease:
        lookup = self.cache.lookup(self.tenant, rendered(offset), plan, now_s)
        lease = self.cache.admit(lookup, num_reserve=LENGTH + 1, fetch=fetch)
        assert lease is not None
        while lease.arrivals:
            self.cache.restore(lease, 1)
        self.cache.check()
        assert self.device.holds(lease.block_table, TOKENS, lease.num_cached)
        return lease

    def answer(self, plan: CachePlan, now_s: float = 1000.0, *, offset: int = 50) -> Lease:
        """One request from start to end, everything written down."""
        lease = self.admit(
            plan,
            now_s,
            offset=offset,
            fetch=self.cache.fetch(self.cache.lookup(self.tenant, rendered(offset), plan, now_s)),
        )
        self.cache.grow(lease, LENGTH)
        self.device.compute(lease.block_table, TOKENS, lease.num_cached, LENGTH)
        self.cache.insert(lease, list(TOKENS), LENGTH)
        self.cache.write_entries(lease)
        self.cache.release(lease, list(TOKENS), LENGTH)
        self.cache.close(1.0)
        return lease


def rendered(offset: int) -> RenderedPrompt:
    return RenderedPrompt(TOKENS, {ENTRY: offset, END: LENGTH}, 0)


def filled(plan: CachePlan, *, offset: int = 50) -> MemoryStore:
    """A store that knows the prompt."""
    store = MemoryStore(1 << 20)
    Host(inline_tiers(("ssd", store))).answer(plan, offset=offset)
    return store


def slow(store: MemoryStore) -> tuple[Host, TierClients]:
    """A host whose tier was measured to be far slower than computing."""
    tiers = inline_tiers(("ssd", store))
    host = Host(tiers)
    for client in tiers.clients:
        client.bandwidth.add(1.0)
    host.cache.prefilled(100_000, 1.0)
    return host, tiers


@pytest.mark.parametrize(
    ("offset", "loaded"), [(50, 50), (48, 48), (49, 49), (64, 64), (99, 99), (3, 3)]
)
def test_spans_under_a_live_entry_are_loaded_though_computing_is_faster(
    offset: int, loaded: int
) -> None:
    """A promise is kept, and nothing beyond it is loaded: computing is faster."""
    host, _ = slow(filled(marked(), offset=offset))
    plan = marked()
    assert host.admit(plan, offset=offset, fetch=host.seek(plan, offset=offset)).num_cached in (
        loaded,
        -(-loaded // SPAN) * SPAN,
    )


def test_spans_under_no_entry_are_loaded_only_where_that_is_faster() -> None:
    """The same store, once measured slow and once not yet measured."""
    store = filled(BARE)
    host, _ = slow(store)
    assert host.admit(BARE, fetch=host.seek(BARE)).num_cached == 0
    fast = Host(inline_tiers(("ssd", store)))
    assert fast.admit(BARE, fetch=fast.seek(BARE)).num_cached == 96


def test_the_patience_for_much_is_half_of_computing_it() -> None:
    """A tier that makes progress is given up when half the time of computing has passed, but not
    before a quarter second."""
    clock = StillClock()
    reader = ManualIo(is_open=False)
    host = Host(manual_tiers(("ssd", filled(marked(), offset=99), reader, ManualIo()), clock=clock))
    host.cache.prefilled(100, 1.0)
    fetch = host.seek(marked(), offset=99)
    reader.run(1)
    host.cache.tiers.poll()
    for _ in range(4):
        clock.advance(0.11)
        reader.run(1)
        host.cache.tiers.poll()
    assert not fetch.is_over
    clock.advance(0.1)
    host.cache.tiers.poll()
    assert fetch.is_over
    assert host.admit(marked(), offset=99, fetch=fetch).num_cached == 64


def test_reads_wait_for_room_to_read_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound nothing is read ahead; it is read once an earlier request has used its bytes
    or has gone."""
    monkeypatch.setattr(reads, "STAGED_NBYTES", 900)
    host = Host(inline_tiers(("ssd", filled(marked()))))
    first, second, third = (host.seek(marked()) for _ in range(3))
    assert (first.is_over, second.is_over, third.is_over) == (True, False, False)
    assert host.cache.stats().gauges.staged_nbytes <= 900
    assert host.cache.tiers.wait_s() is None
    host.cache.abandon(first)
    host.cache.tiers.poll()
    assert (second.is_over, third.is_over) == (True, False)
    host.cache.release(host.admit(marked(), fetch=second), list(TOKENS), 0)
    host.cache.tiers.poll()
    assert third.is_over
    host.cache.abandon(third)
    host.cache.abandon(third)
    assert host.cache.stats().gauges.staged_nbytes == 0
    host.cache.check()


@pytest.mark.parametrize("num_elsewhere", [1, 2])
def test_pieces_behind_one_that_cannot_be_read_any_more_are_not_read(
    num_elsewhere: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a request waited for room to read into, a tier got stuck: all before its spans is read,
    in whatever order."""
    monkeypatch.setattr(reads, "STAGED_NBYTES", 1)
    ssd, redis, clock = filled(marked(), offset=99), MemoryStore(1 << 20), StillClock()
    Host(inline_tiers(("redis", redis)), "u").answer(marked())
    space = Host(inline_tiers(("ssd", ssd))).cache._tenants["t"]
    keys = PromptKeys(space.root, pack(TOKENS), BLOCK)
    elsewhere = [
        span_key(space.namespace, keys.ancestor(n * SPAN)) for n in range(2, 2 + num_elsewhere)
    ]
    redis.put_many([Item(key, ssd.get_many([key], 1000.0)[0], 1300.0) for key in elsewhere])
    ssd.delete_many(elsewhere)
    readers = ManualIo(is_open=False), ManualIo(is_open=False)
    tiers = (("ssd", ssd, readers[0], ManualIo()), ("redis", redis, readers[1], ManualIo()))
    host = Host(manual_tiers(*tiers, clock=clock))
    host.tenant = "u"
    first = host.seek(marked())
    for reader in readers:
        reader.run(1)
    host.cache.tiers.poll()
    host.tenant = "t"
    fetch = host.seek(marked(), offset=99)
    for reader in readers:
        reader.run(1)
    host.cache.tiers.poll()
    assert fetch.status is FetchStatus.CHOSEN
    clock.advance(STALL_S)
    host.cache.tiers.poll()
    assert first.is_over
    host.cache.abandon(first)
    readers[0].jobs.reverse()
    readers[0].run(1)
    host.cache.tiers.poll()
    host.cache.check()
    readers[0].run()
    host.cache.tiers.poll()
    assert fetch.is_over
    lease = host.admit(marked(), offset=99, fetch=fetch)
    assert (lease.num_cached, lease.report.tiers) == (SPAN, {"ssd": SPAN})


def test_a_read_that_keeps_nothing_keeps_what_it_read_below() -> None:
    """A request that stores nothing still refreshes the entry it reads, and its KV lives as
    long."""
    store = filled(marked(unmarked_ttl_s=0.0))
    reader = Host(inline_tiers(("ssd", store)))
    silent = CachePlan(readable=(ENTRY,), store=False)
    lease = reader.answer(silent, now_s=1200.0)
    assert lease.report.hit is not None
    last = Host(inline_tiers(("ssd", store)))
    report = last.answer(silent, now_s=1450.0).report
    assert (report.tiers, report.broken_tokens) == ({"ssd": 50}, 0)


def test_no_host_shortens_what_another_has_promised() -> None:
    """A host that promises five minutes, not knowing better, leaves an hour's entry and its KV
    alone."""
    store = filled(marked(3600.0, unmarked_ttl_s=0.0))
    second = Host(inline_tiers(("redis", store)))
    lease = second.admit(
        marked(300.0, unmarked_ttl_s=0.0), now_s=1001.0
    )  # without asking: as if the tier had been late
    second.cache.grow(lease, LENGTH)
    second.device.compute(lease.block_table, TOKENS, 0, LENGTH)
    second.cache.write_entries(lease)
    second.cache.release(lease, list(TOKENS), LENGTH)
    second.cache.close(1.0)
    assert [found.expires_at_s for _, found in store.scan()] == [4600.0] * 5
    report = Host(inline_tiers(("redis", store))).answer(marked(3600.0), now_s=4000.0).report
    assert report.hit is not None
    assert report.hit.ttl_left_s == 3600.0


def test_a_greatest_age_outlives_the_host() -> None:
    """Another host that reads the entry keeps to it, though its own plan knows no limit."""
    limit = msgspec.structs.replace(
        marked(300.0), writable=(PlannedEntry(ENTRY, 300.0, max_age_s=400.0),)
    )
    store = filled(limit)
    report = Host(inline_tiers(("redis", store))).answer(marked(300.0), now_s=1250.0).report
    assert report.hit is not None
    assert report.hit.ttl_left_s == 150.0


def test_trouble_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """One line a minute for a tier that does not answer, however many requests that costs."""
    clock = StillClock()
    reader = ManualIo(is_open=False)
    host = Host(manual_tiers(("redis", filled(marked()), reader, ManualIo()), clock=clock))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            fetch = host.seek(marked())
            clock.advance(STALL_S)
            host.cache.tiers.poll()
            assert fetch.is_over
            host.cache.abandon(fetch)
            reader.run()
            host.cache.tiers.poll()
    assert [record.getMessage() for record in caplog.records] == ["a tier does not answer in time"]
    assert host.cache.stats().tiers["redis"].counters.num_late == 5


def test_a_store_that_drops_is_counted_and_tried_again() -> None:
    """What the store did not take is wanted again by the next request, and then found."""
    store = FaultyStore(MemoryStore(1 << 20))
    store.drop_puts = True
    tiers = inline_tiers(("ssd", store))
    host = Host(tiers)
    host.answer(marked())
    host.cache.tiers.poll()
    assert host.cache.stats().tiers["ssd"].counters.num_dropped_writes > 0
    store.drop_puts = False
    host.answer(marked())
    assert Host(inline_tiers(("ssd", store))).answer(marked()).report.tiers["ssd"] >= 50


def test_a_refresh_reaches_a_tier_after_the_old_expiry(tmp_path: Path) -> None:
    """A request that reads is ahead of the refreshes that wait among the writes; nothing it sees
    expired is lost by that."""
    writer = ManualIo()
    with DiskStore(tmp_path, nbytes=1 << 24) as store:
        tiers = manual_tiers(("ssd", store, InlineIo(), writer))
        host = Host(tiers)
        lease = host.answer(marked(60.0, unmarked_ttl_s=60.0))
        ends = {key: found.expires_at_s for key, found in store.scan()}
        writer.is_open = False
        for key in ends:
            host.cache.tiers.refresh(key, 1200.0)
        host.cache.abandon(host.seek(BARE, 1100.0))
        writer.is_open = True
        writer.run()
        assert lease.report.hit is None
        assert set(ends.values()) == {1060.0}
        assert {key: found.expires_at_s for key, found in store.scan()} == dict.fromkeys(
            ends, 1200.0
        )


def test_a_tier_is_told_what_each_object_saves() -> None:
    """A span deep in a prompt is worth more per byte than the first, and an entry, a few bytes,
    more than all KV."""
    store = MemoryStore(1 << 24)
    worths: dict[bytes, float] = {}
    put_many = store.put_many

    def put(items: Sequence[Item], *, only_longer: bool = False) -> list[bool]:
        worths.update({item.key: item.recompute_cost for item in items})
        return put_many(items, only_longer=only_longer)

    store.put_many = put  # type: ignore[method-assign]
    host = Host(inline_tiers(("ssd", store)))
    host.answer(marked())
    space = host.cache._tenants["t"]
    keys = PromptKeys(space.root, pack(TOKENS), BLOCK)
    spans = [
        worths[span_key(space.namespace, keys.ancestor(end))] for end in range(SPAN, LENGTH, SPAN)
    ]
    assert spans == sorted(set(spans))
    entries = set(worths.values()) - set(spans)
    assert max(entries) > max(spans) > 0
