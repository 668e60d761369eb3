"""A running request's hold on the cache: its block table and the blocks it pinned.

Data; `PrefixCache` and its parts alone change it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.cache.tiers.fetch import Fetch, SpanRead
from engine.cache.tree.block import Block
from engine.cache.tree.prompt import PlannedPrompt
from engine.cache.tree.tenant import TenantCache
from engine.types import CacheReport, PlannedEntry


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """Pages for one request, from `admit` to `release`.

    `block_table[i]` is the page of tokens `[i * block_size, (i + 1) * block_size)`; `num_pages` are
    taken or reserved. `report` is final from the start.

        tokens  0 ────────── num_there ────────── num_cached ────────── num_prompt ─── answer
        KV      in the pages   in `arrivals`, until    to be computed
                               `restore`
        tree    0 ─────── num_kept: no token after it ever comes into the tree
    """

    tenant: TenantCache
    prompt: PlannedPrompt
    started_at_s: float
    num_pages: int
    planned: tuple[PlannedEntry, ...]
    num_kept: int = 0
    """Tokens that may come into the tree; 0 once the tenant was flushed."""
    block_table: list[int] = field(default_factory=list)
    num_cached: int = 0
    """Tokens that need not be computed. Never changes after `admit`."""
    num_there: int = 0
    """Those of them whose KV is in the pages: `num_there <= num_cached`, equal once restored."""
    arrivals: deque[SpanRead] = field(default_factory=deque)
    """Spans that were read from lower tiers and are not yet in the pages, in token order."""
    loaded: dict[str, int] = field(default_factory=dict)
    """Cached tokens by the lower tier that gave them."""
    fetch: Fetch | None = None
    """Owns the bytes of the arrivals."""
    report: CacheReport = field(default_factory=lambda: CacheReport(num_prompt=0))
    held: list[Block] = field(default_factory=list)
    """The full blocks of the tree along the tokens. Where `held[i].page` is another page than
    `block_table[i]`, another lease computed the block first, and this one keeps its own page until
    it ends."""
    tail: Block | None = None
    """The partial block after them with a page of this lease, for others to copy from."""
    end: Block | None = None
    """The block in which the lease's tokens in the tree end."""
    num_written_entries: int = 0
    """The first so many of the `planned` entries were written."""
    released: bool = False

    @property
    def last(self) -> Block:
        """The last full block held, or the root."""
        return self.held[-1] if self.held else self.tenant.root
