"""How long the cache itself takes for one long prompt, beside few blocks and many.

No model, no torch.

Times are those of the thread's own processor, so that what else the machine does counts little.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from engine.cache.prefix_cache import PrefixCache
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.types import CachePlan, PlannedEntry

NUM_TOKENS: Final = 100_000
NUM_HELD: Final = (10_000, 100_000, 1_000_000)
BLOCK_SIZE: Final = 16
HELD_TOKENS: Final = 4096
"""Length of each prompt that fills the cache beforehand; no two share a block."""
MOST_S: Final = 0.020
MOST_GROWTH: Final = 1.5
"""Keying and matching take at most so long beside the fewest blocks, and so many times that beside
the most."""
REPETITIONS: Final = 5
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
    """Seconds for a prompt of `num_tokens` beside `num_held` blocks of others: admitted cold,
    inserted as it is computed, and keyed and matched again (the median of several)."""

    num_held: int
    num_tokens: int
    cold_s: float
    insert_s: float
    warm_s: float


def measure_index(
    num_held: Sequence[int] = NUM_HELD, num_tokens: int = NUM_TOKENS
) -> list[IndexFigures]:
    """One cache that is filled further and further, and at each size a new prompt with an entry at
    its end."""
    cache = PrefixCache(
        device=NoDevice(),
        num_pages=max(num_held) + (len(num_held) + 2) * (num_tokens // BLOCK_SIZE + 2),
        page_nbytes=1,
        block_size=BLOCK_SIZE,
        fingerprint="bench",
        root_secret=bytes(32),
    )
    chance, figures = random.Random(0), []
    for num in num_held:
        while (missing := num - cache.stats().gauges.num_blocks) > 0:
            _insert(cache, _prompt(chance, min(HELD_TOKENS, missing * BLOCK_SIZE)))
        figures.append(_measure(cache, num, _prompt(chance, num_tokens)))
    return figures


def show_index(console: Console, figures: Sequence[IndexFigures]) -> bool:
    """Print the table; true if keying and matching is quick beside few blocks and hardly slower
    beside many."""
    table = Table(
        title=f"the index: a prompt of {figures[0].num_tokens} tokens, thread time",
        title_justify="left",
    )
    for column in ("blocks held", "cold", "insert", "key and match", "per token"):
        table.add_column(column, justify="right")
    for row in figures:
        times = (f"{1000 * seconds:.1f} ms" for seconds in (row.cold_s, row.insert_s, row.warm_s))
        table.add_row(f"{row.num_held:,}", *times, f"{1e9 * row.warm_s / row.num_tokens:.0f} ns")
    console.print(table)
    good = figures[0].warm_s <= MOST_S and figures[-1].warm_s <= MOST_GROWTH * figures[0].warm_s
    rule = f"key and match <= {1000 * MOST_S:.0f} ms beside {figures[0].num_held:,} blocks"
    console.print(
        f"{'PASS' if good else 'FAIL'}: {rule}, <= {MOST_GROWTH} x that beside "
        f"{figures[-1].num_held:,}\n"
    )
    return good


def _prompt(chance: random.Random, num_tokens: int) -> RenderedPrompt:
    token_ids = tuple(chance.choices(range(50_000), k=num_tokens))
    return RenderedPrompt(token_ids, {END: num_tokens - 2}, 0)


def _insert(cache: PrefixCache, rendered: RenderedPrompt) -> tuple[float, float]:
    """Seconds to admit and to insert a prompt that nobody has seen."""
    token_ids, num_tokens = list(rendered.token_ids), len(rendered.token_ids)
    begin_s = time.thread_time()
    lookup = cache.lookup("bench", rendered, PLAN, 1.0)
    lease = cache.admit(lookup, num_reserve=num_tokens + 1)
    cold_s = time.thread_time() - begin_s
    assert lease is not None
    begin_s = time.thread_time()
    cache.grow(lease, num_tokens)
    cache.insert(lease, token_ids, num_tokens)
    cache.write_entries(lease)
    cache.release(lease, token_ids, num_tokens)
    return cold_s, time.thread_time() - begin_s


def _measure(cache: PrefixCache, num_held: int, rendered: RenderedPrompt) -> IndexFigures:
    cold_s, insert_s = _insert(cache, rendered)
    num_tokens, warm_s = len(rendered.token_ids), []
    for _ in range(REPETITIONS):
        begin_s = time.thread_time()
        lookup = cache.lookup("bench", rendered, PLAN, 2.0)
        lease = cache.admit(lookup, num_reserve=num_tokens + 1)
        warm_s.append(time.thread_time() - begin_s)
        assert lease is not None
        assert lease.num_cached == num_tokens - 1
        cache.release(lease, list(rendered.token_ids), num_tokens - 1)
    return IndexFigures(num_held, num_tokens, cold_s, insert_s, sorted(warm_s)[REPETITIONS // 2])


def main() -> int:
    return 0 if show_index(Console(), measure_index()) else 1


if __name__ == "__main__":
    sys.exit(main())
