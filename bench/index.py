"""How long the cache itself takes: finding, inserting and finding again one long prompt. No model, no torch."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cache.prefix_cache import PrefixCache
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.types import CachePlan, PlannedEntry

NUM_TOKENS = 100_000
BLOCK_SIZE = 16
END = Position("messages", 0, 0)
PLAN = CachePlan(readable=(END,), writable=(PlannedEntry(END, 300.0),))


class NoDevice:
    """Pages that nobody fills."""

    def copy_page(self, source: int, target: int, num_tokens: int) -> None: ...

    def read_pages(self, pages: Sequence[int]) -> memoryview:
        return memoryview(b"")

    def write_pages(self, pages: Sequence[int], body: memoryview) -> None: ...


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """Seconds for a prompt of `num_tokens`: admitted cold, inserted as it is computed, admitted warm."""

    num_tokens: int
    cold_s: float
    insert_s: float
    warm_s: float


def measure_index(num_tokens: int = NUM_TOKENS) -> IndexFigures:
    """One prompt through the cache, twice, with an entry at its end."""
    cache = PrefixCache(
        device=NoDevice(),
        num_pages=2 * (num_tokens // BLOCK_SIZE + 2),
        page_nbytes=1,
        block_size=BLOCK_SIZE,
        fingerprint="bench",
        root_secret=bytes(32),
    )
    token_ids = tuple(random.Random(0).choices(range(50_000), k=num_tokens))
    rendered = RenderedPrompt(token_ids, {END: num_tokens - 2}, 0)
    begin_s = time.perf_counter()
    lease = cache.admit("bench", rendered, PLAN, 1.0, num_reserve=num_tokens + 1)
    cold_s = time.perf_counter() - begin_s
    assert lease is not None
    begin_s = time.perf_counter()
    cache.grow(lease, num_tokens)
    cache.commit(lease, list(token_ids), num_tokens)
    cache.promise(lease)
    cache.release(lease, list(token_ids), num_tokens)
    insert_s = time.perf_counter() - begin_s
    begin_s = time.perf_counter()
    warm = cache.admit("bench", rendered, PLAN, 2.0, num_reserve=num_tokens + 1)
    warm_s = time.perf_counter() - begin_s
    assert warm is not None
    assert warm.num_cached == num_tokens - 1
    return IndexFigures(num_tokens, cold_s, insert_s, warm_s)
