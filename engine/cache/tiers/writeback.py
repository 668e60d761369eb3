"""Writing from the device to the lower tiers: objects that are wanted there are copied,
a slice at a time, and handed over.

Knows blocks and pages; knows no leases and no threads. Everything is in order: an entry is never
written before its KV.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from engine.cache.tiers.calls import ObjectSpec
from engine.cache.tiers.object_format import (
    ObjectKey,
    StoredEntry,
    encode_entry,
    span_key,
    stored_entry_key,
    tail_key,
)
from engine.cache.tiers.tiers import Tiers
from engine.cache.tree.block import Block
from engine.cache.tree.device import PageDevice
from engine.cache.tree.entries import Entry
from engine.cache.tree.eviction import prefill_tokens
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.stats import CacheCounters
from engine.cache.tree.tenant import TenantCache
from engine.store.base import PINNED_UNTIL_S

MAX_WANTED: Final = 1024
"""Objects that may wait to be copied; more are dropped, those wanted last first."""


@dataclass(frozen=True, slots=True, repr=False)
class _Span:
    tenant: TenantCache
    last: Block


@dataclass(frozen=True, slots=True, repr=False)
class _Tail:
    tenant: TenantCache
    entry: Entry


@dataclass(frozen=True, slots=True, repr=False)
class _Promise:
    tenant: TenantCache
    entry: Entry


_Wanted: TypeAlias = _Span | _Tail | _Promise


@dataclass(frozen=True, slots=True, repr=False)
class _CopiedKv:
    """The pages of `path`, copied for the tail of `entry`, or as a span without one."""

    path: Sequence[Block]
    entry: Entry | None = None

    def lost(self) -> None:
        """See `Copied`. It is wanted again by the next request that uses it."""
        if self.entry is None:
            self.path[-1].stored_until_s = 0.0
        else:
            self.entry.has_tail = False
        for block in self.path:
            block.stored = False


class WriteBack:
    """The engine thread's side of writing. `now_s()` is the cache's time."""

    def __init__(
        self,
        tiers: Tiers,
        device: PageDevice,
        geometry: Geometry,
        counters: CacheCounters,
        now_s: Callable[[], float],
    ) -> None:
        self._tiers = tiers
        self._device = device
        self._geometry = geometry
        self._counters = counters
        self._now_s = now_s
        self._wanted: OrderedDict[tuple[type[_Wanted], int], _Wanted] = OrderedDict()
        self._num_tails = 0
        """Tails wanted since none was the last time."""

    @property
    def num_wanted(self) -> int:
        """Objects that wait to be copied."""
        return len(self._wanted)

    @property
    def may_copy(self) -> bool:
        """Whether `copy` would get on: something is wanted, and a tier has room."""
        return bool(self._wanted) and self._tiers.has_room(
            self._geometry.nbytes(0, self._geometry.span_tokens)
        )

    def spans(self, tenant: TenantCache, held: Sequence[Block]) -> None:
        """Want every span of the path `held` that no tier has, and keep the others as long as the
        device does.

        What a request uses outlives its expiry on the device, but not in the tiers: they may have
        dropped it meanwhile.
        """
        step, now_s = self._geometry.span_blocks, self._now_s()
        for i in range(step - 1, len(held), step):
            last = held[i]
            if last.stored_until_s <= now_s:
                self._want(_Span(tenant, last), last)
            elif last.expires_at_s > last.stored_until_s:
                last.stored_until_s = last.expires_at_s
                self._tiers.refresh(span_key(tenant.namespace, last.key), last.expires_at_s)

    def entry(self, tenant: TenantCache, entry: Entry) -> None:
        """Want an entry as it is now, and the tail that leads to it."""
        if entry.offset % self._geometry.span_tokens:
            if entry.has_tail:
                self._tiers.refresh(
                    tail_key(tenant.namespace, entry.ancestor, entry.tail),
                    self._kept_until_s(entry),
                )
            else:
                self._want(_Tail(tenant, entry), entry)
        self._want(_Promise(tenant, entry), entry)

    def shorten(
        self, tenant: TenantCache, entry: Entry, path: Sequence[Block], until_s: float
    ) -> None:
        """An entry at the end of `path` was pinned and now is not: its KV is kept no longer than on
        the device, its object written anew."""
        expiries, num_tokens = {}, 0
        for last in path[self._geometry.span_blocks - 1 :: self._geometry.span_blocks]:
            if last.stored_until_s > last.expires_at_s:
                last.stored_until_s = expiries[span_key(tenant.namespace, last.key)] = (
                    last.expires_at_s
                )
                num_tokens += (
                    self._geometry.span_tokens if last.expires_at_s < PINNED_UNTIL_S else 0
                )
        if entry.offset % self._geometry.span_tokens:
            kept_until_s = max(until_s, self._kept_until_s(entry))
            expiries[tail_key(tenant.namespace, entry.ancestor, entry.tail)] = kept_until_s
            num_tokens += (
                entry.offset % self._geometry.span_tokens if kept_until_s < PINNED_UNTIL_S else 0
            )
        self._tiers.shorten(
            expiries,
            stored_entry_key(tenant.namespace, entry.key),
            self._geometry.nbytes(0, num_tokens),
        )
        self._want(_Promise(tenant, entry), entry)

    def rescue(self, block: Block) -> None:
        """Copy what is wanted of a block that is about to leave the device."""
        span = self._wanted.pop((_Span, id(block)), None)
        if span is not None:
            self._copy(span)
        if self._num_tails:
            tails = [
                w for w in self._wanted.values() if isinstance(w, _Tail) and w.entry.block is block
            ]
            for tail in tails:
                del self._wanted[_Tail, id(tail.entry)]
                self._copy(tail)

    def copy(self, max_nbytes: int) -> None:
        """Hand over what is wanted, oldest first, until about `max_nbytes` were copied or no tier
        has room."""
        left = max_nbytes
        while left > 0 and self.may_copy:
            _, wanted = self._wanted.popitem(last=False)
            left -= self._copy(wanted)
        if not self._wanted:
            self._num_tails = 0

    def forget(self, tenant: TenantCache) -> None:
        """Want nothing more of a tenant."""
        for key in [key for key, wanted in self._wanted.items() if wanted.tenant is tenant]:
            del self._wanted[key]

    # Inside ---------------------------------------------------------------------------------------

    def _want(self, wanted: _Wanted, thing: object) -> None:
        key = (type(wanted), id(thing))
        if key in self._wanted or self._tiers.is_empty:
            return
        if len(self._wanted) >= MAX_WANTED:
            self._counters.num_dropped_writes += 1
            return
        self._wanted[key] = wanted
        self._num_tails += isinstance(wanted, _Tail)

    def _copy(self, wanted: _Wanted) -> int:
        """The bytes copied."""
        match wanted:
            case _Span():
                return self._copy_span(wanted.tenant, wanted.last)
            case _Tail():
                return self._copy_tail(wanted.tenant, wanted.entry)
            case _Promise():
                return self._copy_entry(wanted.tenant, wanted.entry)

    def _copy_span(self, tenant: TenantCache, last: Block) -> int:
        if last.parent is None or last.expires_at_s <= self._now_s():
            return 0
        path = self._path(last)
        if not self._has_room(path):
            return 0
        label = ObjectKey(
            span_key(tenant.namespace, last.key), b"".join(block.ids for block in path)
        )
        last.stored_until_s = last.expires_at_s
        spec = ObjectSpec(label, tenant.namespace, last.expires_at_s, _saved(path))
        return self._hand_over(spec, _CopiedKv(path))

    def _copy_tail(self, tenant: TenantCache, entry: Entry) -> int:
        last = entry.block
        if last is None or last.parent is None or entry.expires_at_s <= self._now_s():
            return 0
        path = self._path(last)
        if not self._has_room(path):
            return 0
        ids = b"".join(block.ids for block in path[:-1]) + (entry.tail or last.ids)
        label = ObjectKey(tail_key(tenant.namespace, entry.ancestor, entry.tail), ids)
        entry.has_tail = True
        # Written though a tier may have one: nobody read that one, or it was not what it should be.
        spec = ObjectSpec(
            label, tenant.namespace, self._kept_until_s(entry), _saved(path), replaces=True
        )
        return self._hand_over(spec, _CopiedKv(path, entry))

    def _copy_entry(self, tenant: TenantCache, entry: Entry) -> int:
        if entry.expires_at_s <= self._now_s():
            return 0
        times = entry.ttl_s, entry.expires_at_s, entry.refresh_on_read
        stored = StoredEntry(
            entry.ancestor, *times, str(entry.position), entry.offset, entry.ends_at_s
        )
        label = ObjectKey(stored_entry_key(tenant.namespace, entry.key), entry.tail)
        body = encode_entry(stored)
        saved = prefill_tokens(0, entry.offset)
        self._tiers.put(
            ObjectSpec(label, tenant.namespace, entry.expires_at_s, saved, replaces=True), body
        )
        return len(body)

    def _hand_over(self, spec: ObjectSpec, copied: _CopiedKv) -> int:
        """Copy pages and give them to the tiers. The bytes copied."""
        for block in copied.path:
            block.stored = True
        pages = [block.page for block in copied.path]
        self._tiers.put(spec, self._device.read_pages(pages), copied)
        return len(pages) * self._geometry.page_nbytes

    def _has_room(self, path: Sequence[Block]) -> bool:
        """Whether a tier has room for the KV of a path; else it is dropped."""
        if self._tiers.has_room(len(path) * self._geometry.page_nbytes):
            return True
        self._counters.num_dropped_writes += 1
        return False

    def _path(self, last: Block) -> list[Block]:
        """The blocks from the last span border before `last` to it."""
        path = [last]
        while path[-1].start % self._geometry.span_tokens:
            parent = path[-1].parent
            assert parent is not None
            path.append(parent)
        return path[::-1]

    @staticmethod
    def _kept_until_s(entry: Entry) -> float:
        """A tail lives as long as its blocks."""
        block = entry.block
        return max(
            entry.expires_at_s, 0.0 if block is None or block.parent is None else block.expires_at_s
        )


def _saved(path: Sequence[Block]) -> float:
    """Tokens of prefill that the KV of consecutive blocks saves."""
    return prefill_tokens(path[0].start, path[-1].start + path[-1].num_tokens)
