"""Worked examples of the prefix cache: how long what was written lives, and what prolongs it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from engine.types import CachePlan, Hit, PlannedEntry
from tests.fakes.document import ANY, DOCUMENT, NO_TAIL, UNMARKED, ask, with_question
from tests.fakes.rig import START_S, SYSTEM, TOOLS, Rig, marked, turn


def test_reading_refreshes_for_the_entrys_own_class_from_the_requests_start() -> None:
    """A 5m entry read every 4 minutes lives on; unread for 5 minutes it is gone; a 1h entry beside
    it stays."""
    rig = Rig()
    offsets = {TOOLS: 6, SYSTEM: 14, turn(0): 20}
    plan = marked((TOOLS, 3600.0), (SYSTEM, 300.0), **NO_TAIL)
    reading = CachePlan(readable=(SYSTEM, TOOLS), unmarked_ttl_s=0.0)
    rig.run(DOCUMENT, plan, offsets)
    for _ in range(5):
        rig.advance(240)
        assert rig.run(DOCUMENT, reading, offsets).hit == Hit(SYSTEM, 14, 300.0)
    rig.advance(300)
    report = rig.run(DOCUMENT, reading, offsets)
    assert report.hit == Hit(TOOLS, 6, 3600.0)
    assert report.skipped < 14, "nothing keeps the KV past the longest entry's last block"
    rig.advance(3599)
    assert rig.run(DOCUMENT, reading, offsets).hit is not None
    rig.advance(3600)
    assert rig.run(DOCUMENT, reading, offsets).skipped == 0


def test_the_ttl_clock_starts_when_the_request_starts() -> None:
    """Ten seconds of prefill are ten seconds of the entry's life."""
    rig = Rig()
    tokens, offsets = with_question(1)
    lease = rig.admit(tokens, marked(SYSTEM, **NO_TAIL), offsets)
    rig.advance(10)
    rig.prefill(lease)
    rig.release(lease, tokens)
    rig.advance(289)
    assert rig.run(tokens, marked(SYSTEM, **NO_TAIL), offsets, tenant="other").hit is None
    peek = rig.run(tokens, CachePlan(readable=(SYSTEM,), store=False), offsets)
    assert peek.hit == Hit(SYSTEM, 22, 300.0)


def test_an_entry_that_does_not_refresh_ends_on_time() -> None:
    """Neither reading nor marking it again moves its expiry; a longer class does."""
    rig = Rig()
    tokens, offsets = with_question(1)

    def plan(ttl_s: float) -> CachePlan:
        written = (PlannedEntry(SYSTEM, ttl_s, refresh_on_read=False),)
        return CachePlan(readable=(SYSTEM,), writable=written, unmarked_ttl_s=0.0)

    rig.run(tokens, plan(300.0), offsets)
    rig.advance(200)
    assert rig.run(tokens, plan(300.0), offsets).hit == Hit(SYSTEM, 22, 100.0)
    rig.run(tokens, plan(500.0), offsets)
    rig.advance(99)
    assert rig.run(tokens, plan(300.0), offsets).hit == Hit(SYSTEM, 22, 401.0)
    rig.advance(401)
    assert rig.run(tokens, plan(300.0), offsets).hit is None


def test_a_longer_mark_upgrades_the_entry() -> None:
    """ttl_s is the longer of both from then on; a shorter mark takes nothing away."""
    rig = Rig()
    tokens, offsets = with_question(1)
    rig.run(tokens, marked((SYSTEM, 300.0)), offsets)
    assert rig.run(tokens, marked((SYSTEM, 3600.0)), offsets).hit == Hit(SYSTEM, 22, 300.0)
    assert rig.run(tokens, marked((SYSTEM, 300.0)), offsets).hit == Hit(SYSTEM, 22, 3600.0)


def limited(ttl_s: float, **limits: Any) -> CachePlan:
    """A mark on the system text under an operator's limits."""
    return marked(readable=(SYSTEM,), writable=(PlannedEntry(SYSTEM, ttl_s, **limits),))


