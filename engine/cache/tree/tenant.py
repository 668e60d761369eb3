"""The part of the cache that belongs to one tenant. Data; knows no pages and no tiers."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.cache.tree.block import Block, root_key
from engine.cache.tree.entries import EntryTable
from engine.cache.tree.namespace import ObjectNamespace, namespace


@dataclass(slots=True, eq=False, repr=False)
class TenantCache:
    """A tree of blocks and the entries on its paths.

    `namespace` binds stored objects to the tenant.
    """

    name: str
    root: Block
    namespace: ObjectNamespace
    entries: EntryTable = field(default_factory=EntryTable)

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be forgotten with it."""
        return not (self.root.children or len(self.entries) or self.entries.num_tombstones)


class TenantCaches(dict[str, TenantCache]):
    """By the names of the tenants. One that is not there is made, empty, when it is asked for."""

    def __init__(self, root_secret: bytes, fingerprint: str, block_size: int) -> None:
        super().__init__()
        self._root_secret = root_secret
        self._fingerprint = fingerprint
        self._block_size = block_size

    def __missing__(self, name: str) -> TenantCache:
        key = root_key(self._root_secret, name, self._fingerprint, self._block_size)
        fingerprint = self._fingerprint.encode("utf-8", "surrogatepass")
        namespace = ObjectNamespace(self.namespace(name), key, fingerprint)
        self[name] = TenantCache(name, Block(key, None, b"", 0), namespace)
        return self[name]

    def namespace(self, name: str) -> bytes:
        """See `namespace`."""
        return namespace(self._root_secret, name)
