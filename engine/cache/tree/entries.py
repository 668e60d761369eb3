"""Entries: promises that a prefix is cached up to here until then, and the tombstones they leave.

Knows no pages and no tiers.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine.cache.tree.block import TOKEN_NBYTES, Block
from engine.prompt.types import Position
from engine.store.base import PINNED_UNTIL_S
from engine.structures.lazy_heap import LazyHeap

TOMBSTONE_S: Final = 3600.0
"""Life of a tombstone: an expired entry is remembered, so that a miss can be explained."""

MAX_TOMBSTONES: Final = 4096
"""Tombstones per tenant; the oldest go first."""


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """Cached up to token `offset`, until `expires_at_s`; afterwards a tombstone.

    It ends `tail` (packed ids, less than a block) after the full block with key `ancestor`. `block`
    is the block in the tree that covers its last token and expires no sooner; a block without a
    parent has left the tree. `has_tail` says that a lower tier was given the KV between the last
    span border and its end. `written_at_s` is when the request that wrote it started; long ago
    where a lower tier brought it. No renewal moves its expiry past `ends_at_s`.
    """

    key: bytes
    ancestor: bytes
    tail: bytes
    position: Position
    offset: int
    ttl_s: float
    expires_at_s: float
    refresh_on_read: bool
    block: Block | None = None
    has_tail: bool = False
    written_at_s: float = -math.inf
    ends_at_s: float = math.inf

    def live(self, now_s: float) -> bool:
        """Whether it may be read."""
        return self.expires_at_s > now_s

    @property
    def is_pinned(self) -> bool:
        """Whether it lives until it is unpinned."""
        return self.expires_at_s >= PINNED_UNTIL_S

    def ttl_left_s(self, now_s: float) -> float:
        """Seconds it lives if it is not read; a pinned one: those it would live if it were
        unpinned now."""
        return self.ttl_s if self.is_pinned else max(0.0, self.expires_at_s - now_s)

    def renew(self, started_at_s: float, ttl_s: float = 0.0) -> None:
        """Take the longer of the two time classes and never a sooner expiry, none past its end."""
        self.ttl_s = max(self.ttl_s, ttl_s)
        self.expires_at_s = max(self.expires_at_s, min(started_at_s + self.ttl_s, self.ends_at_s))


class EntryTable:
    """The entries of one tenant, live and dead, by key and by place."""

    def __init__(self, max_tombstones: int = MAX_TOMBSTONES) -> None:
        self._max_tombstones = max_tombstones
        self._live: dict[bytes, Entry] = {}
        self._tombstones: OrderedDict[bytes, Entry] = OrderedDict()
        self._places: dict[bytes, dict[bytes, list[Entry]]] = {}
        self._expiring: LazyHeap[Entry, float] = LazyHeap(lambda entry: entry.expires_at_s)

    def __len__(self) -> int:
        """Entries that were live at the last sweep."""
        return len(self._live)

    def __iter__(self) -> Iterator[Entry]:
        """Those entries, in no order."""
        return iter(self._live.values())

    @property
    def num_tombstones(self) -> int:
        """Tombstones held."""
        return len(self._tombstones)

    def find(self, key: bytes) -> Entry | None:
        """The entry or tombstone under `key`."""
        return self._live.get(key) or self._tombstones.get(key)

    def find_live(self, key: bytes, now_s: float) -> Entry | None:
        """The entry under `key` if it may be read."""
        entry = self._live.get(key)
        return entry if entry is not None and entry.live(now_s) else None

    def at(self, ancestor: bytes, tail: bytes) -> list[Entry]:
        """Every entry and tombstone at a place, under whatever salt."""
        return self._places.get(ancestor, {}).get(tail, [])

    def covered_by(self, block: Block) -> Iterator[Entry]:
        """Every entry and tombstone whose last token lies in `block`."""
        assert block.parent is not None
        tails = self._places.get(block.parent.key)
        if tails:
            for end in range(TOKEN_NBYTES, len(block.ids) + 1, TOKEN_NBYTES):
                yield from tails.get(block.ids[:end], ())
        yield from self.at(block.key, b"")

    def add(self, entry: Entry) -> None:
        """Take a new entry in the place of the expired one or the tombstone with the same key, if
        there is one."""
        dead = self._live.pop(entry.key, None) or self._tombstones.pop(entry.key, None)
        if dead is not None:
            self._unplace(dead)
            self._expiring.discard(dead)
        self._live[entry.key] = entry
        self._places.setdefault(entry.ancestor, {}).setdefault(entry.tail, []).append(entry)
        self._expiring.add(entry)

    def reschedule(self, entry: Entry) -> None:
        """Have `sweep` look at an entry that expires sooner than it did."""
        self._expiring.add(entry)

    def sweep(self, now_s: float, max_entries: int) -> None:
        """Turn up to `max_entries` expired entries into tombstones, and forget tombstones that are
        too old or too many."""
        for _ in range(max_entries):
            entry = self._expiring.pop(now_s)
            if entry is None:
                break
            self._bury(entry)
        stones = self._tombstones
        while stones:
            oldest = next(iter(stones.values()))
            if len(stones) <= self._max_tombstones and oldest.expires_at_s + TOMBSTONE_S > now_s:
                break
            del stones[oldest.key]
            self._unplace(oldest)

    def check(self, now_s: float) -> None:
        """Raise AssertionError unless the tables agree and every live entry is kept by its
        block."""
        placed = [
            e for tails in self._places.values() for entries in tails.values() for e in entries
        ]
        assert sorted(e.key for e in placed) == sorted([*self._live, *self._tombstones])
        assert len(self._tombstones) <= self._max_tombstones
        for entry in placed:
            assert entry in self._places[entry.ancestor][entry.tail]
            block = entry.block
            if not entry.live(now_s) or block is None or block.parent is None:
                continue
            assert block.promised_until_s >= entry.expires_at_s, (
                "a block expires with the last entry covering it"
            )
            assert block.start < entry.offset <= block.start + block.num_tokens
            if entry.tail:
                assert block.ids.startswith(entry.tail)
                assert block.parent.key == entry.ancestor
            else:
                assert block.key == entry.ancestor

    def _bury(self, entry: Entry) -> None:
        """Make a tombstone of an expired entry."""
        del self._live[entry.key]
        entry.block = None
        self._tombstones[entry.key] = entry

    def _unplace(self, entry: Entry) -> None:
        tails = self._places[entry.ancestor]
        tails[entry.tail].remove(entry)
        if not tails[entry.tail]:
            del tails[entry.tail]
            if not tails:
                del self._places[entry.ancestor]
