"""A running request's hold on the cache: its block table and what it pinned. Data; `PrefixCache` alone changes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.cache.block import Block, PromptKeys
from engine.cache.entries import EntryTable
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.types import CachePlan, CacheReport, PlannedEntry


@dataclass(slots=True, eq=False, repr=False)
class Space:
    """What is cached for one tenant: a tree and its entries."""

    root: Block
    entries: EntryTable = field(default_factory=EntryTable)

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be forgotten with it."""
        return not (self.root.children or len(self.entries) or self.entries.num_tombstones)


@dataclass(frozen=True, slots=True, repr=False)
class View:
    """One prompt under one plan, as entries are looked up for it. `ids` are its packed token ids."""

    rendered: RenderedPrompt
    plan: CachePlan
    ids: bytes
    keys: PromptKeys

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.rendered.token_ids)

    @property
    def limit(self) -> int:
        """The last place a boundary may be: one token is always computed."""
        return len(self.rendered.token_ids) - 1

    def offset(self, position: Position) -> int:
        """Tokens up to the end of `position`, at most `limit`; 0 for a position the prompt does not have."""
        return min(self.rendered.offsets.get(position, 0), self.limit)

    def key(self, position: Position) -> bytes:
        """Key of an entry at `position` under the plan's salt of its level."""
        return self.keys.entry(self.offset(position), self.plan.salts.get(position.level, ""))


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """Pages for one request, from `admit` to `release`.

    `block_table[i]` is the page of tokens `[i * block_size, (i + 1) * block_size)`. The KV of the first `num_cached`
    tokens was there at the start. `report` is final from the start.

    `held` are the full blocks of the tree along the request's tokens. Where `held[i].page` is another page than
    `block_table[i]`, someone else computed the same block first, and this lease keeps its own page until it ends.
    `tail` is the partial block after them that has this lease's page, so that others may copy what is computed of it.
    `end` is the block in which the lease's tokens in the tree end. Tokens past `num_kept` never come into the tree.
    """

    space: Space
    view: View
    started_at_s: float
    num_pages: int
    planned: tuple[PlannedEntry, ...]
    num_kept: int = 0
    block_table: list[int] = field(default_factory=list)
    num_cached: int = 0
    report: CacheReport = field(default_factory=lambda: CacheReport(num_prompt=0))
    held: list[Block] = field(default_factory=list)
    tail: Block | None = None
    end: Block | None = None
    promised: bool = False
    released: bool = False

    @property
    def last(self) -> Block:
        """The last full block held, or the root."""
        return self.held[-1] if self.held else self.space.root