def test_a_class_that_may_not_be_upgraded_stays() -> None:
    """A longer mark on an entry that is read refreshes it by its own class; one that writes it anew
    takes the longer."""
    rig = Rig()
    tokens, offsets = with_question(1)
    rig.run(tokens, limited(300.0), offsets)
    rig.advance(100)
    assert rig.run(tokens, limited(3600.0, upgrade=False), offsets).hit == Hit(SYSTEM, 22, 300.0)
    assert rig.run(tokens, limited(3600.0, upgrade=False), offsets).hit == Hit(SYSTEM, 22, 300.0)
    rig.advance(301)
    assert rig.run(tokens, limited(3600.0, upgrade=False), offsets).hit is None
    assert rig.run(tokens, limited(300.0, upgrade=False), offsets).hit == Hit(SYSTEM, 22, 3600.0)


def test_what_is_written_anew_takes_the_longer_class_though_its_promise_still_runs() -> None:
    """Its KV was lost and is billed as written again: what was bought is given, and it may live as
    long as any new one."""
    rig = Rig(num_pages=16)
    tokens, offsets = with_question(1)
    rig.run(tokens, limited(300.0, max_age_s=1000.0), offsets)
    rig.advance(100)
    rig.run(range(1000, 1060), CachePlan(unmarked_ttl_s=0.0))  # takes every page
    longer = limited(3600.0, upgrade=False, max_age_s=1000.0)
    report = rig.run(tokens, longer, offsets)
    assert (report.hit, report.boundaries[0].existed) == (None, False)
    assert rig.run(tokens, longer, offsets).hit == Hit(SYSTEM, 22, 1000.0)


def test_an_entry_ends_at_its_greatest_age() -> None:
    """However often it is read, whatever its class: then it is written again, and ages from
    there."""
    rig = Rig()
    tokens, offsets = with_question(1)
    plan = limited(300.0, max_age_s=500.0)
    rig.run(tokens, plan, offsets)
    for past_s, left_s in ((200.0, 300.0), (200.0, 100.0), (99.0, 1.0)):
        rig.advance(past_s)
        assert rig.run(tokens, plan, offsets).hit == Hit(SYSTEM, 22, left_s)
    assert rig.run(tokens, limited(3600.0, max_age_s=500.0), offsets).hit == Hit(SYSTEM, 22, 1.0), (
        "no upgrade outlives it"
    )
    assert rig.run(tokens, limited(300.0), offsets).hit == Hit(SYSTEM, 22, 1.0), (
        "nor a plan without a limit"
    )
    rig.advance(1)
    report = rig.run(tokens, plan, offsets)
    assert (report.hit, report.boundaries[0].existed) == (None, False)
    assert rig.run(tokens, plan, offsets).hit == Hit(SYSTEM, 22, 300.0)


def test_an_entry_from_before_the_limit_gets_one_when_it_is_marked() -> None:
    """Counted from then, for its own age is not known; a class longer than the limit is cut at
    once."""
    rig = Rig()
    tokens, offsets = with_question(1)
    rig.run(tokens, limited(300.0), offsets)
    rig.run(tokens, limited(300.0, max_age_s=400.0), offsets)
    rig.advance(299)
    assert rig.run(tokens, limited(300.0, max_age_s=400.0), offsets).hit == Hit(SYSTEM, 22, 101.0)
    rig.run([*range(500, 520), *tokens[20:]], limited(3600.0, max_age_s=50.0), offsets)
    rig.advance(50)
    assert rig.run([*range(500, 520), *tokens[20:]], limited(3600.0), offsets).hit is None


