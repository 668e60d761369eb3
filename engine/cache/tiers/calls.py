"""Calls of a store, and the message about the end of one.

Frozen data: a call goes to an I/O thread, the message comes back to the engine thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.cache.tiers.object_format import (
    ObjectKey,
    StoredEntry,
    decode_entry,
    decode_object,
    encode_object,
)
from engine.cache.tree.namespace import ObjectNamespace
from engine.memory import Payload
from engine.store.base import BlockStore, Found, Item, delete_prefix


@dataclass(frozen=True, slots=True, repr=False)
class TierQueryResult:
    """One answer per object and one per entry; None for what is not there or not acceptable.

    `num_corrupt` of them were damaged or foreign; those under `unreadable` are still in the store.
    """

    objects: list[Found | None]
    entries: list[StoredEntry | None]
    num_corrupt: int
    unreadable: list[bytes]


@dataclass(frozen=True, slots=True, repr=False)
class TierQuery:
    """Ask which of `objects` a tier has, and get its entries under `entries`."""

    fetch_id: int
    objects: Sequence[bytes]
    entries: Sequence[ObjectKey]
    namespace: ObjectNamespace
    now_s: float

    def run(self, store: BlockStore) -> TierQueryResult:
        """Call the store, in an I/O thread."""
        num_damaged = store.stats.num_damaged
        found = store.find_many(self.objects, self.now_s)
        keys = [label.key for label in self.entries]
        payloads = store.get_many(keys, self.now_s) if keys else []
        # The counter has other threads' finds too: never more than what is missing here.
        num_damaged = min(store.stats.num_damaged - num_damaged, [*found, *payloads].count(None))
        entries: list[StoredEntry | None] = []
        unreadable: list[bytes] = []
        for label, payload in zip(self.entries, payloads, strict=True):
            body = None if payload is None else decode_object(payload, label, self.namespace)
            entries.append(None if body is None else decode_entry(body))
            if payload is not None and entries[-1] is None:
                unreadable.append(label.key)
        return TierQueryResult(found, entries, num_damaged + len(unreadable), unreadable)


@dataclass(frozen=True, slots=True, repr=False)
class TierReadResult:
    """The body of an object; None when it was gone, or was not as it should be (`is_corrupt`)."""

    body: memoryview | None
    is_corrupt: bool


@dataclass(frozen=True, slots=True, repr=False)
class TierRead:
    """Get one object's body."""

    label: ObjectKey
    namespace: ObjectNamespace
    now_s: float

    def run(self, store: BlockStore) -> TierReadResult:
        """Call the store, in an I/O thread."""
        num_damaged = store.stats.num_damaged
        (payload,) = store.get_many([self.label.key], self.now_s)
        if payload is None:
            return TierReadResult(None, is_corrupt=store.stats.num_damaged > num_damaged)
        body = decode_object(payload, self.label, self.namespace)
        return TierReadResult(body, is_corrupt=body is None)


@dataclass(frozen=True, slots=True, repr=False)
class ObjectSpec:
    """An object about to be written: its place, its owner and its expiry.

    `prefill_tokens` is what it saves, see `engine/cache/tree/eviction.py`. With `replaces` its body
    may differ from the one that is there, which is then overwritten.
    """

    label: ObjectKey
    namespace: ObjectNamespace
    expires_at_s: float
    prefill_tokens: float = 0.0
    replaces: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class TierWrite:
    """Store an object. It is not written where it is there already, and never kept shorter: another
    host may have promised more."""

    write_id: int
    spec: ObjectSpec
    body: Payload

    def run(self, store: BlockStore) -> int | None:
        """The bytes written; None where it is not stored."""
        spec, key, nbytes = self.spec, self.spec.label.key, len(self.body)
        if not spec.replaces:
            (is_held,) = store.refresh_many({key: spec.expires_at_s}, only_longer=True)
            if is_held:
                return 0
        payload = encode_object(spec.label, spec.namespace, self.body)
        item = Item(key, payload, spec.expires_at_s, spec.prefill_tokens / nbytes)
        (is_held,) = store.put_many([item], only_longer=True)
        return nbytes if is_held else None


@dataclass(frozen=True, slots=True, repr=False)
class TierRefresh:
    """Move the expiry of objects. `unpinned_nbytes` of KV in them were pinned, and are not any
    more."""

    expiries: Mapping[bytes, float]
    only_longer: bool = True
    unpinned_nbytes: int = 0

    def run(self, store: BlockStore) -> None:
        """Call the store, in an I/O thread."""
        store.refresh_many(self.expiries, only_longer=self.only_longer)


@dataclass(frozen=True, slots=True, repr=False)
class TierExpire:
    """Delete some of what has expired."""

    now_s: float

    def run(self, store: BlockStore) -> None:
        """Call the store, in an I/O thread."""
        store.expire(self.now_s)


@dataclass(frozen=True, slots=True, repr=False)
class TierDelete:
    """Forget objects."""

    keys: Sequence[bytes]

    def run(self, store: BlockStore) -> None:
        """Call the store, in an I/O thread."""
        store.delete_many(self.keys)


@dataclass(frozen=True, slots=True, repr=False)
class TierPurge:
    """Forget every object whose key begins with `prefix`. Without a `purge_id` a failed purge is
    tried again."""

    prefix: bytes
    purge_id: int = 0

    def run(self, store: BlockStore) -> int | None:
        """The number of objects; None where the store does not tell what it has."""
        try:
            return delete_prefix(store, self.prefix)
        except OSError:
            return None


TierCall: TypeAlias = (
    TierQuery | TierRead | TierWrite | TierRefresh | TierExpire | TierDelete | TierPurge
)


@dataclass(frozen=True, slots=True, repr=False)
class TierDone:
    """A call of a tier has ended: `result` is None where the store raised, an exception of the name
    `error`."""

    tier: str
    call: TierCall
    result: TierQueryResult | TierReadResult | int | None
    seconds: float
    error: str = ""
