"""Pinned entries: finding, pinning and unpinning one, within a budget.

Knows no requests and no stores.

A pin is an expiry that never comes, on the entry, on the blocks under it and on their objects in
the lower tiers. Everything else follows from that: nothing is renewed, evictions see it, and it
survives a restart as any expiry does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from engine.cache.allocator import PageAllocator
from engine.cache.tiers.object_format import stored_entry_key
from engine.cache.tiers.tiers import Tiers
from engine.cache.tiers.writeback import WriteBack
from engine.cache.tree.block import Block
from engine.cache.tree.entries import Entry
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.tenant import TenantCache
from engine.store.base import PINNED_UNTIL_S
from engine.types import PinOutcome

UNLIMITED: Final = 1 << 62


class Pins:
    """All pinned entries of a cache together may take `budget_nbytes` of KV."""

    def __init__(
        self,
        allocator: PageAllocator,
        geometry: Geometry,
        tiers: Tiers,
        write_back: WriteBack,
        budget_nbytes: int,
    ) -> None:
        self.budget_nbytes = budget_nbytes
        self._allocator = allocator
        self._geometry = geometry
        self._tiers = tiers
        self._write_back = write_back

    def pin(self, tenants: Iterable[TenantCache], key: bytes) -> PinOutcome:
        """Keep the live entry whose object has this key until it is unpinned."""
        held = list(tenants)
        tenant, entry = self._find(held, key)
        if entry is None or tenant is None:
            return "unknown"
        if entry.is_pinned:
            return "done"
        last = entry.block
        if last is None or last.parent is None:
            return "absent"
        path = _path(last)
        num_more = sum(block.promised_until_s < PINNED_UNTIL_S for block in path)
        if self.used_nbytes(held) + num_more * self._geometry.page_nbytes > self.budget_nbytes:
            return "over_budget"
        entry.expires_at_s = PINNED_UNTIL_S
        self._allocator.extend(last, PINNED_UNTIL_S, promised=True)
        self._write_back.spans(tenant, path)
        self._write_back.entry(tenant, entry)
        # At once: a kill must not leave a pinned entry whose KV expires.
        self._tiers.send_refreshes()
        return "done"

    def unpin(self, tenants: Iterable[TenantCache], key: bytes) -> PinOutcome:
        """Let the entry expire again, its own TTL from now, and the blocks that only it kept."""
        tenant, entry = self._find(tenants, key)
        if entry is None or tenant is None:
            return "unknown"
        if not entry.is_pinned:
            return "done"
        last = entry.block
        if last is None or last.parent is None:
            return "absent"
        until_s = entry.expires_at_s = self._allocator.now_s + entry.ttl_s
        tenant.entries.reschedule(entry)
        path = _path(last)
        for block in reversed(path):
            promises = [other.expires_at_s for other in tenant.entries.covered_by(block)]
            self._allocator.shorten(block, until_s, max(promises, default=0.0))
        self._write_back.shorten(tenant, entry, path, until_s)
        return "done"

    def used_nbytes(self, tenants: Iterable[TenantCache]) -> int:
        """Bytes of KV under pinned entries: those this cache knows, or more where a tier holds more
        from before."""
        pages: set[Block] = set()
        elsewhere_nbytes = 0
        for entry in self.entries(tenants):
            if entry.block is None or entry.block.parent is None:
                elsewhere_nbytes += self._geometry.nbytes(0, entry.offset)
            else:
                pages.update(_path(entry.block))
        known_nbytes = len(pages) * self._geometry.page_nbytes + elsewhere_nbytes
        return max(
            [known_nbytes, *(tier.gauges.pinned_nbytes for tier in self._tiers.stats().values())]
        )

    @staticmethod
    def entries(tenants: Iterable[TenantCache]) -> list[Entry]:
        """Every pinned entry this cache knows."""
        return [entry for tenant in tenants for entry in tenant.entries if entry.is_pinned]

    def _find(
        self, tenants: Iterable[TenantCache], key: bytes
    ) -> tuple[TenantCache | None, Entry | None]:
        for tenant in tenants:
            if key.startswith(tenant.namespace.prefix):
                for entry in tenant.entries:
                    if (
                        entry.live(self._allocator.now_s)
                        and stored_entry_key(tenant.namespace, entry.key) == key
                    ):
                        return tenant, entry
        return None, None


def _path(last: Block) -> list[Block]:
    """The blocks from the first of its tree to `last`."""
    path, node = [], last
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]
