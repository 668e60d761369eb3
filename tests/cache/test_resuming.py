"""Leases that grow, end early and go on: pages on demand, the report of the first time,
entries written in parts.
"""

from __future__ import annotations

from engine.cache.lease import Lease
from engine.prompt.rendered import RenderedPrompt
from engine.types import CachePlan
from tests.fakes.rig import SYSTEM, Rig, marked, turn

PROMPT = list(range(100, 122))
"""22 tokens: five blocks of four, and two tokens in the sixth."""
OFFSETS = {SYSTEM: 10, turn(0): 22}
ANSWER = [1, 2, 3, 4, 5]


def started(rig: Rig, plan: CachePlan, answer: list[int] = ANSWER) -> Lease:
    """A request whose prompt and answer are computed."""
    lease = rig.admit(PROMPT, plan, OFFSETS, room=len(answer))
    rig.prefill(lease)
    whole = [*PROMPT, *answer]
    for end in range(len(PROMPT) + 1, len(whole) + 1):
        rig.compute(lease, whole, end - 1, end)
    return lease


def resumed(rig: Rig, lease: Lease, token_ids: list[int], *, num_reusable: int = 100) -> Lease:
    again = rig.cache.resume(
        lease, token_ids, num_reserve=len(token_ids) + 4, num_reusable=num_reusable
    )
    assert again is not None
    rig.cache.check()
    assert rig.device.holds(again.block_table, token_ids, again.num_cached)
    return again


def test_a_resumed_lease_finds_what_it_left() -> None:
    """Prompt and answer, all but the last token; the report is the first one, and nothing is
    counted again."""
    rig, whole = Rig(), [*PROMPT, *ANSWER]
    lease = started(rig, marked(SYSTEM))
    rig.release(lease, whole)
    counters = rig.cache.stats().counters
    again = resumed(rig, lease, whole)
    assert again.num_cached == len(whole) - 1
    assert again.report is lease.report
    assert rig.cache.stats().counters.num_requests == counters.num_requests
    rig.cache.write_entries(again)
    assert rig.cache.stats().counters.num_written_entries == counters.num_written_entries
    rig.compute(again, whole, again.num_cached, len(whole))
    rig.release(again, whole)


def test_only_what_may_be_reused_is_found() -> None:
    """Where decoded KV has bits of its own, a resumed request matches its prompt alone."""
    rig, whole = Rig(), [*PROMPT, *ANSWER]
    lease = started(rig, marked(SYSTEM))
    rig.release(lease, whole)
    again = resumed(rig, lease, whole, num_reusable=len(PROMPT))
    assert again.num_cached == len(PROMPT)
    rig.compute(again, whole, again.num_cached, len(whole))
    rig.release(again, whole)


def test_a_resumed_lease_waits_for_room() -> None:
    """None while there are too few pages, also where others are about to need some; nothing has
    changed."""
    rig, whole = Rig(num_pages=12), [*PROMPT, *ANSWER]
    lease = started(rig, marked(SYSTEM))
    rig.release(lease, whole)
    other = rig.admit([7] * 20, CachePlan())
    assert rig.cache.resume(lease, whole, num_reserve=31, num_reusable=100) is None
    rig.cache.check()
    rig.compute(other, [7] * 20, 0, 20)
    rig.release(other, [7] * 20)
    assert rig.cache.resume(lease, whole, num_reserve=31, num_reusable=100, spare_pages=5) is None
    again = resumed(rig, lease, whole)
    rig.compute(again, whole, again.num_cached, len(whole))
    rig.release(again, whole)


def test_what_was_forgotten_stays_forgotten() -> None:
    """A request that goes on after a flush leaves nothing in the tree."""
    rig, whole = Rig(), [*PROMPT, *ANSWER]
    lease = started(rig, marked(SYSTEM))
    rig.release(lease, whole)
    rig.cache.flush("default")
    again = resumed(rig, lease, whole)
    assert again.num_cached == 0
    rig.compute(again, whole, 0, len(whole))
    rig.release(again, whole)
    assert rig.cache.stats().gauges.num_blocks == 0


def test_pages_are_reserved_on_demand() -> None:
    """What was not reserved at first can be had later, as long as nobody else has it."""
    rig = Rig(num_pages=8)
    lease = rig.admit(PROMPT, CachePlan(), room=1)
    assert lease.num_pages == 6
    assert rig.cache.reserve(lease, 24)
    assert lease.num_pages == 6
    assert rig.cache.reserve(lease, 25)
    assert lease.num_pages == 7
    assert not rig.cache.reserve(lease, 33)
    assert lease.num_pages == 7
    rig.cache.check()
    rig.compute(lease, PROMPT, 0, 22)
    rig.release(lease, PROMPT)


def test_entries_are_written_as_far_as_the_prompt_is_computed() -> None:
    """Each once: those within what is computed as soon as somebody asks for them, the others with
    the first token."""
    rig = Rig()
    plan = marked(SYSTEM, turn(0))
    lease = rig.admit(PROMPT, plan, OFFSETS)
    rig.compute(lease, PROMPT, 0, 12)
    rig.cache.write_entries(lease, 12)
    rig.cache.write_entries(lease, 12)
    rig.cache.check()
    assert rig.cache.stats().counters.num_written_entries == 1
    early = rig.admit([*PROMPT[:10], 5, 6], marked(SYSTEM), {SYSTEM: 10, turn(0): 12})
    assert early.report.hit is not None
    assert early.report.hit.offset == 10
    rig.compute(lease, PROMPT, 12, 22)
    rig.cache.write_entries(lease)
    assert rig.cache.stats().counters.num_written_entries == 2
    rig.compute(early, [*PROMPT[:10], 5, 6], early.num_cached, 12)
    rig.release(early, [*PROMPT[:10], 5, 6])
    rig.release(lease, PROMPT)


def test_a_look_changes_nothing() -> None:
    """It tells what would be found and kept, under the plan that asks."""
    rig = Rig()
    rig.run(PROMPT, marked(SYSTEM), OFFSETS)
    rendered = RenderedPrompt(tuple(PROMPT), OFFSETS, 0)
    counters = rig.cache.stats()
    look = rig.cache.lookup("default", rendered, marked(SYSTEM), rig.now_s)
    assert (look.num_found, look.num_kept) == (21, 22)
    unread = marked(SYSTEM, unmarked_ttl_s=0.0, read=False)
    look = rig.cache.lookup("default", rendered, unread, rig.now_s)
    assert (look.num_found, look.num_kept) == (0, 10)
    look = rig.cache.lookup("other", rendered, marked(SYSTEM, store=False), rig.now_s)
    assert (look.num_found, look.num_kept) == (0, 0)
    assert rig.cache.stats() == counters
    rig.cache.check()
