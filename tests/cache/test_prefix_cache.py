"""Worked examples of the prefix cache: what is read, written, kept and given back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from engine.cache.block import PromptKeys, pack, root_key
from engine.cache.stored import span_key
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.store.base import Item
from engine.store.memory import MemoryStore
from engine.types import Boundary, CachePlan, CacheReport, Hit, PlannedEntry
from tests.fakes.rig import SECRET, START_S, SYSTEM, TOOLS, Rig, marked, turn

DOCUMENT = list(range(100, 122))
"""22 tokens: five blocks of four, and two tokens in the sixth."""
UNMARKED = CachePlan(unmarked_ttl_s=300.0)
ANY = CachePlan(any_prefix=True)
NO_TAIL = {"unmarked_ttl_s": 0.0}


def with_question(*question: int) -> tuple[list[int], dict[Position, int]]:
    """The document, the system prompt, and a question after it; and where each ends."""
    return [*DOCUMENT, *question], {SYSTEM: 22, turn(0): 22 + len(question)}


def ask(rig: Rig, question: list[int], plan: CachePlan, tenant: str = "default") -> CacheReport:
    """Run a question about the document from start to end."""
    tokens, offsets = with_question(*question)
    return rig.run(tokens, plan, offsets, tenant=tenant)


# Reading and writing ------------------------------------------------------------------------------------------------------


def test_a_marked_document_is_written_once_and_read_to_the_token() -> None:
    """Another question after the same document reads exactly its 22 tokens, in the middle of a block."""
    rig = Rig()
    first = ask(rig, [1, 2, 3], marked(SYSTEM))
    assert (first.skipped, first.hit, first.boundaries) == (0, None, (Boundary(SYSTEM, 22, 300.0, False),))
    rig.advance(10)
    second = ask(rig, [7, 8, 9], marked(SYSTEM))
    assert second.hit == Hit(SYSTEM, 22, 300.0)
    assert second.skipped == 22
    assert second.boundaries == (Boundary(SYSTEM, 22, 300.0, True),)
    assert second.miss is None
    assert second.tiers == {"device": 22}


def test_the_last_token_is_always_computed() -> None:
    """The same prompt again skips all but one token, and its mark lies one before the end, there as here."""
    rig = Rig()
    for num_tokens in (16, 18):
        tokens = DOCUMENT[:num_tokens]
        offsets = {turn(0): num_tokens}
        assert rig.run(tokens, marked(turn(0)), offsets).boundaries == (Boundary(turn(0), num_tokens - 1, 300.0, False),)
        again = rig.run(tokens, marked(turn(0)), offsets)
        assert again.hit == Hit(turn(0), num_tokens - 1, 300.0)
        assert again.skipped == num_tokens - 1
        rig.cache.flush(None)


def test_a_conversation_reads_through_its_own_answer() -> None:
    """The answer's KV is kept: the next turn skips it, billed only up to the last mark."""
    rig = Rig()
    question = DOCUMENT[:10]
    rig.run(question, marked(turn(0)), {turn(0): 9}, output=[5, 6, 7])
    tokens = [*question, 5, 6, 7, 50, 51, 52]
    offsets = {turn(0): 9, turn(1): 13, turn(2): 15}
    plan = marked(turn(2), readable=(turn(2), turn(1), turn(0)))
    report = rig.run(tokens, plan, offsets)
    assert report.skipped == 13
    assert report.hit == Hit(turn(0), 9, 300.0)
    assert report.boundaries == (Boundary(turn(2), 15, 300.0, False),)
    assert report.miss is None, "a conversation that only went on missed nothing"


def test_skipped_never_needs_an_entry() -> None:
    """Unmarked KV is reused too; it is just not billed as read."""
    rig = Rig()
    rig.run(DOCUMENT, UNMARKED)
    report = rig.run(DOCUMENT, UNMARKED)
    assert (report.skipped, report.hit) == (21, None)


def test_any_prefix_reads_to_the_last_shared_token() -> None:
    """Automatic caching: what is skipped is read, from the minimum on."""
    rig = Rig()
    ask(rig, [1, 2, 3], ANY)
    assert ask(rig, [1, 9, 9], ANY).hit == Hit(SYSTEM, 23, 300.0)
    report = ask(rig, [1, 8, 8], CachePlan(any_prefix=True, min_tokens=24))
    assert (report.skipped, report.hit) == (23, None)