def test_only_what_was_written_lately_is_read_when_the_client_says_so() -> None:
    """`max_read_age_s` counts from the writing, not from the last read; what was too old is written
    anew, and then is not."""
    rig = Rig()
    plan = marked(SYSTEM)
    ask(rig, [1, 2, 3], plan)
    rig.advance(200)
    assert ask(rig, [4, 5, 6], plan).hit is not None
    assert ask(rig, [4, 5, 6], replace(plan, max_read_age_s=200.0)).hit is not None
    rig.advance(1)
    report = ask(rig, [7, 8, 9], replace(plan, max_read_age_s=200.0))
    assert (report.hit, report.skipped) == (None, 22)
    assert ask(rig, [7, 8, 9], replace(plan, max_read_age_s=0.0)).hit is not None
    assert ask(rig, [7, 8, 9], replace(ANY, max_read_age_s=3600.0)).hit is None, (
        "of KV without an entry nobody knows the age"
    )


def test_unmarked_kv_stays_as_long_after_its_last_use_as_the_plan_says() -> None:
    """Each use counts; 0 means nothing stays but what a planned entry covers, to the token."""
    rig = Rig()
    rig.run(DOCUMENT, UNMARKED)
    rig.advance(299)
    assert rig.run(DOCUMENT, UNMARKED).skipped == 21
    rig.advance(299)
    assert rig.run(DOCUMENT, CachePlan(unmarked_ttl_s=0.0)).skipped == 21
    rig.advance(1)
    assert rig.run(DOCUMENT, CachePlan(unmarked_ttl_s=0.0)).skipped == 0
    assert rig.cache.stats().gauges.num_blocks == 0
    tokens, offsets = with_question(1, 2, 3)
    rig.run(tokens, marked(SYSTEM, **NO_TAIL), offsets)
    assert rig.run(tokens, CachePlan(), offsets).skipped == 22


def test_expired_blocks_are_unmatchable_at_once_and_freed_by_the_next_tick() -> None:
    """Time seen by an admission counts too, and never runs backwards."""
    rig = Rig()
    rig.run(DOCUMENT, marked(turn(0), **NO_TAIL))
    rig.now_s += 300
    assert rig.run(DOCUMENT, CachePlan(store=False)).skipped == 0
    rig.now_s -= 200
    assert rig.run(DOCUMENT, CachePlan(store=False)).skipped == 0
    rig.cache.tick(rig.now_s)
    assert rig.cache.stats().gauges.num_free_pages == 64
    assert rig.cache.stats().counters.num_expired_blocks > 0
    assert rig.cache.now_s == rig.now_s + 200


def test_blocks_in_use_do_not_expire() -> None:
    """A request that runs past every TTL still shares its blocks, and is last used when it ends."""
    rig = Rig()
    lease = rig.admit(DOCUMENT, UNMARKED)
    rig.prefill(lease)
    rig.advance(1000)
    assert rig.run(DOCUMENT, CachePlan(store=False)).skipped == 21
    rig.release(lease, DOCUMENT)
    rig.advance(299)
    assert rig.run(DOCUMENT, CachePlan(store=False)).skipped == 21


def test_an_idle_tenant_leaves_nothing_behind() -> None:
    """After the blocks, the entries and their tombstones are gone, so is the tenant."""
    rig = Rig()
    ask(rig, [1], marked(SYSTEM))
    rig.advance(400)
    assert rig.cache.stats().gauges.num_tombstones == 1
    rig.advance(4000)
    assert rig.cache._tenants == {}


def test_a_late_admission_refreshes_from_the_start_of_the_request() -> None:
    """A request that waited a minute for pages renews what it reads for TTL seconds from when it
    came."""
    rig = Rig()
    reading = CachePlan(readable=(SYSTEM,), store=False)
    ask(rig, [1], marked(SYSTEM, **NO_TAIL))
    rig.now_s = START_S + 100
    rig.cache.tick(START_S + 160)
    assert ask(rig, [1], reading).hit == Hit(SYSTEM, 22, 300.0)
    rig.now_s = START_S + 400
    assert ask(rig, [1], reading).hit is None
