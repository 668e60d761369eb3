"""Inserting the computed tokens of a lease into the tree, and releasing its blocks.

Knows no tiers and no reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.cache.allocator import PageAllocator
from engine.cache.lease import Lease
from engine.cache.tree.block import Block, pack
from engine.cache.tree.entries import Entry
from engine.cache.tree.geometry import cut
from engine.cache.tree.radix import RadixIndex
from engine.cache.tree.stats import CacheCounters


class TreeInserter:
    """Puts blocks of leases into the tree and takes them out.

    Two leases may compute the same block. The first one's page is the tree's; the other, a
    *shadow*, keeps its own page until it ends, without pinning the tree's. When the last lease that
    uses the tree's page lets go of it, the page of a shadow takes its place: so a lease never holds
    more pages than its block table.
    """

    def __init__(
        self, index: RadixIndex, allocator: PageAllocator, counters: CacheCounters
    ) -> None:
        self._index = index
        self._allocator = allocator
        self._counters = counters
        self._shadows: dict[Block, list[Lease]] = {}

    def insert(self, lease: Lease, token_ids: Sequence[int], num_tokens: int) -> None:
        """Insert the lease's first `num_tokens` computed tokens, as far as they are to be kept."""
        start = len(lease.held) * self._index.block_size
        end = min(num_tokens, lease.num_kept, len(token_ids))
        if lease.released or end <= start:
            return
        ids = cut(lease.prompt.ids, start, end)
        num_prompt = lease.prompt.num_prompt
        if end > num_prompt:
            ids += pack(token_ids[max(start, num_prompt) : end])
        span = self._index.span
        num_full = len(ids) // span
        for i in range(num_full):
            self._join(lease, ids[i * span : (i + 1) * span])
        if rest := ids[num_full * span :]:
            self._expose(lease, rest)

    def keep(self, entry: Entry, lease: Lease) -> None:
        """Keep the block that covers the last token of an entry on the lease's path, and all above
        it, while it lives."""
        block = entry.block
        if block is None or block.parent is None:
            num_full = entry.offset // self._index.block_size
            if num_full > len(lease.held):  # still on its way from a lower tier
                return
            ancestor = lease.held[num_full - 1] if num_full else lease.tenant.root
            block = (
                self._index.cover(ancestor, entry.tail, self._allocator.now_s)
                if entry.tail
                else ancestor
            )
            if block is None:
                return
            entry.block = block
        self._allocator.extend(block, entry.expires_at_s, promised=True)

    def release(self, lease: Lease) -> None:
        """Unpin every block of the lease and free every page that no block has. Expired blocks
        leave the tree."""
        table, num_held = lease.block_table, len(lease.held)
        num_shared = num_held
        if table:
            self._allocator.settle(table[-1])
        if lease.tail is not None:
            num_shared += 1
            self._unpin(lease.tail)
            lease.tail = None
        self._allocator.free(table[num_shared:])
        for i in reversed(range(num_held)):
            self._release(lease, i)
        self._allocator.reserve(len(table) - lease.num_pages)

    def check(self, leases: Sequence[Lease], blocks: Sequence[Block]) -> list[int]:
        """Raise AssertionError unless all pins are those of `leases`; the pages that are theirs
        alone."""
        pins: Counter[Block] = Counter()
        private: list[int] = []
        num_shadows = 0
        for lease in leases:
            parent = lease.tenant.root
            for i, block in enumerate(lease.held):
                assert block.parent is parent, "held blocks are a path from the root"
                assert len(block.ids) == self._index.span
                parent = block
                if block.page == lease.block_table[i]:
                    pins[block] += 1
                else:
                    assert lease in self._shadows[block]
                    num_shadows += 1
                    private.append(lease.block_table[i])
            rest = lease.block_table[len(lease.held) :]
            if lease.tail is not None:
                assert lease.tail.parent is parent
                assert lease.tail.page == rest[0]
                pins[lease.tail] += 1
                rest = rest[1:]
            private += rest
        assert all(block.pins == pins[block] for block in blocks)
        assert num_shadows == sum(map(len, self._shadows.values()))
        return private

    # Into the tree --------------------------------------------------------------------------------

    def _join(self, lease: Lease, ids: bytes) -> None:
        """Make the lease's next full block the tree's, or hold on to the tree's own block of the
        same tokens."""
        parent, page = lease.last, lease.block_table[len(lease.held)]
        kept_s = self._withdraw_tail(lease)
        block = parent.children.get(ids)
        if block is None:
            block = self._add(lease, ids, page)
        elif block.pins:
            self._shadows.setdefault(block, []).append(lease)
        else:
            self._allocator.adopt(block, page)
        lease.held.append(block)
        self._settle(lease, block, kept_s)

    def _expose(self, lease: Lease, ids: bytes) -> None:
        """Let others copy from the lease's unfilled page, unless a live block holds those tokens
        already."""
        if lease.tail is not None and len(lease.tail.ids) >= len(ids):
            return
        parent = lease.last
        kept_s = self._withdraw_tail(lease)
        block = self._index.cover(parent, ids, self._allocator.now_s)
        if block is None:
            dead = parent.children.get(ids)
            if dead is not None:
                self._allocator.drop(dead)
            block = lease.tail = self._add(lease, ids, lease.block_table[len(lease.held)])
        self._settle(lease, block, kept_s)

    def _add(self, lease: Lease, ids: bytes, page: int) -> Block:
        """A new pinned block after those held, with a page of the lease. Shorter blocks that it
        makes needless are dropped."""
        parent, prompt, key = lease.last, lease.prompt, None
        end = parent.start + parent.num_tokens + self._index.block_size
        if len(ids) == self._index.span and end <= prompt.num_prompt:
            key = prompt.keys.ancestor(end)  # hashed once, for entries and blocks
        block = self._index.add(parent, ids, page, key)
        block.pins = 1
        self._counters.num_inserted_blocks += 1
        for shorter in self._index.shorter(parent, ids):
            self._allocator.drop(shorter)
            self._allocator.extend(block, shorter.expires_at_s)
        return block

    def _withdraw_tail(self, lease: Lease) -> float:
        """Take the lease's partial block out of the tree, keeping its page; until when it was
        kept."""
        tail, lease.tail = lease.tail, None
        if tail is None:
            return 0.0
        self._index.remove(tail)
        return tail.expires_at_s

    def _settle(self, lease: Lease, block: Block, kept_s: float) -> None:
        """The block is now the lease's last: kept as long as the one it replaced, and as the
        entries that end in it."""
        lease.end = block
        now_s = self._allocator.now_s
        self._allocator.extend(block, kept_s)
        for entry in lease.tenant.entries.covered_by(block):
            if entry.live(now_s) and (entry.block is None or entry.block.parent is None):
                entry.block = block
                self._allocator.extend(block, entry.expires_at_s, promised=True)

    # Out of it ------------------------------------------------------------------------------------

    def _release(self, lease: Lease, i: int) -> None:
        block, page = lease.held[i], lease.block_table[i]
        shadows = self._shadows.get(block)
        if block.page != page:
            assert shadows is not None
            shadows.remove(lease)
            self._allocator.free([page])
        elif block.pins == 1 and shadows:
            self._allocator.hand_over(block, shadows.pop().block_table[i])
        else:
            self._unpin(block)
        if shadows is not None and not shadows:
            del self._shadows[block]

    def _unpin(self, block: Block) -> None:
        self._allocator.unpin(block)
        if not block.children and not block.live(self._allocator.now_s):
            self._allocator.drop(block)