def test_the_first_readable_live_entry_is_the_hit() -> None:
    """The order of the plan decides, and the minimum holds for reading as for writing."""
    rig = Rig()
    offsets = {TOOLS: 6, SYSTEM: 14, turn(0): 20}
    both = marked(TOOLS, SYSTEM)
    rig.run(DOCUMENT, both, offsets)
    assert rig.run(DOCUMENT, both, offsets).hit == Hit(SYSTEM, 14, 300.0)
    assert rig.run(DOCUMENT, marked(TOOLS, SYSTEM, readable=(TOOLS, SYSTEM)), offsets).hit == Hit(TOOLS, 6, 300.0)
    small = rig.run(DOCUMENT, marked(TOOLS, SYSTEM, readable=(TOOLS,), min_tokens=7), offsets)
    assert small.hit is None
    assert [b.offset for b in small.boundaries] == [14]


def test_an_entry_is_found_only_under_its_salt() -> None:
    """Another tool_choice: the KV is skipped all the same, the entry is not read but written anew."""
    rig = Rig()
    plan, other = marked(SYSTEM, salts={"system": "auto"}), marked(SYSTEM, salts={"system": "none"})
    tokens, offsets = with_question(1)
    rig.run(tokens, plan, offsets)
    report = rig.run(tokens, other, offsets)
    assert (report.skipped, report.hit) == (22, None)
    assert report.boundaries == (Boundary(SYSTEM, 22, 300.0, False),)
    assert rig.run(tokens, plan, offsets).hit == rig.run(tokens, other, offsets).hit == Hit(SYSTEM, 22, 300.0)


def test_without_read_nothing_is_reused_and_without_store_nothing_stays() -> None:
    """`read=False` computes all; `store=False` may read but leaves nothing behind."""
    rig = Rig()
    tokens, offsets = with_question(1, 2)
    assert rig.run(tokens, marked(SYSTEM, store=False), offsets).boundaries == ()
    assert rig.cache.stats().gauges.num_blocks == 0
    assert rig.run(tokens, marked(SYSTEM), offsets).skipped == 0
    assert rig.run(tokens, marked(SYSTEM, read=False), offsets).skipped == 0
    before = rig.cache.stats().gauges.num_blocks
    longer = [*tokens, *range(30)]
    assert rig.run(longer, marked(SYSTEM, store=False), {**offsets, turn(1): 50}).skipped == 24
    assert rig.cache.stats().gauges.num_blocks == before


# Sharing ------------------------------------------------------------------------------------------------------------------


def test_two_tenants_share_nothing() -> None:
    """Equal prompts have no key in common, and one tenant's cache is cold for the other."""
    rig = Rig()
    ask(rig, [1], marked(SYSTEM), "ada")
    report = ask(rig, [1], marked(SYSTEM), "bob")
    assert (report.skipped, report.hit, report.boundaries[0].existed) == (0, None, False)
    keys = {
        tenant: {block.key for block in rig.cache._index.walk(space.root)} | {e.key for e in space.entries}
        for tenant, space in rig.cache._spaces.items()
    }
    assert len(keys["ada"]) == len(keys["bob"]) > 6
    assert not keys["ada"] & keys["bob"]
    assert root_key(SECRET, "ada", "model", 4) != root_key(SECRET, "bob", "model", 4)


def test_a_running_request_shares_what_it_has_computed() -> None:
    """Another request copies the unfilled block too, before the first one's first token exists."""
    rig = Rig()
    tokens, offsets = with_question(1, 2)
    leader = rig.admit(tokens, marked(SYSTEM), offsets)
    rig.compute(leader, tokens, 0, 10)
    follower = rig.admit(tokens, marked(SYSTEM), offsets)
    assert follower.num_cached == 10
    rig.prefill(leader)
    late = rig.admit(tokens, marked(SYSTEM), offsets)
    assert (late.num_cached, late.report.hit) == (23, Hit(SYSTEM, 22, 300.0))
    for lease in (follower, late):
        rig.prefill(lease)
    assert late.block_table[:5] == leader.block_table[:5]
    for lease in (leader, late, follower):
        rig.release(lease, tokens)


