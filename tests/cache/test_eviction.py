"""The eviction queue pops what a full scan would,
whatever happened to the blocks since they were queued.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.tree.block import Block
from engine.cache.tree.eviction import EvictionQueue, may_leave
from engine.store.base import PINNED_UNTIL_S
from engine.structures.scores import SCORES


def blocks_with_pages(count: int) -> list[Block]:
    """Leaves under one root, each on its own page."""
    root = Block(b"root", None, b"", 0)
    return [Block(bytes([i]), root, bytes([i] * 4), 16 * i, page=i) for i in range(count)]


@pytest.mark.parametrize("name", SCORES)
@given(data=st.data())
def test_pops_agree_with_a_full_scan(name: str, data: st.DataObject) -> None:
    """Unpromised blocks first, pinned entries' last, then by score: uses, pins, promises and time
    are seen at the pop."""
    queue, blocks, now_s = EvictionQueue(name), blocks_with_pages(6), 0.0
    for block in blocks:
        queue.add(block, now_s)
    for _ in range(data.draw(st.integers(1, 40))):
        block = data.draw(st.sampled_from(blocks))
        match data.draw(
            st.sampled_from(["use", "promise", "keep", "shorten", "pin", "unpin", "time", "pop"])
        ):
            case "use":
                block.last_use, block.credit = now_s, queue.clock
                block.num_uses += 1
            case "promise":
                block.promised_until_s = max(
                    block.promised_until_s, now_s + data.draw(st.integers(1, 5))
                )
            case "keep":
                block.promised_until_s = PINNED_UNTIL_S
            case "shorten":
                block.promised_until_s = min(
                    block.promised_until_s, now_s + data.draw(st.integers(0, 5))
                )
                queue.add(block, now_s)
            case "pin":
                block.pins = 1
            case "unpin":
                block.pins = 0
                queue.add(block, now_s)
            case "time":
                now_s += data.draw(st.integers(1, 4))
            case _:
                able = [b for b in blocks if may_leave(b)]
                popped = queue.pop(now_s)
                if not able:
                    assert popped is None
                else:
                    assert popped is not None
                    rank = {
                        b: (
                            b.promised_until_s > now_s,
                            b.promised_until_s >= PINNED_UNTIL_S,
                            SCORES[name](b),
                        )
                        for b in able
                    }
                    assert rank[popped] == min(rank.values())
                    queue.add(popped, now_s)
        queue.check(blocks)


def test_stale_records_do_not_pile_up() -> None:
    """A block pinned and unpinned ten thousand times, its promise renewed each time, leaves a
    bounded queue behind."""
    queue, (block, other) = EvictionQueue("lru"), blocks_with_pages(2)
    for i in range(10_000):
        now_s = float(i)
        block.promised_until_s = now_s + 0.5
        queue.add(block, now_s)
        block.last_use = now_s
        block.pins = 1
        assert queue.pop(now_s) is None
        block.pins = 0
    queue.add(other, 0.0)
    assert len(queue._queue) + len(queue._lapses) < 200


def test_cost_prefers_to_lose_what_is_cheap_to_compute_again() -> None:
    """At equal use the shallow block goes first, as attention makes deep tokens dearer; use
    outweighs depth, age use."""
    queue, (shallow, _, deep, *_) = EvictionQueue("cost"), blocks_with_pages(4)
    deep.start = 8192
    assert SCORES["cost"](shallow) < SCORES["cost"](deep)
    shallow.num_uses = 10
    assert SCORES["cost"](shallow) > SCORES["cost"](deep)
    queue.add(shallow, 0.0)
    assert queue.pop(0.0) is shallow
    deep.credit = queue.clock
    assert SCORES["cost"](shallow) < SCORES["cost"](deep)


def test_an_unknown_score_is_named() -> None:
    """The error lists what there is."""
    with pytest.raises(ValueError, match="unknown eviction score 'fifo'; known: lru, lfu, cost"):
        EvictionQueue("fifo")
