"""The tree of blocks: matching, inserting, extending and expiring them.

Knows tokens and time, but no pages, entries or tiers.

Closed upwards: whatever keeps a block (a pin, an expiry, a promise) keeps every block above it at
least as long. So a walk from the root may stop at the first block that is not live, and blocks go
from the leaves up.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine.cache.tree.block import TOKEN_NBYTES, Block, full_key, partial_key
from engine.structures.lazy_heap import LazyHeap

_EVER: Final = -math.inf


@dataclass(frozen=True, slots=True, repr=False)
class Match:
    """The longest prefix found: the full blocks of `path`, then the first `num_tail` tokens of the
    block `tail`."""

    path: list[Block]
    tail: Block | None
    num_tail: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """The longest prefix of a prompt in the tree, expired blocks included; it `forks` where the
    tree has another continuation."""

    num_tokens: int
    forks: bool


def shared_tokens(a: bytes, b: bytes) -> int:
    """Length in tokens of the longest common prefix of packed ids."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size // TOKEN_NBYTES
    low, high = 0, size // TOKEN_NBYTES
    while high - low > 1:
        middle = (low + high) // 2
        if a[: middle * TOKEN_NBYTES] == b[: middle * TOKEN_NBYTES]:
            low = middle
        else:
            high = middle
    return low