def test_a_block_computed_twice_is_kept_once() -> None:
    """Each request keeps its own pages to its end; afterwards one set is left, whoever ends first."""
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        rig = Rig()
        leases = [rig.admit(DOCUMENT, UNMARKED) for _ in range(3)]
        for lease in leases:
            rig.prefill(lease)
        assert len({page for lease in leases for page in lease.block_table}) == 18
        for i in order:
            rig.release(leases[i], DOCUMENT)
        assert rig.cache.stats().gauges.num_blocks == 6
        assert rig.cache.stats().gauges.num_free_pages == 64 - 6
        assert rig.run(DOCUMENT, UNMARKED).skipped == 21


def test_continuing_a_partial_block_copies_it_and_leaves_no_needless_page() -> None:
    """The copied page becomes a normal block, the shorter one goes; a branch keeps both."""
    rig = Rig()
    rig.run(DOCUMENT[:6], UNMARKED)
    assert rig.cache.stats().gauges.num_blocks == 2
    assert rig.run(DOCUMENT[:8], UNMARKED).skipped == 6
    assert rig.cache.stats().counters.num_copied_tokens == 2
    assert rig.cache.stats().gauges.num_blocks == 2
    rig.run([*DOCUMENT[:6], 1, 2], UNMARKED)
    assert rig.cache.stats().gauges.num_blocks == 3


def test_no_partial_block_beside_a_full_one_with_its_tokens() -> None:
    """A shorter prompt adds nothing."""
    rig = Rig()
    rig.run(DOCUMENT[:8], UNMARKED)
    assert rig.run(DOCUMENT[:7], UNMARKED).skipped == 6
    assert rig.cache.stats().gauges.num_blocks == 2


# Time ---------------------------------------------------------------------------------------------------------------------


def test_reading_refreshes_for_the_entrys_own_class_from_the_requests_start() -> None:
    """A 5m entry read every 4 minutes lives on; unread for 5 minutes it is gone; a 1h entry beside it stays."""
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
    """A longer mark on an entry that is read refreshes it by its own class; one that writes it anew takes the longer."""
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
    """Its KV was lost and is billed as written again: what was bought is given, and it may live as long as any new one."""
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
    """However often it is read, whatever its class: then it is written again, and ages from there."""
    rig = Rig()
    tokens, offsets = with_question(1)
    plan = limited(300.0, max_age_s=500.0)
    rig.run(tokens, plan, offsets)
    for past_s, left_s in ((200.0, 300.0), (200.0, 100.0), (99.0, 1.0)):
        rig.advance(past_s)
        assert rig.run(tokens, plan, offsets).hit == Hit(SYSTEM, 22, left_s)
    assert rig.run(tokens, limited(3600.0, max_age_s=500.0), offsets).hit == Hit(SYSTEM, 22, 1.0), "no upgrade outlives it"
    assert rig.run(tokens, limited(300.0), offsets).hit == Hit(SYSTEM, 22, 1.0), "nor a plan without a limit"
    rig.advance(1)
    report = rig.run(tokens, plan, offsets)
    assert (report.hit, report.boundaries[0].existed) == (None, False)
    assert rig.run(tokens, plan, offsets).hit == Hit(SYSTEM, 22, 300.0)


def test_an_entry_from_before_the_limit_gets_one_when_it_is_marked() -> None:
    """Counted from then, for its own age is not known; a class longer than the limit is cut at once."""
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
    """`max_age_s` counts from the writing, not from the last read; what was too old is written anew, and then is not."""
    rig = Rig()
    plan = marked(SYSTEM)
    ask(rig, [1, 2, 3], plan)
    rig.advance(200)
    assert ask(rig, [4, 5, 6], plan).hit is not None
    assert ask(rig, [4, 5, 6], replace(plan, max_age_s=200.0)).hit is not None
    rig.advance(1)
    report = ask(rig, [7, 8, 9], replace(plan, max_age_s=200.0))
    assert (report.hit, report.skipped) == (None, 22)
    assert ask(rig, [7, 8, 9], replace(plan, max_age_s=0.0)).hit is not None
    assert ask(rig, [7, 8, 9], replace(ANY, max_age_s=3600.0)).hit is None, "of KV without an entry nobody knows the age"


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
    assert rig.cache._spaces == {}


