"""One random life of a prefix cache: many requests,
and the plain dictionaries that say what each of them must find.
"""

from __future__ import annotations

import math
import sys
from random import Random

import pytest

from engine.cache.prefix_cache import Lease, PrefixCache
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.store.memory import MemoryStore
from engine.types import CacheReport
from tests.fakes.asks import LONGEST_TTL_S, Ask, Request, any_plan
from tests.fakes.device import FakeDevice
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.plain_cache import PlainCache, common
from tests.fakes.tier_io import ManualIo, StillClock, manual_tiers

BLOCK = 4
SPAN = 8
TENANTS = ("ada", "bob")


class Life:
    """A cache and its requests.

    `forgets`: it may lose what it kept, because neither pages nor a store have room for it, or a
    tier is at fault. `is_spanned`: what leaves the device is found again in whole spans, or up to
    an entry. With `store_nbytes` there is a tier; with `is_slow` its reads and writes wait until an
    event runs them, it may be given up, and it loses and damages what it likes.
    """

    def __init__(
        self,
        dice: Random,
        *,
        num_pages: int,
        eviction: str = "lru",
        store_nbytes: int | None = None,
        force_store: bool = False,
        forgets: bool = False,
        is_spanned: bool = False,
        is_slow: bool = False,
    ) -> None:
        self.dice = dice
        self.num_pages = num_pages
        self.has_tier = store_nbytes is not None
        self.force_store = force_store
        self.forgets = forgets
        self.is_spanned = is_spanned
        self.is_slow = is_slow
        self.device = FakeDevice(num_pages, BLOCK)
        self.clock = StillClock()
        self.reader, self.writer = ManualIo(is_open=not is_slow), ManualIo(is_open=not is_slow)
        self.store = FaultyStore(MemoryStore(store_nbytes or 0))
        tier = ("ram", self.store, self.reader, self.writer)
        self.cache = PrefixCache(
            device=self.device,
            num_pages=num_pages,
            page_nbytes=self.device.page_nbytes,
            block_size=BLOCK,
            fingerprint="model",
            root_secret=b"0123456789abcdef",
            tiers=manual_tiers(tier, clock=self.clock) if self.has_tier else None,
            eviction=eviction,
            force_store=force_store,
            span_tokens=SPAN,
        )
        self.plain = {tenant: self.nothing() for tenant in TENANTS}
        self.requests: list[Request] = []
        self.waiting: list[Ask] = []
        self.history: list[list[int]] = [[]]
        self.now_s = 100.0
        self.cache.tick(self.now_s)

    def nothing(self) -> PlainCache:
        """What a tenant has at first, and after a flush."""
        return PlainCache(SPAN, BLOCK) if self.has_tier else PlainCache(BLOCK)

    def step(self) -> None:
        """One random event, then every check."""
        events = [
            (self.ask, 5),
            (self.compute, 12),
            (self.restore, 3),
            (self.release, 4),
            (self.tick, 1.5),
            (self.flush, 0.05),
        ]
        if self.has_tier:
            events += [(self.work, 6.0 if self.is_slow else 1.0), (self.copy_out, 2)]
        if self.is_slow:
            events += [(self.abandon, 0.3), (self.fail, 0.3)]
        self.dice.choices([event for event, _ in events], [weight for _, weight in events])[0]()
        self.check()

    # A request's life -----------------------------------------------------------------------------

    def ask(self) -> None:
        """A prompt that goes on from some part of an earlier one."""
        dice = self.dice
        tenant = dice.choices(TENANTS, [4, 1])[0]
        earlier = dice.choice(self.history[-dice.choice([3, 6, 40]) :])
        cut = dice.choice([len(earlier), dice.randint(0, len(earlier))])
        prompt = [*earlier[:cut], *(dice.randrange(3) for _ in range(dice.randint(1, 7)))][
            : dice.choice([9, 16, 20, 26])
        ]
        ends = sorted(dice.sample(range(1, len(prompt) + 1), min(len(prompt), dice.randint(1, 4))))
        rendered = RenderedPrompt(
            tuple(prompt), {Position("messages", i): end for i, end in enumerate(ends)}, 0
        )
        started_at_s = self.now_s - dice.choice([0.0, 0.0, 1.0])
        plan = any_plan(dice, len(ends))
        ask = Ask(
            tenant,
            rendered,
            plan,
            started_at_s,
            len(prompt) + dice.randint(1, 8),
            self.cache.lookup(tenant, rendered, plan, started_at_s),
        )
        if -(-ask.num_reserve // BLOCK) > self.num_pages:
            with pytest.raises(ValueError, match="pages"):
                self.cache.admit(ask.lookup, num_reserve=ask.num_reserve)
            return
        ask.fetch = self.cache.fetch(ask.lookup)
        if ask.fetch is None or ask.fetch.is_over:
            self.enter(ask)
        else:
            assert self.is_slow
            self.waiting.append(ask)

    def enter(self, ask: Ask) -> None:
        """Admit a request whose reads are settled; what was read may come onto the device later."""
        lookup = self.cache.current(ask.lookup)
        fresh = self.cache.lookup(ask.tenant, ask.rendered, ask.plan, ask.started_at_s)
        assert (lookup.match, lookup.tenant) == (fresh.match, fresh.tenant)
        lease = self.cache.admit(ask.lookup, ask.num_reserve, fetch=ask.fetch)
        if lease is None:
            assert self.requests, "an idle cache always has room"
            if ask.fetch is not None and self.forgets and self.dice.random() < 0.5:
                self.waiting.append(ask)
            elif ask.fetch is not None:
                self.cache.abandon(ask.fetch)
            return
        self.cache.check()
        prompt, limit = list(ask.rendered.token_ids), len(ask.rendered.token_ids) - 1
        self.verify_report(ask, lease)
        planned = max((boundary.offset for boundary in lease.report.boundaries), default=0)
        num_kept = 0 if not ask.plan.store else math.inf if ask.plan.unmarked_ttl_s else planned
        request = Request(
            ask.tenant,
            lease,
            ask.plan,
            ask.rendered,
            ask.started_at_s,
            prompt,
            lease.num_cached,
            ask.num_reserve,
            num_kept,
        )
        self.requests.append(request)
        self.history.append(request.token_ids)
        self.note_there(request)
        hit = lease.report.hit
        for position, end in ask.rendered.offsets.items():
            offset = min(end, limit)
            if hit is not None and 0 < offset <= hit.offset:
                self.note_refreshed(request, position, offset)
        if self.dice.random() < 0.7:
            self.restore_some(request, sys.maxsize)

    def restore(self) -> None:
        """Some of what was read comes onto the device."""
        restoring = [request for request in self.requests if request.lease.arrivals]
        if restoring:
            self.restore_some(
                self.dice.choice(restoring), self.device.page_nbytes * self.dice.randint(0, 3)
            )

    def restore_some(self, request: Request, max_nbytes: int) -> None:
        if request.lease.arrivals:
            assert (
                0
                < self.cache.restore(request.lease, max_nbytes)
                <= max(max_nbytes, self.device.page_nbytes)
            )
            self.note_there(request)

    def compute(self) -> None:
        """A prefill chunk, or decode steps once the prompt is done."""
        if not self.requests:
            return
        dice = self.dice
        request, num_tokens = dice.choice(self.requests), dice.choice([2, 6, 20, 20])
        self.restore_some(request, sys.maxsize)
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
            self.cache.insert(request.lease, request.token_ids, end)
            request.num_committed = int(min(end, request.num_kept))
        if end >= num_prompt and not request.promised:
            self.promise(request)
        self.note_computed(request)

    def promise(self, request: Request) -> None:
        """The first token exists."""
        request.promised = True
        request.num_committed = max(
            request.num_committed, int(min(len(request.rendered.token_ids), request.num_kept))
        )
        self.cache.write_entries(request.lease)
        self.cache.write_entries(request.lease)
        if not request.flushed and request.num_kept:
            self.note_computed(request)
            self.note_promised(request)
            # So is the longer block, if there is one, that holds the prompt's last tokens.
            prompt = request.token_ids[
                : int(min(len(request.rendered.token_ids), request.num_kept))
            ]
            self.plain[request.tenant].keep(
                prompt, request.started_at_s + request.plan.unmarked_ttl_s
            )

    def release(self) -> None:
        """The end of a request, whether done or not."""
        if not self.requests:
            return
        request = self.dice.choice(self.requests)
        self.requests.remove(request)
        num_there = request.num_there
        assert self.device.holds(request.lease.block_table, request.token_ids, num_there)
        self.note_computed(request)
        self.cache.release(request.lease, request.token_ids, request.num_computed)
        self.cache.release(request.lease, request.token_ids, request.num_computed)
        if request.num_kept and not request.flushed:
            end = int(min(num_there, request.num_kept))
            self.plain[request.tenant].keep(
                request.token_ids[:end], self.now_s + request.plan.unmarked_ttl_s
            )
        if self.force_store and not self.requests:
            assert self.cache.stats().gauges.device_nbytes == 0

    # Other events ---------------------------------------------------------------------------------

    def work(self) -> None:
        """The tier gets on, or time passes without it; whoever waits for nothing more is
        admitted."""
        dice = self.dice
        self.reader.run(dice.randint(0, 4))
        self.writer.run(dice.randint(0, 4))
        self.clock.advance(dice.choice([0.0, 0.1, 0.2, 0.3]))
        self.cache.tiers.poll()
        self.cache.check()
        for ask in [ask for ask in self.waiting if ask.fetch is not None and ask.fetch.is_over]:
            self.waiting.remove(ask)
            self.enter(ask)

    def abandon(self) -> None:
        """A request goes away while it waits."""
        if self.waiting:
            ask = self.waiting.pop(self.dice.randrange(len(self.waiting)))
            assert ask.fetch is not None
            self.cache.abandon(ask.fetch)

    def fail(self) -> None:
        """From now on the tier is at fault, or no more."""
        store, dice = self.store, self.dice
        store.damage, store.lose_reads, store.drop_puts = (dice.random() < 0.3 for _ in range(3))

    def copy_out(self) -> None:
        """The device has time for the tier."""
        self.cache.write_back.copy(self.dice.randint(1, 20) * self.device.page_nbytes)

    def tick(self) -> None:
        """Time passes."""
        self.clock.advance(1.0)
        self.cache.tiers.poll()  # new expiries go down
        self.now_s += self.dice.choices([0.5, 2.0, 6.0, 30.0, 4000.0], [8, 6, 2, 0.3, 0.1])[0]
        self.cache.tick(self.now_s)

    def flush(self) -> None:
        """Forget a tenant or all."""
        tenant = self.dice.choice([*TENANTS, None])
        self.cache.flush(tenant)
        for name in TENANTS if tenant is None else [tenant]:
            self.plain[name] = self.nothing()
        for request in self.requests:
            request.flushed |= tenant in (None, request.tenant)

    # What the model learns ------------------------------------------------------------------------

    def note_there(self, request: Request) -> None:
        """What is found is kept from the request's start on, once it is on the device."""
        if request.num_kept and not request.flushed:
            until_s = request.started_at_s + request.plan.unmarked_ttl_s
            self.plain[request.tenant].keep(request.token_ids[: request.num_there], until_s)

    def note_refreshed(self, request: Request, position: Position, offset: int) -> None:
        """Copy what the cache says of an entry that was read; `verify_report` and the table tests
        pin how it got there."""
        entry = request.lease.tenant.entries.find(request.lease.prompt.key(position))
        plain, key = (
            self.plain[request.tenant],
            (tuple(request.token_ids[:offset]), request.plan.salts["messages"]),
        )
        if entry is not None and plain.live(*key, self.now_s):
            expected = plain.entries[key]
            if entry.refresh_on_read:
                expected = max(expected, request.started_at_s + entry.ttl_s)
            assert entry.expires_at_s == expected
            plain.entries[key] = expected
            plain.keep(key[0], expected)

    def note_computed(self, request: Request) -> None:
        """Prefixes that some block may hold."""
        if request.num_kept and not request.flushed:
            end = min(request.num_computed, request.num_kept)
            self.plain[request.tenant].computed.add(tuple(request.token_ids[: int(end)]))
            self.plain[request.tenant].computed.add(
                tuple(request.token_ids[: request.lease.num_cached])
            )

    def note_promised(self, request: Request) -> None:
        """Entries stand where the report said, for as long as the plan says or longer."""
        plain = self.plain[request.tenant]
        for boundary in request.lease.report.boundaries:
            tokens = tuple(request.rendered.token_ids[: boundary.offset])
            key = (tokens, request.plan.salts["messages"])
            entry = request.lease.tenant.entries.find(request.lease.prompt.key(boundary.position))
            assert entry is not None
            if not entry.live(self.now_s):
                assert request.started_at_s + boundary.ttl_s <= self.now_s
                continue
            was_live = plain.live(*key, self.now_s)
            planned_s = request.started_at_s + boundary.ttl_s
            assert entry.expires_at_s >= (
                plain.entries[key] if was_live and not entry.refresh_on_read else planned_s
            )
            assert entry.expires_at_s <= max(
                planned_s, request.started_at_s + LONGEST_TTL_S, plain.entries.get(key, 0.0)
            )
            plain.entries[key] = entry.expires_at_s
            plain.keep(tokens, entry.expires_at_s)

    # Checks ---------------------------------------------------------------------------------------

    def in_use(self, tenant: str, *, certain: bool) -> list[list[int]]:
        """Prefixes that running requests keep alive: what they found and committed, whole blocks of
        it for certain."""
        prefixes = []
        for request in self.requests:
            if request.tenant == tenant and not request.flushed:
                lease = request.lease
                shared = max(
                    lease.report.tiers.get("device", 0), int(min(lease.num_there, request.num_kept))
                )
                num_tokens = max(shared if certain else lease.num_cached, request.num_committed)
                prefixes.append(
                    request.token_ids[: num_tokens // BLOCK * BLOCK if certain else num_tokens]
                )
        return prefixes

    def must_skip(self, ask: Ask, report: CacheReport) -> int:
        """Tokens that have to be found: all that is kept; of what may be below, whole spans and up
        to an entry. Where the device alone gives a hit that less than a span could be added to,
        only up to the entries that the plan reads."""
        plain, prompt, salt = (
            self.plain[ask.tenant],
            list(ask.rendered.token_ids),
            ask.plan.salts["messages"],
        )
        in_use = self.in_use(ask.tenant, certain=True)
        if not self.is_spanned:
            return plain.must_skip(prompt, self.now_s, in_use)
        is_enough = report.hit is not None and len(prompt) - 1 - report.skipped < SPAN
        kept = 0 if is_enough else plain.must_skip(prompt, self.now_s, ())
        positions = ask.plan.readable if is_enough else ask.rendered.offsets
        ends = [min(ask.rendered.offsets[position], len(prompt) - 1) for position in positions]
        live = [end for end in ends if plain.live(prompt[:end], salt, self.now_s)]
        return max([kept - kept % SPAN, *live, *(common(tokens, prompt[:-1]) for tokens in in_use)])

    def verify_report(self, ask: Ask, lease: Lease) -> None:
        """The report is the model's, and the KV it counts as cached is there or on its way."""
        plain, report, plan, salt = (
            self.plain[ask.tenant],
            lease.report,
            ask.plan,
            ask.plan.salts["messages"],
        )
        prompt = list(ask.rendered.token_ids)
        limit = len(prompt) - 1
        if plan.read:
            assert report.skipped <= plain.may_skip(
                prompt, self.now_s, self.in_use(ask.tenant, certain=False)
            )
            assert self.forgets or report.skipped >= self.must_skip(ask, report)
        else:
            assert report.skipped == 0
        assert report.skipped == lease.num_cached <= limit
        assert sum(report.tiers.values()) == report.skipped
        assert self.device.holds(lease.block_table, prompt, lease.num_there)
        offset = {position: min(end, limit) for position, end in ask.rendered.offsets.items()}
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
            assert boundary.existed == (
                live(boundary.position) and boundary.offset <= report.skipped
            )

    def check(self) -> None:
        """All invariants, and the KV of every running request."""
        self.cache.check()
        for request in self.requests:
            assert self.device.holds(
                request.lease.block_table, request.token_ids, request.num_there
            )

    def end(self) -> None:
        """Take every page that was reserved, let everything go and expire, and the tier catch up:
        nothing is left."""
        for ask in self.waiting:
            assert ask.fetch is not None
            self.cache.abandon(ask.fetch)
        for request in self.requests:
            self.restore_some(request, sys.maxsize)
            self.cache.grow(request.lease, request.num_reserve)
            self.check()
        while self.requests:
            self.release()
            self.cache.check()
        self.cache.tick(self.now_s + 10_000)
        self.cache.tick(self.now_s + 20_000)
        for io in (self.reader, self.writer):
            io.is_open = True
            io.run()
        self.clock.advance(1.0)
        while self.cache.has_work:
            self.cache.tiers.poll()
            self.cache.write_back.copy(sys.maxsize)
        stats = self.cache.stats()
        gauges = stats.gauges
        assert (gauges.num_free_pages, gauges.num_blocks) == (self.num_pages, 0)
        assert (gauges.num_entries, gauges.num_tombstones) == (0, 0)
        assert (gauges.staged_nbytes, gauges.num_unwritten) == (0, 0)
        assert all(tier.gauges.queued_nbytes == 0 for tier in stats.tiers.values())
