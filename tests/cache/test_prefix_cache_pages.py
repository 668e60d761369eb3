"""Worked examples of the prefix cache: pages, and what goes when there are too few."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.prompt.rendered import RenderedPrompt
from engine.types import CachePlan, Hit
from tests.fakes.document import DOCUMENT, UNMARKED, with_question
from tests.fakes.rig import SYSTEM, TOOLS, Rig, marked, turn


def test_reserved_pages_can_always_be_had() -> None:
    """Admission counts what running requests may still take; what it refuses changes nothing;
    evicting is left to growth."""
    rig = Rig(num_pages=10)
    rig.run(DOCUMENT, UNMARKED)
    other = list(range(16))
    first = rig.admit(other, UNMARKED, room=8)
    assert rig.cache.stats().gauges.num_blocks == 6, "nothing is evicted before it must be"
    rendered = RenderedPrompt(tuple(DOCUMENT), {}, 0)
    lookup = rig.cache.lookup("default", rendered, UNMARKED, rig.now_s)
    assert rig.cache.admit(lookup, num_reserve=23) is None
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
    cache = Rig(num_pages=10).cache
    lookup = cache.lookup("default", rendered, UNMARKED, 0.0)
    with pytest.raises(ValueError, match="token"):
        cache.admit(lookup, num_reserve=num_reserve)


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
    """A full pool without a lower tier: the older unmarked prompt goes before the newest, entries
    last, by their age."""
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
    """Part of the path is evicted: the hit is the deepest entry that is left, the rest is counted
    as broken."""
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
    """A request without marks brings back the KV of a live entry: it stays as long as the entry,
    not as unmarked KV."""
    rig = Rig(num_pages=8)
    tokens, offsets = with_question(1)
    offsets[SYSTEM] = offset
    rig.run(tokens, marked((SYSTEM, 3600.0)), offsets)
    rig.run(list(range(30)), CachePlan(store=False))
    assert rig.cache.stats().gauges.num_blocks == 0
    rig.run(tokens, UNMARKED, offsets)
    rig.advance(3000)
    assert rig.run(tokens, marked(SYSTEM), offsets).hit == Hit(SYSTEM, offset, 3600.0)
