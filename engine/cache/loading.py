"""Bringing a prefix into a lease's block table.

Blocks on the device are pinned or copied, spans that were read from lower tiers are written.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.cache.allocator import PageAllocator
from engine.cache.inserter import TreeInserter
from engine.cache.lease import Lease
from engine.cache.tiers.fetch import SpanRead
from engine.cache.tree.block import Block
from engine.cache.tree.device import PageDevice
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.radix import Match
from engine.cache.tree.stats import CacheCounters


class Loader:
    """Pins, copies and restores; the pages come from the lease's reservation."""

    def __init__(
        self,
        geometry: Geometry,
        allocator: PageAllocator,
        inserter: TreeInserter,
        device: PageDevice,
        counters: CacheCounters,
    ) -> None:
        self._geometry = geometry
        self._allocator = allocator
        self._inserter = inserter
        self._device = device
        self._counters = counters

    def load(self, lease: Lease, match: Match) -> None:
        """Afterwards the lease holds the matched blocks and its table covers its `num_cached`
        tokens."""
        for block in match.path:
            self._allocator.pin(block)
        lease.held = list(match.path)
        lease.end = lease.last
        lease.block_table = [block.page for block in match.path]
        lease.num_cached = lease.num_there = match.num_tokens
        if match.tail is not None:
            self._copy(lease, match.tail, match.num_tail)

    def expect(self, lease: Lease, spans: Sequence[SpanRead]) -> None:
        """Count spans that were read as cached; `restore` puts them onto the device."""
        lease.arrivals.extend(spans)
        lease.num_cached = min(spans[-1].end, lease.prompt.limit)
        at = lease.num_there
        for span in spans:
            end = min(span.end, lease.num_cached)
            lease.loaded[span.tier] = lease.loaded.get(span.tier, 0) + end - at
            at = end

    def restore(self, lease: Lease, max_nbytes: int) -> int:
        """Write arrived spans into pages of the lease, where others can match them.

        Writes up to `max_nbytes`, but at least a page, and returns the bytes written. Afterwards
        `lease.arrivals` is empty or `max_nbytes` were written.
        """
        size, nbytes = self._geometry.block_size, 0
        while lease.arrivals and (not nbytes or nbytes + self._geometry.page_nbytes <= max_nbytes):
            span = lease.arrivals[0]
            end = min(span.end, lease.num_cached)
            first = lease.num_there // size
            num_pages = min(
                -(-end // size) - first, max(1, (max_nbytes - nbytes) // self._geometry.page_nbytes)
            )
            self._write(lease, first, num_pages)
            nbytes += num_pages * self._geometry.page_nbytes
            lease.num_there = min(end, (first + num_pages) * size)
            self._inserter.insert(lease, lease.prompt.rendered.token_ids, lease.num_there)
            if lease.num_there == end:
                expires_at_s = lease.arrivals.popleft().expires_at_s
                if lease.num_kept:  # else its blocks are not in the tree
                    self._settle(lease, expires_at_s)
        return nbytes

    def _write(self, lease: Lease, first: int, num_pages: int) -> None:
        """Put pages `first ..` of the lease's table where the first arrival's body says."""
        span, size = lease.arrivals[0], self._geometry.page_nbytes
        assert span.body is not None
        table = lease.block_table
        table += self._allocator.allocate(
            first + num_pages - len(table),
            table[-1] if table else None,
            lease.num_pages - len(table),
        )
        at = (first - span.start // self._geometry.block_size) * size
        self._device.write_pages(table[first:], span.body[at : at + num_pages * size])

    def _settle(self, lease: Lease, expires_at_s: float) -> None:
        """A whole span is there: its blocks live as long as it does, and need not be written to
        where they came from."""
        last = lease.last
        if (
            len(lease.held) * self._geometry.block_size == lease.num_there
            and last.parent is not None
        ):
            self._allocator.extend(last, expires_at_s)
            if lease.num_there % self._geometry.span_tokens == 0:
                last.stored_until_s = max(last.stored_until_s, expires_at_s)
        elif lease.end is not None and lease.end.parent is not None:
            self._allocator.extend(lease.end, expires_at_s)
            lease.end.stored = True
        for block in lease.held[
            self._geometry.border(max(lease.num_there - 1, 0)) // self._geometry.block_size :
        ]:
            block.stored = True

    def _copy(self, lease: Lease, tail: Block, num_tokens: int) -> None:
        """Put the first tokens of `tail` into a page of the lease's own.

        Taking that page may evict `tail` itself, but only when no page is free: then it is the very
        page taken.
        """
        table, source = lease.block_table, tail.page
        table += self._allocator.allocate(
            1, table[-1] if table else None, lease.num_pages - len(table)
        )
        if source != table[-1]:
            self._device.copy_page(source, table[-1], num_tokens)
        self._counters.num_copied_tokens += num_tokens
        if tail.parent is not None:
            lease.end = tail
