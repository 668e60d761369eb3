"""The part of the cache that belongs to one tenant. Data; knows no pages and no tiers."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.cache.tree.block import Block
from engine.cache.tree.entries import EntryTable
from engine.cache.tree.namespace import ObjectNamespace


@dataclass(slots=True, eq=False, repr=False)
class TenantCache:
    """A tree of blocks and the entries on its paths. `seal` binds stored objects to the tenant."""

    name: str
    root: Block
    seal: ObjectNamespace
    entries: EntryTable = field(default_factory=EntryTable)

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be forgotten with it."""
        return not (self.root.children or len(self.entries) or self.entries.num_tombstones)
