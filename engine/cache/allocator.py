"""Pages for leases: free ones first, then those of expired blocks, then those of evicted ones.

Knows blocks, no requests and no tiers.

Accounting: a page is *in use* while some lease's block table holds it; it is *reserved* while a
lease may still ask for it. `num_in_use + num_reserved <= num_pages` always, and every other page is
free or can be evicted, so a reserved page can always be had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.cache.tree.block import Block
from engine.cache.tree.eviction import EvictionQueue
from engine.cache.tree.pages import PagePool
from engine.cache.tree.radix import RadixIndex
from engine.cache.tree.stats import CacheCounters


class PageAllocator:
    """Gives pages to leases, and drops blocks to make room.

    `now_s` is the cache's time: the largest it has seen. `before_evict` is called with each live
    block that is about to leave the device, while its page still holds its KV.
    """

    def __init__(
        self,
        index: RadixIndex,
        pool: PagePool,
        queue: EvictionQueue,
        counters: CacheCounters,
        before_evict: Callable[[Block], None] = lambda block: None,
    ) -> None:
        self.now_s = 0.0
        self.num_in_use = 0
        self.num_reserved = 0
        self._index = index
        self._pool = pool
        self._queue = queue
        self._counters = counters
        self._before_evict = before_evict

    def advance(self, now_s: float) -> None:
        """Set the time, which never goes back."""
        self.now_s = max(self.now_s, now_s)

    @property
    def num_available(self) -> int:
        """Pages that are neither in use nor reserved."""
        return self._pool.num_pages - self.num_in_use - self.num_reserved

    # For leases -----------------------------------------------------------------------------------

    def reserve(self, num_pages: int) -> None:
        """Set pages aside; a negative number gives them up."""
        self.num_reserved += num_pages
        assert self.num_reserved >= 0

    def allocate(self, num_pages: int, after: int | None, room: int = 0) -> list[int]:
        """Turn reserved pages into pages in use; see `PagePool.allocate`."""
        pages = self._obtain(num_pages, after, room)
        self.reserve(-num_pages)
        self.num_in_use += num_pages
        return pages

    def settle(self, page: int) -> None:
        """Give up the claim to continue the run that ends with `page`."""
        self._pool.settle(page)

    def free(self, pages: Sequence[int]) -> None:
        """Free pages in use that no block has."""
        self._pool.free(pages)
        self.num_in_use -= len(pages)

    def pin(self, block: Block) -> None:
        """Count one more lease whose block table holds the block's page."""
        if not block.pins:
            self.num_in_use += 1
        block.pins += 1

    def unpin(self, block: Block) -> None:
        """The opposite; the last one makes the block evictable."""
        block.pins -= 1
        assert block.pins >= 0
        if not block.pins:
            self.num_in_use -= 1
            self._offer(block)

    def adopt(self, block: Block, page: int) -> None:
        """Pin a block that no lease holds, with a lease's page in the place of its own. Its KV is
        there again, also where the block has expired."""
        assert not block.pins
        self._pool.free([block.page])
        block.page, block.pins = page, 1
        self._index.version += 1

    def hand_over(self, block: Block, page: int) -> None:
        """Let a page in use take the place of the block's own, which its last lease gave up; `page`
        stays in use."""
        self._pool.free([block.page])
        block.page = page
        self.num_in_use -= 1

    def use(self, blocks: Iterable[Block], num_uses: int) -> None:
        """Note that blocks are used now, `num_uses` times more than before."""
        for block in blocks:
            block.last_use = self.now_s
            block.credit = self._queue.clock
            block.num_uses += num_uses

    # For blocks -----------------------------------------------------------------------------------

    def extend(self, block: Block, until_s: float, *, promised: bool = False) -> None:
        """Keep the block and all above it until `until_s`."""
        self._index.extend(block, until_s, promised=promised)

    def shorten(self, block: Block, until_s: float, promised_until_s: float) -> None:
        """Shorten the life of a block to `until_s`, or to that of its children and entries.
        `promised_until_s` is the expiry of the last entry that ends in it."""
        children = block.children.values()
        block.promised_until_s = max(
            [promised_until_s, *(child.promised_until_s for child in children)]
        )
        longest_s = max(
            [block.promised_until_s, until_s, *(child.expires_at_s for child in children)]
        )
        block.expires_at_s = min(block.expires_at_s, longest_s)
        self._queue.add(block, self.now_s)
        self._index.schedule(block)

    def drop(self, block: Block) -> int:
        """Remove an unpinned block and everything under it; the number of blocks removed."""
        doomed = [*self._index.walk(block), block]
        parent = block.parent
        for node in doomed:
            assert not node.pins
            self._index.remove(node)
            self._queue.discard(node)
        self._pool.free([node.page for node in doomed])
        if parent is not None:
            self._offer(parent)
        return len(doomed)

    def sweep(self, max_blocks: int) -> int:
        """Drop up to `max_blocks` expired blocks; how many there were."""
        for num in range(max_blocks):
            block = self._index.pop_expired(self.now_s)
            if block is None:
                return num
            self.drop(block)
            self._counters.num_expired_blocks += 1
        return max_blocks

    def evict_all(self) -> None:
        """Let every block that may leave the device go."""
        while (block := self._queue.pop(self.now_s)) is not None:
            self._evict(block)

    def check(self, blocks: list[Block], private_pages: Sequence[int]) -> None:
        """Raise AssertionError unless every page is free, in exactly one block, or privately held,
        and the counts agree."""
        self._pool.check()
        owned = [*(block.page for block in blocks), *private_pages]
        assert len(owned) == len(set(owned)), "a page has two owners"
        assert not any(self._pool.is_free(page) for page in owned), "a page is free and owned"
        assert len(owned) + self._pool.num_free == self._pool.num_pages, "a page leaked"
        assert self.num_in_use == len(private_pages) + sum(block.pins > 0 for block in blocks)
        assert self.num_in_use + self.num_reserved <= self._pool.num_pages
        self._queue.check(blocks)

    # Inside ---------------------------------------------------------------------------------------

    def _obtain(self, num_pages: int, after: int | None, room: int = 0) -> list[int]:
        while (missing := num_pages - self._pool.num_free) > 0:
            if self.sweep(missing):
                continue
            block = self._queue.pop(self.now_s)
            assert block is not None, "reserved pages can always be had"
            self._evict(block)
        return self._pool.allocate(num_pages, after, room)

    def _evict(self, block: Block) -> None:
        """Free the block's page. A copy of it in a lower tier can still be found."""
        if block.live(self.now_s):
            self._before_evict(block)
        if block.stored:
            self._counters.num_demoted_blocks += 1
        else:
            self._counters.num_evicted_blocks += 1
        self.drop(block)

    def _offer(self, block: Block) -> None:
        """Make known that the block may have become evictable, or a leaf that may expire."""
        self._queue.add(block, self.now_s)
        self._index.schedule(block)
