"""What is cached for one tenant, and one prompt as it is looked up there.

Data; knows no pages and no tiers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.cache.tiers.object_format import ObjectNamespace
from engine.cache.tree.block import Block, PromptKeys
from engine.cache.tree.entries import EntryTable
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.types import CachePlan


@dataclass(slots=True, eq=False, repr=False)
class TenantCache:
    """What is cached for one tenant: a tree and its entries."""

    root: Block
    seal: ObjectNamespace
    entries: EntryTable = field(default_factory=EntryTable)

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be forgotten with it."""
        return not (self.root.children or len(self.entries) or self.entries.num_tombstones)


@dataclass(frozen=True, slots=True)
class CachePreview:
    """What a prompt would find and leave: the first `num_found` tokens are there, its first
    `num_kept` may be found later."""

    num_found: int
    num_kept: int


@dataclass(frozen=True, slots=True, repr=False)
class PromptLookup:
    """One prompt under one plan, as entries are looked up for it. `ids` are its packed token
    ids."""

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
        """Tokens up to the end of `position`, at most `limit`; 0 for a position the prompt does not
        have."""
        return min(self.rendered.offsets.get(position, 0), self.limit)

    def key(self, position: Position) -> bytes:
        """Key of an entry at `position` under the plan's salt of its level."""
        return self.keys.entry(self.offset(position), self.plan.salts.get(position.level, ""))