# Pages --------------------------------------------------------------------------------------------------------------------


def test_reserved_pages_can_always_be_had() -> None:
    """Admission counts what running requests may still take; what it refuses changes nothing; evicting is left to growth."""
    rig = Rig(num_pages=10)
    rig.run(DOCUMENT, UNMARKED)
    other = list(range(16))
    first = rig.admit(other, UNMARKED, room=8)
    assert rig.cache.stats().gauges.num_blocks == 6, "nothing is evicted before it must be"
    rendered = RenderedPrompt(tuple(DOCUMENT), {}, 0)
    assert rig.cache.admit("default", rendered, UNMARKED, rig.now_s, num_reserve=23) is None
    assert rig.cache.stats().counters.num_refused == 1
    rig.cache.check()
    second = rig.admit(list(range(50, 60)), UNMARKED, room=6)
    rig.cache.grow(first, 24)
    rig.cache.grow(second, 16)
    rig.cache.check()
    assert rig.cache.stats().gauges.num_free_pages == 0
    with pytest.raises(ValueError, match="reserved"):
        rig.cache.grow(first, 25)


@pytest.mark.parametrize(("num_tokens", "num_reserve"), [(4, 41), (4, 3), (0, 4)])
def test_what_can_never_fit_is_an_error(num_tokens: int, num_reserve: int) -> None:
    """More pages than the pool has, less room than the prompt, no prompt."""
    rendered = RenderedPrompt(tuple(range(num_tokens)), {}, 0)
    with pytest.raises(ValueError, match="token"):
        Rig(num_pages=10).cache.admit("default", rendered, UNMARKED, 0.0, num_reserve=num_reserve)


def test_a_long_prompt_gets_one_run_of_pages() -> None:
    """Prefill in chunks and decode stay contiguous, another request in between."""
    rig = Rig()
    lease = rig.admit(DOCUMENT, UNMARKED, room=10)
    rig.compute(lease, DOCUMENT, 0, 8)
    other = rig.admit(list(range(9)), UNMARKED)
    rig.prefill(other)
    rig.compute(lease, DOCUMENT, 8, 22)
    rig.cache.grow(lease, 32)
    assert all(b == a + 1 for a, b in pairwise(lease.block_table))


def test_capacity_takes_blocks_under_no_entry_first_and_then_breaks_promises() -> None:
    """A full pool without a lower tier: the older unmarked prompt goes before the newest, entries last, by their age."""
    rig = Rig(num_pages=12)
    rig.run(DOCUMENT[:8], marked(turn(0)))
    rig.advance(1)
    rig.run(list(range(8)), UNMARKED)
    rig.run(list(range(20, 40)), CachePlan(store=False, read=False))
    rig.advance(1)
    rig.run(list(range(50, 90)), CachePlan(store=False, read=False))
    assert rig.run(list(range(8)), CachePlan(store=False)).skipped == 0
    assert rig.run(DOCUMENT[:8], marked(turn(0), store=False)).hit == Hit(turn(0), 7, 300.0)
    rig.run(list(range(50, 96)), CachePlan(store=False, read=False))
    report = rig.run(DOCUMENT[:8], marked(turn(0)))
    assert (report.hit, report.skipped, report.broken_tokens) == (None, 0, 7)
    assert report.boundaries[0].existed is False
    assert rig.cache.stats().counters.num_broken_evicted_tokens == 7
    assert rig.run(DOCUMENT[:8], marked(turn(0))).hit == Hit(turn(0), 7, 300.0)


def test_a_broken_promise_falls_back_to_the_next_entry() -> None:
    """Part of the path is evicted: the hit is the deepest entry that is left, the rest is counted as broken."""
    rig = Rig(num_pages=7)
    offsets = {TOOLS: 8, SYSTEM: 21}
    plan = marked(TOOLS, SYSTEM)
    rig.run(DOCUMENT, plan, offsets)
    rig.run(list(range(16)), CachePlan(store=False))
    report = rig.run(DOCUMENT, plan, offsets)
    assert report.hit == Hit(TOOLS, 8, 300.0)
    assert 8 <= report.skipped < 21
    assert report.broken_tokens == 21 - 8
    assert [b.existed for b in report.boundaries] == [True, False]


