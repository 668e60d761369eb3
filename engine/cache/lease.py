"""A running request's hold on the cache: its block table and what it pinned.

Data; `PrefixCache` alone changes it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.cache.lookup import PromptLookup, TenantCache
from engine.cache.tiers.fetch import Fetch, SpanRead
from engine.cache.tree.block import Block
from engine.types import CacheReport, PlannedEntry


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """Pages for one request, from `admit` to `release`.

    `block_table[i]` is the page of tokens `[i * block_size, (i + 1) * block_size)`. The KV of the
    first `num_cached` tokens need not be computed: that of the first `num_there` is in the pages,
    the rest is in `arrivals`, read from lower tiers, until `restore` has put it there; `loaded` is
    how many tokens each of them gave. `report` is final from the start.

    `held` are the full blocks of the tree along the request's tokens. Where `held[i].page` is
    another page than `block_table[i]`, someone else computed the same block first, and this lease
    keeps its own page until it ends. `tail` is the partial block after them that has this lease's
    page, so that others may copy what is computed of it. `end` is the block in which the lease's
    tokens in the tree end. Tokens past `num_kept` never come into the tree. The first
    `num_promised` of the `planned` entries were written.
    """

    space: TenantCache
    view: PromptLookup
    started_at_s: float
    num_pages: int
    planned: tuple[PlannedEntry, ...]
    num_kept: int = 0
    block_table: list[int] = field(default_factory=list)
    num_cached: int = 0
    num_there: int = 0
    arrivals: deque[SpanRead] = field(default_factory=deque)
    loaded: dict[str, int] = field(default_factory=dict)
    fetch: Fetch | None = None
    report: CacheReport = field(default_factory=lambda: CacheReport(num_prompt=0))
    held: list[Block] = field(default_factory=list)
    tail: Block | None = None
    end: Block | None = None
    num_promised: int = 0
    released: bool = False

    @property
    def last(self) -> Block:
        """The last full block held, or the root."""
        return self.held[-1] if self.held else self.space.root