class RadixIndex:
    """Blocks of `block_size` tokens under any number of roots; a shorter block is partial and
    always a leaf.

    Children are found by their token ids: a match compares ids, never a hash alone.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.span = block_size * TOKEN_NBYTES
        self.num_blocks = 0
        self.version = 0
        """Rises whenever a match may become longer, or lose a block other than by its expiry."""
        self._expiring: LazyHeap[Block, float] = LazyHeap(_due_s)
        """The unpinned leaves."""

    # Looking --------------------------------------------------------------------------------------

    def match(self, root: Block, ids: bytes, limit: int, now_s: float) -> Match:
        """The longest live prefix of at most `limit` tokens of the packed `ids`, exact to the
        token."""
        path = self._walk(root, ids, limit, now_s)
        num_full = len(path) * self.block_size
        rest = ids[num_full * TOKEN_NBYTES : limit * TOKEN_NBYTES]
        tail, num_tail = self._closest(path[-1] if path else root, rest, now_s)
        return Match(path, tail, num_tail, num_full + num_tail)

    def reach(self, root: Block, ids: bytes) -> KnownPrefix:
        """The longest prefix of `ids` in the tree, live or not."""
        path = self._walk(root, ids, len(ids) // TOKEN_NBYTES, _EVER)
        parent = path[-1] if path else root
        num_full = len(path) * self.block_size
        rest = ids[num_full * TOKEN_NBYTES :]
        i = bisect_left(parent.order, rest)
        neighbours = [
            (shared_tokens(other, rest), other) for other in parent.order[max(0, i - 1) : i + 1]
        ]
        num_tail = max((num for num, _ in neighbours), default=0)
        forks = any(
            num == num_tail and len(other) > num * TOKEN_NBYTES for num, other in neighbours
        )
        return KnownPrefix(num_full + num_tail, forks)

    def cover(self, parent: Block, ids: bytes, now_s: float) -> Block | None:
        """A live child of `parent` that begins with all of `ids`, or None."""
        order = parent.order
        for i in range(bisect_left(order, ids), len(order)):
            if not order[i].startswith(ids):
                return None
            child = parent.children[order[i]]
            if child.live(now_s):
                return child
        return None

    def shorter(self, parent: Block, ids: bytes) -> list[Block]:
        """The unpinned children of `parent` that are a proper prefix of `ids`: with a block of
        `ids` they are not needed."""
        children = parent.children
        if not children:
            return []
        prefixes = (children.get(ids[:end]) for end in range(TOKEN_NBYTES, len(ids), TOKEN_NBYTES))
        return [block for block in prefixes if block is not None and not block.pins]

    def walk(self, root: Block) -> Iterator[Block]:
        """Every block below `root`, children before their parents."""
        stack = list(root.children.values())
        seen: list[Block] = []
        while stack:
            block = stack.pop()
            seen.append(block)
            stack.extend(block.children.values())
        return reversed(seen)

    # Changing -------------------------------------------------------------------------------------

    def add(self, parent: Block, ids: bytes, page: int, key: bytes | None = None) -> Block:
        """A new block of `ids` under `parent`, with its KV in `page`. It expires at once unless
        pinned or extended. `key` is its key, where that is at hand."""
        assert ids not in parent.children
        if key is None:
            hashed = full_key if len(ids) == self.span else partial_key
            key = hashed(parent.key, ids)
        block = Block(key, parent, ids, parent.start + parent.num_tokens, page)
        parent.children[ids] = block
        order = parent.order
        order.insert(bisect_left(order, ids), ids)
        self.num_blocks += 1
        self.version += 1
        return block

    def remove(self, block: Block) -> None:
        """Take a leaf out of the tree. Its page is the caller's to free, its parent the caller's to
        schedule."""
        parent = block.parent
        assert parent is not None, "removed already, or a root"
        assert not block.children, "only leaves can go"
        del parent.children[block.ids]
        del parent.order[bisect_left(parent.order, block.ids)]
        block.parent = None
        self.num_blocks -= 1
        self.version += 1
        self._expiring.discard(block)

    def extend(self, block: Block, until_s: float, *, promised: bool = False) -> None:
        """Keep the block and all above it at least until `until_s`.

        Stops at the first block that is kept as long already: so are all above it.
        """
        node = block
        while (parent := node.parent) is not None:
            if node.expires_at_s >= until_s and not (promised and node.promised_until_s < until_s):
                break
            if node.expires_at_s < until_s:
                node.expires_at_s = until_s
                self.version += 1  # it may have been expired
            if promised:
                node.promised_until_s = max(node.promised_until_s, until_s)
            node = parent

    # Expiring -------------------------------------------------------------------------------------

    def schedule(self, block: Block) -> None:
        """Let the block be found by `pop_expired` once it expires, if it is an unpinned leaf; else
        do nothing. Needed again where it expires sooner than it did."""
        self._expiring.add(block)

    def pop_expired(self, now_s: float) -> Block | None:
        """Some expired, unpinned leaf, which the caller must remove; None if there is none."""
        return self._expiring.pop(now_s)

    # Verifying ------------------------------------------------------------------------------------

    def check(self, roots: list[Block]) -> None:
        """Raise AssertionError unless the tree under `roots`, which must be all of them, is well
        formed."""
        num_blocks = 0
        for root in roots:
            for node in [*self.walk(root), root]:
                self._check_children(node)
                num_blocks += len(node.children)
                if node is not root and not node.children and not node.pins:
                    assert node in self._expiring, "an unpinned leaf would never expire"
        assert num_blocks == self.num_blocks

    def _check_children(self, node: Block) -> None:
        assert node.order == sorted(node.children)
        for ids, child in node.children.items():
            full = len(ids) == self.span
            assert child.parent is node
            assert child.ids == ids
            assert 0 < len(ids) <= self.span
            assert full or not child.children, "a partial block is a leaf"
            assert child.start == node.start + node.num_tokens
            assert child.key == (full_key if full else partial_key)(node.key, ids)
            assert child.promised_until_s <= child.expires_at_s
            assert child.page >= 0
            if node.parent is not None:
                assert not child.pins or node.pins, "pins are closed upwards"
                assert child.expires_at_s <= node.expires_at_s
                assert child.promised_until_s <= node.promised_until_s

    # Inside ---------------------------------------------------------------------------------------

    def _walk(self, root: Block, ids: bytes, limit: int, now_s: float) -> list[Block]:
        """The live full blocks along `ids` that end at or before `limit`."""
        path: list[Block] = []
        span = self.span
        children = root.children
        for start in range(0, limit // self.block_size * span, span):
            child = children.get(ids[start : start + span])
            if child is None or not (child.pins or child.expires_at_s > now_s):
                break
            path.append(child)
            children = child.children
        return path

    def _closest(self, parent: Block, ids: bytes, now_s: float) -> tuple[Block | None, int]:
        """The live child that shares most tokens with `ids`, and how many; `(None, 0)` if none
        shares any.

        In sorted order the longest common prefixes stand next to where `ids` would: only expired
        neighbours are stepped over.
        """
        order = parent.order
        best: Block | None = None
        best_num = 0
        middle = bisect_left(order, ids)
        for side in (range(middle - 1, -1, -1), range(middle, len(order))):
            for i in side:
                num = shared_tokens(order[i], ids)
                if num <= best_num:
                    break
                child = parent.children[order[i]]
                if child.live(now_s):
                    best, best_num = child, num
                    break
        return best, best_num


def _due_s(block: Block) -> float | None:
    """The time at which a block expires; None unless it is an unpinned leaf of the tree."""
    if block.parent is None or block.children or block.pins:
        return None
    return block.expires_at_s