@pytest.mark.parametrize("offset", [20, 22])
def test_recomputed_blocks_are_kept_for_the_entries_that_lost_them(offset: int) -> None:
    """A request without marks brings back the KV of a live entry: it stays as long as the entry, not as unmarked KV."""
    rig = Rig(num_pages=8)
    tokens, offsets = with_question(1)
    offsets[SYSTEM] = offset
    rig.run(tokens, marked((SYSTEM, 3600.0)), offsets)
    rig.run(list(range(30)), CachePlan(store=False))
    assert rig.cache.stats().gauges.num_blocks == 0
    rig.run(tokens, UNMARKED, offsets)
    rig.advance(3000)
    assert rig.run(tokens, marked(SYSTEM), offsets).hit == Hit(SYSTEM, offset, 3600.0)


# Ends ---------------------------------------------------------------------------------------------------------------------


def test_an_aborted_request_keeps_what_it_prefilled_and_promises_nothing() -> None:
    """Its KV is there for the next one; no entry was written; releasing twice does nothing."""
    rig = Rig()
    lease = rig.admit(DOCUMENT, marked(turn(0)))
    rig.compute(lease, DOCUMENT, 0, 10)
    rig.cache.release(lease, DOCUMENT, 10)
    rig.cache.release(lease, DOCUMENT, 10)
    rig.cache.promise(lease)
    rig.cache.check()
    report = rig.run(DOCUMENT, marked(turn(0)))
    assert (report.skipped, report.hit, report.boundaries[0].existed) == (10, None, False)


def test_tokens_that_may_not_be_reused_are_not_kept() -> None:
    """Decode KV of other bits is cut off by `num_reusable`."""
    rig = Rig()
    lease = rig.admit(DOCUMENT, UNMARKED, room=20)
    rig.prefill(lease)
    whole = [*DOCUMENT, *range(10)]
    rig.cache.grow(lease, 32)
    rig.device.compute(lease.block_table, whole, 22, 32)
    rig.cache.release(lease, whole, 22)
    rig.cache.check()
    assert rig.run([*whole, 1], CachePlan(store=False)).skipped == 22


def test_flush_forgets_one_tenant_or_all_running_requests_included() -> None:
    """Nothing of the tenant is found any more, not even what a running request computes afterwards."""
    rig = Rig(store=MemoryStore(1 << 20))
    for tenant in ("ada", "bob"):
        rig.run(DOCUMENT, marked(turn(0)), tenant=tenant)
    running = rig.admit([*DOCUMENT, 5, 6, 7], marked(turn(0)), tenant="ada")
    rig.compute(running, [*DOCUMENT, 5, 6, 7], 22, 24)
    assert rig.cache.flush("ada") == 6
    rig.cache.check()
    assert rig.cache.flush("nobody") == 0
    assert rig.run(DOCUMENT, CachePlan(store=False), tenant="ada").skipped == 0
    assert rig.run(DOCUMENT, CachePlan(store=False), tenant="bob").skipped == 21
    rig.prefill(running)
    rig.release(running, [*DOCUMENT, 5, 6, 7])
    assert rig.run(DOCUMENT, marked(turn(0), store=False), tenant="ada").skipped == 0
    assert rig.cache.flush(None) == 6
    gauges = rig.cache.stats().gauges
    assert (gauges.num_free_pages, gauges.num_blocks, gauges.num_entries) == (64, 0, 0)


# Tiers --------------------------------------------------------------------------------------------------------------------


def test_forced_every_hit_comes_from_the_store() -> None:
    """No page stays on the device between requests; the report says where the tokens came from, tail included."""
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
    """A refreshed object does not expire below before its block does above, whether or not the tier was told in time."""
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
    """A request may run for longer than the KV it uses is kept: at its end that KV is as good as new, below too."""
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


