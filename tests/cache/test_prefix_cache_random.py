"""Random lives of many requests against plain dictionaries. Every invariant and every KV slot is checked after each step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.cache.eviction import SCORES
from engine.cache.prefix_cache import Lease, PrefixCache
from engine.cache.stats import CacheCounters
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.store.memory import MemoryStore
from engine.types import CachePlan, PlannedEntry
from tests.fakes.device import FakeDevice
from tests.fakes.plain_cache import PlainCache

BLOCK = 4
TENANTS = ("ada", "bob")


@dataclass(repr=False, eq=False)
class Request:
    """A lease and what the test knows of it."""

    tenant: str
    lease: Lease
    plan: CachePlan
    rendered: RenderedPrompt
    started_at_s: float
    token_ids: list[int]
    num_computed: int
    num_reserve: int
    num_kept: float
    num_committed: int = 0
    promised: bool = False
    flushed: bool = False


def any_plan(dice: Random, num_positions: int) -> CachePlan:
    """Any plan over positions messages/0 .. messages/n-1; most read and store."""
    marked = sorted(dice.sample(range(num_positions), dice.randint(0, num_positions)))
    looked_at = dice.sample(range(num_positions), dice.randint(0, num_positions))
    refresh = dice.random() < 0.7
    return CachePlan(
        readable=tuple(Position("messages", i) for i in sorted({*marked, *looked_at}, reverse=True)),
        writable=tuple(PlannedEntry(Position("messages", i), dice.choice([3.0, 20.0, 90.0]), refresh) for i in marked),
        min_tokens=dice.choice([0, 0, 3]),
        salts={"messages": dice.choice(["", "", "", "x"])},
        any_prefix=dice.random() < 0.3,
        unmarked_ttl_s=dice.choice([0.0, 5.0, 5.0, 15.0]),
        read=dice.random() < 0.9,
        store=dice.random() < 0.9,
    )


class Life:
    """A cache and its requests. `forgets`: it may lose what it kept, as neither pages nor a store have room for it."""

    def __init__(
        self,
        dice: Random,
        *,
        num_pages: int,
        eviction: str = "lru",
        store_nbytes: int | None = None,
        force_store: bool = False,
        forgets: bool = False,
    ) -> None:
        self.dice = dice
        self.num_pages = num_pages
        self.forgets = forgets
        self.force_store = force_store
        self.device = FakeDevice(num_pages, BLOCK)
        self.store = None if store_nbytes is None else MemoryStore(store_nbytes)
        self.cache = PrefixCache(
            device=self.device,
            num_pages=num_pages,
            page_nbytes=self.device.page_nbytes,
            block_size=BLOCK,
            fingerprint="model",
            root_secret=b"0123456789abcdef",
            store=self.store,
            eviction=eviction,
            force_store=force_store,
        )
        self.plain = {tenant: PlainCache(BLOCK) for tenant in TENANTS}
        self.requests: list[Request] = []
        self.history: list[list[int]] = [[]]
        self.now_s = 100.0
        self.cache.tick(self.now_s)

    def step(self) -> None:
        """One random event, then every check."""
        events = [self.admit, self.compute, self.compute, self.compute, self.release, self.tick]
        self.dice.choices([*events, self.flush], [5, 4, 4, 4, 4, 1.5, 0.05])[0]()
        self.check()

    def admit(self) -> None:
        """A prompt that goes on from some part of an earlier one."""
        dice = self.dice
        tenant = dice.choices(TENANTS, [4, 1])[0]
        earlier = dice.choice(self.history[-dice.choice([3, 6, 40]) :])
        cut = dice.choice([len(earlier), dice.randint(0, len(earlier))])
        prompt = [*earlier[:cut], *(dice.randrange(3) for _ in range(dice.randint(1, 7)))][: dice.choice([9, 16, 20, 26])]
        ends = sorted(dice.sample(range(1, len(prompt) + 1), min(len(prompt), dice.randint(1, 4))))
        rendered = RenderedPrompt(tuple(prompt), {Position("messages", i): end for i, end in enumerate(ends)}, 0)
        plan = any_plan(dice, len(ends))
        started_at_s = self.now_s - dice.choice([0.0, 0.0, 1.0])
        num_reserve = len(prompt) + dice.randint(1, 8)
        if -(-num_reserve // BLOCK) > self.num_pages:
            with pytest.raises(ValueError, match="pages"):
                self.cache.admit(tenant, rendered, plan, started_at_s, num_reserve=num_reserve)
            return
        lease = self.cache.admit(tenant, rendered, plan, started_at_s, num_reserve=num_reserve)
        if lease is None:
            assert self.requests, "an idle cache always has room"
            return
        self.verify_report(tenant, lease, rendered, plan, started_at_s)
        limit = len(prompt) - 1
        offsets = [b.offset for b in lease.report.boundaries]
        num_kept = 0 if not plan.store else math.inf if plan.unmarked_ttl_s else max(offsets, default=0)
        request = Request(tenant, lease, plan, rendered, started_at_s, prompt, lease.num_cached, num_reserve, num_kept)
        self.requests.append(request)
        self.history.append(request.token_ids)
        plain = self.plain[tenant]
        if num_kept:
            plain.keep(prompt[: lease.num_cached], started_at_s + plan.unmarked_ttl_s)
        hit = lease.report.hit
        for position, end in rendered.offsets.items():
            offset = min(end, limit)
            if hit is not None and 0 < offset <= hit.offset:
                self.refresh(request, position, offset)

    def in_use(self, tenant: str, *, certain: bool) -> list[list[int]]:
        """Prefixes that running requests keep alive: what they found and committed, whole blocks of it for certain."""
        prefixes = []
        for request in self.requests:
            if request.tenant == tenant and not request.flushed:
                num_tokens = max(request.lease.num_cached, request.num_committed)
                prefixes.append(request.token_ids[: num_tokens // BLOCK * BLOCK if certain else num_tokens])
        return prefixes

    def refresh(self, request: Request, position: Position, offset: int) -> None:
        """Copy what the cache says of an entry that was read; `verify_report` and the table tests pin how it got there."""
        view = request.lease.view
        entry = request.lease.space.entries.find(view.key(position))
        if entry is not None:
            plain = self.plain[request.tenant]
            key = (tuple(request.token_ids[:offset]), request.plan.salts["messages"])
            if plain.live(*key, self.now_s):
                expected = plain.entries[key]
                if entry.refresh_on_read:
                    expected = max(expected, request.started_at_s + entry.ttl_s)
                assert entry.expires_at_s == expected
                plain.entries[key] = expected
                plain.keep(key[0], expected)

    def verify_report(self, tenant: str, lease: Lease, rendered: RenderedPrompt, plan: CachePlan, started_at_s: float) -> None:
        plain, report, salt = self.plain[tenant], lease.report, plan.salts["messages"]
        prompt = list(rendered.token_ids)
        limit = len(prompt) - 1
        if plan.read:
            assert report.skipped <= plain.may_skip(prompt, self.now_s, self.in_use(tenant, certain=False))
            assert self.forgets or report.skipped >= plain.must_skip(prompt, self.now_s, self.in_use(tenant, certain=True))
        else:
            assert report.skipped == 0
        assert report.skipped == lease.num_cached <= limit
        assert sum(report.tiers.values()) == report.skipped
        assert self.device.holds(lease.block_table, prompt, report.skipped)
        offset = {position: min(end, limit) for position, end in rendered.offsets.items()}
        least = max(plan.min_tokens, 1)

        def live(position: Position) -> bool:
            return plain.live(prompt[: offset[position]], salt, self.now_s)

        candidates = [p for p in plan.readable if plan.read and offset[p] >= least and live(p)]
        first = next((p for p in candidates if offset[p] <= report.skipped), None)
        if plan.any_prefix and plan.read:
            read = report.skipped if report.skipped >= least else 0
        else:
            read = offset[first] if first is not None else 0
            assert report.hit is None or report.hit.position == first
        assert (report.hit.offset if report.hit else 0) == read
        broken = [offset[p] for p in candidates if offset[p] > report.skipped]
        assert report.broken_tokens == (max(broken) - read if broken else 0)
        assert not broken or report.miss is not None
        assert self.forgets or not broken
        writable = [p for p in plan.writable if plan.store and offset[p.position] >= least]
        assert [(b.position, b.offset, b.ttl_s) for b in report.boundaries] == [
            (p.position, offset[p.position], p.ttl_s) for p in writable
        ]
        for boundary in report.boundaries:
            assert boundary.existed == (live(boundary.position) and boundary.offset <= report.skipped)

    def compute(self) -> None:
        """A prefill chunk, or decode steps once the prompt is done."""
        if not self.requests:
            return
        dice = self.dice
        request, num_tokens = dice.choice(self.requests), dice.choice([2, 6, 20, 20])
        num_prompt = len(request.rendered.token_ids)
        if request.num_computed >= num_prompt:
            room = request.num_reserve - request.num_computed
            request.token_ids += [dice.randrange(3) for _ in range(min(num_tokens, room))]
        end = min(request.num_computed + num_tokens, len(request.token_ids))
        if request.num_computed < num_prompt:
            end = min(end, num_prompt)
        self.cache.grow(request.lease, end)
        self.device.compute(request.lease.block_table, request.token_ids, request.num_computed, end)
        request.num_computed = end
        if dice.random() < 0.8:
            self.cache.commit(request.lease, request.token_ids, end)
            request.num_committed = int(min(end, request.num_kept))
        if end >= num_prompt and not request.promised:
            self.promise(request)
        self.note_computed(request)

    def note_computed(self, request: Request) -> None:
        if request.num_kept and not request.flushed:
            end = min(request.num_computed, request.num_kept)
            self.plain[request.tenant].computed.add(tuple(request.token_ids[: int(end)]))
            self.plain[request.tenant].computed.add(tuple(request.token_ids[: request.lease.num_cached]))

    def promise(self, request: Request) -> None:
        request.promised = True
        request.num_committed = max(request.num_committed, int(min(len(request.rendered.token_ids), request.num_kept)))
        self.cache.promise(request.lease)
        self.cache.promise(request.lease)
        if request.flushed or not request.num_kept:
            return
        self.note_computed(request)
        plain = self.plain[request.tenant]
        for boundary in request.lease.report.boundaries:
            tokens = tuple(request.rendered.token_ids[: boundary.offset])
            key = (tokens, request.plan.salts["messages"])
            entry = request.lease.space.entries.find(request.lease.view.key(boundary.position))
            assert entry is not None
            if not entry.live(self.now_s):
                assert request.started_at_s + boundary.ttl_s <= self.now_s
                continue
            was_live = plain.live(*key, self.now_s)
            planned_s = request.started_at_s + boundary.ttl_s
            assert entry.expires_at_s >= (plain.entries[key] if was_live and not entry.refresh_on_read else planned_s)
            assert entry.expires_at_s <= max(planned_s, request.started_at_s + 90.0, plain.entries.get(key, 0.0))
            plain.entries[key] = entry.expires_at_s
            plain.keep(tokens, entry.expires_at_s)

    def release(self) -> None:
        """The end of a request, whether done or not."""
        if not self.requests:
            return
        request = self.dice.choice(self.requests)
        self.requests.remove(request)
        assert self.device.holds(request.lease.block_table, request.token_ids, request.num_computed)
        self.note_computed(request)
        self.cache.release(request.lease, request.token_ids, request.num_computed)
        self.cache.release(request.lease, request.token_ids, request.num_computed)
        self.settle_kept(request)
        if self.force_store and not self.requests:
            assert self.cache.stats().gauges.device_nbytes == 0

    def settle_kept(self, request: Request) -> None:
        """The request no longer keeps what it used; its plan says how long it stays."""
        if request.num_kept and not request.flushed:
            end = int(min(request.num_computed, request.num_kept))
            self.plain[request.tenant].keep(request.token_ids[:end], self.now_s + request.plan.unmarked_ttl_s)

    def tick(self) -> None:
        """Time passes."""
        self.now_s += self.dice.choices([0.5, 2.0, 6.0, 30.0, 4000.0], [8, 6, 2, 0.3, 0.1])[0]
        self.cache.tick(self.now_s)

    def flush(self) -> None:
        """Forget a tenant or all."""
        tenant = self.dice.choice([*TENANTS, None])
        self.cache.flush(tenant)
        for name in TENANTS if tenant is None else [tenant]:
            self.plain[name] = PlainCache(BLOCK)
        for request in self.requests:
            request.flushed |= tenant in (None, request.tenant)

    def check(self) -> None:
        """All invariants, and the KV of every running request."""
        self.cache.check()
        for request in self.requests:
            assert self.device.holds(request.lease.block_table, request.token_ids, request.num_computed)

    def end(self) -> None:
        """Take every page that was reserved, let everything go and expire: nothing is left."""
        for request in self.requests:
            self.cache.grow(request.lease, request.num_reserve)
            self.check()
        while self.requests:
            self.release()
            self.cache.check()
        self.cache.tick(self.now_s + 10_000)
        self.cache.tick(self.now_s + 20_000)
        gauges = self.cache.stats().gauges
        left = (gauges.num_blocks, gauges.num_entries, gauges.num_tombstones)
        assert (gauges.num_free_pages, *left) == (self.num_pages, 0, 0, 0)
        assert gauges.ram_nbytes == 0 or self.forgets


ROOM = {"num_pages": 400}
TINY = {"num_pages": 8, "forgets": True}
CONFIGURATIONS = {
    "plenty of pages": ROOM,
    **{f"few pages, {name}": {**TINY, "eviction": name} for name in SCORES},
    "few pages over a large store": {"num_pages": 8, "store_nbytes": 1 << 20},
    "few pages over a small store": {**TINY, "store_nbytes": 600},
    "every hit from the store": {**ROOM, "store_nbytes": 1 << 20, "force_store": True},
}


def live(seed: int, options: dict[str, Any], num_steps: int = 250) -> CacheCounters:
    """One random life; what its cache counted."""
    life = Life(Random(seed), **options)
    for _ in range(num_steps):
        life.step()
    life.end()
    return life.cache.stats().counters


@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(seed=st.integers(0, 2**32 - 1))
def test_random_lives_agree_with_plain_dictionaries(options: dict[str, Any], seed: int) -> None:
    """Skipped tokens, hits, boundaries and broken promises are those of the model; no page leaks; all KV is exact."""
    live(seed, options)


def test_random_lives_are_rich() -> None:
    """The lives above would prove little if nothing happened in them: everything that is counted happens."""
    total: Counter[str] = Counter()
    for seed in range(15):
        for options in CONFIGURATIONS.values():
            total.update(asdict(live(seed, options)))
    assert min(total.values()) > 0, total
    assert total["num_hits"] > total["num_requests"] / 5
