"""Worked examples of the prefix cache: what is read, written, shared and left behind."""

from __future__ import annotations

from engine.cache.tree.block import root_key
from engine.store.memory import MemoryStore
from engine.types import Boundary, CachePlan, Hit
from tests.fakes.document import ANY, DOCUMENT, UNMARKED, ask, with_question
from tests.fakes.rig import SECRET, SYSTEM, TOOLS, Rig, marked, turn

# Reading and writing ------------------------------------------------------------------------------


def test_a_marked_document_is_written_once_and_read_to_the_token() -> None:
    """Another question after the same document reads exactly its 22 tokens, in the middle of a
    block."""
    rig = Rig()
    first = ask(rig, [1, 2, 3], marked(SYSTEM))
    assert (first.skipped, first.hit, first.boundaries) == (
        0,
        None,
        (Boundary(SYSTEM, 22, 300.0, False),),
    )
    rig.advance(10)
    second = ask(rig, [7, 8, 9], marked(SYSTEM))
    assert second.hit == Hit(SYSTEM, 22, 300.0)
    assert second.skipped == 22
    assert second.boundaries == (Boundary(SYSTEM, 22, 300.0, True),)
    assert second.miss is None
    assert second.tiers == {"device": 22}


def test_the_last_token_is_always_computed() -> None:
    """The same prompt again skips all but one token, and its mark lies one before the end, there as
    here."""
    rig = Rig()
    for num_tokens in (16, 18):
        tokens = DOCUMENT[:num_tokens]
        offsets = {turn(0): num_tokens}
        assert rig.run(tokens, marked(turn(0)), offsets).boundaries == (
            Boundary(turn(0), num_tokens - 1, 300.0, False),
        )
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
    assert rig.run(DOCUMENT, marked(TOOLS, SYSTEM, readable=(TOOLS, SYSTEM)), offsets).hit == Hit(
        TOOLS, 6, 300.0
    )
    small = rig.run(DOCUMENT, marked(TOOLS, SYSTEM, readable=(TOOLS,), min_tokens=7), offsets)
    assert small.hit is None
    assert [b.offset for b in small.boundaries] == [14]


def test_an_entry_is_found_only_under_its_salt() -> None:
    """Another tool_choice: the KV is skipped all the same, the entry is not read but written
    anew."""
    rig = Rig()
    plan, other = marked(SYSTEM, salts={"system": "auto"}), marked(SYSTEM, salts={"system": "none"})
    tokens, offsets = with_question(1)
    rig.run(tokens, plan, offsets)
    report = rig.run(tokens, other, offsets)
    assert (report.skipped, report.hit) == (22, None)
    assert report.boundaries == (Boundary(SYSTEM, 22, 300.0, False),)
    assert (
        rig.run(tokens, plan, offsets).hit
        == rig.run(tokens, other, offsets).hit
        == Hit(SYSTEM, 22, 300.0)
    )


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


# Sharing ------------------------------------------------------------------------------------------


def test_two_tenants_share_nothing() -> None:
    """Equal prompts have no key in common, and one tenant's cache is cold for the other."""
    rig = Rig()
    ask(rig, [1], marked(SYSTEM), "ada")
    report = ask(rig, [1], marked(SYSTEM), "bob")
    assert (report.skipped, report.hit, report.boundaries[0].existed) == (0, None, False)
    keys = {
        tenant: {block.key for block in rig.cache._index.walk(space.root)}
        | {e.key for e in space.entries}
        for tenant, space in rig.cache._tenants.items()
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
    """Each request keeps its own pages to its end; afterwards one set is left, whoever ends
    first."""
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


def test_a_shorter_block_that_was_absorbed_is_kept_as_long_as_it_would_have_been() -> None:
    """A request that keeps its own KV for 5 s only takes over a partial block of 300 s, while
    prefilling and at its end."""
    rig = Rig()
    rig.run(DOCUMENT[:5], UNMARKED)
    lease = rig.admit(DOCUMENT[:8], CachePlan(unmarked_ttl_s=5.0))
    rig.compute(lease, DOCUMENT[:8], 5, 7)
    rig.compute(lease, DOCUMENT[:8], 7, 8)
    rig.release(lease, DOCUMENT[:8])
    rig.advance(200)
    assert rig.run(DOCUMENT, CachePlan(store=False)).skipped >= 5


# Ends ---------------------------------------------------------------------------------------------


def test_an_aborted_request_keeps_what_it_prefilled_and_promises_nothing() -> None:
    """Its KV is there for the next one; no entry was written; releasing twice does nothing."""
    rig = Rig()
    lease = rig.admit(DOCUMENT, marked(turn(0)))
    rig.compute(lease, DOCUMENT, 0, 10)
    rig.cache.release(lease, DOCUMENT, 10)
    rig.cache.release(lease, DOCUMENT, 10)
    rig.cache.write_entries(lease)
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
    """Nothing of the tenant is found any more, not even what a running request computes
    afterwards."""
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


def test_a_long_flushed_request_is_gone_when_it_ends() -> None:
    """However many blocks it held."""
    rig = Rig(num_pages=700, block_size=1)
    tokens = list(range(600))
    lease = rig.admit(tokens, UNMARKED)
    rig.prefill(lease)
    rig.cache.flush(None)
    rig.release(lease, tokens)
    assert rig.cache.stats().gauges.num_free_pages == 700