@pytest.mark.parametrize(("wait_s", "skipped"), [(299, 21), (300, 0)])
def test_what_expires_while_a_request_waits_for_pages_is_not_used(wait_s: float, skipped: int) -> None:
    """It was read in time, but is over when the request is admitted."""
    rig = Rig(store=MemoryStore(1 << 20), force_store=True)
    plan = marked(turn(0), **NO_TAIL)
    rig.run(DOCUMENT, plan)
    rendered = RenderedPrompt(tuple(DOCUMENT), {turn(0): len(DOCUMENT)}, 0)
    fetch = rig.cache.seek("default", rendered, plan, rig.now_s)
    lease = rig.cache.admit("default", rendered, plan, rig.now_s + wait_s, num_reserve=23, fetch=fetch)
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
    fetch = rig.cache.seek("default", rendered, plan, rig.now_s)
    rig.advance(200)
    rig.run(DOCUMENT, plan)
    rig.advance(200)
    lease = rig.cache.admit("default", rendered, plan, rig.now_s, num_reserve=23, fetch=fetch)
    assert lease is not None
    assert (lease.report.hit, lease.report.broken_tokens) == (Hit(turn(0), 21, 300.0), 0)
    rig.cache.release(lease, [], 0)
    rig.cache.check()


def test_the_deepest_entry_is_read_from_below_where_the_device_has_a_shorter_one() -> None:
    """Only the end of the path was evicted, less than a span of it: what was promised there is not broken."""
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
    """A bad checksum, a torn item or another block's bytes are never used; the next request heals the cache."""
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
    space = rig.cache._spaces["default"]
    second = PromptKeys(space.root, pack(DOCUMENT), 4, []).ancestor(16)
    store.delete_many([span_key(space.seal, second)])
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
    """Half of a prompt is on the device and half on its way from below when its tenant is forgotten: nothing stays."""
    rig = Rig(num_pages=8, store=MemoryStore(1 << 20))
    tokens, plan = list(range(17)), CachePlan()
    rig.run(tokens, plan)
    rig.run(list(range(100, 122)), CachePlan(store=False, read=False))
    rendered = RenderedPrompt(tuple(tokens), {turn(0): len(tokens)}, 0)
    fetch = rig.cache.seek("default", rendered, plan, rig.now_s)
    lease = rig.cache.admit("default", rendered, plan, rig.now_s, num_reserve=18, fetch=fetch)
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
    """A block flushed while in use has the key of the one computed after the flush: its end deletes nothing of that one."""
    rig = Rig(store=MemoryStore(1 << 20), force_store=True)
    rig.run(DOCUMENT, UNMARKED)
    old = rig.admit(DOCUMENT, UNMARKED)
    rig.cache.flush(None)
    rig.run(DOCUMENT, UNMARKED)
    rig.cache.release(old, DOCUMENT, old.num_cached)
    rig.cache.check()
    assert rig.run(DOCUMENT, UNMARKED).tiers == {"ram": 16}, "whole spans"


def test_a_long_flushed_request_is_gone_when_it_ends() -> None:
    """However many blocks it held."""
    rig = Rig(num_pages=700, block_size=1)
    tokens = list(range(600))
    lease = rig.admit(tokens, UNMARKED)
    rig.prefill(lease)
    rig.cache.flush(None)
    rig.release(lease, tokens)
    assert rig.cache.stats().gauges.num_free_pages == 700


def test_a_shorter_block_that_was_absorbed_is_kept_as_long_as_it_would_have_been() -> None:
    """A request that keeps its own KV for 5 s only takes over a partial block of 300 s, while prefilling and at its end."""
    rig = Rig()
    rig.run(DOCUMENT[:5], UNMARKED)
    lease = rig.admit(DOCUMENT[:8], CachePlan(unmarked_ttl_s=5.0))
    rig.compute(lease, DOCUMENT[:8], 5, 7)
    rig.compute(lease, DOCUMENT[:8], 7, 8)
    rig.release(lease, DOCUMENT[:8])
    rig.advance(200)
    assert rig.run(DOCUMENT, CachePlan(store=False)).skipped >= 5


def test_a_late_admission_refreshes_from_the_start_of_the_request() -> None:
    """A request that waited a minute for pages renews what it reads for TTL seconds from when it came."""
    rig = Rig()
    reading = CachePlan(readable=(SYSTEM,), store=False)
    ask(rig, [1], marked(SYSTEM, **NO_TAIL))
    rig.now_s = START_S + 100
    rig.cache.tick(START_S + 160)
    assert ask(rig, [1], reading).hit == Hit(SYSTEM, 22, 300.0)
    rig.now_s = START_S + 400
    assert ask(rig, [1], reading).hit is None
