"""Calls of a store, and the messages about their results.

Frozen data: a call goes to an I/O thread, its message goes to the engine thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from engine.cache.tiers.object_format import (
    ObjectKey,
    ObjectNamespace,
    StoredEntry,
    decode_entry,
    decode_object,
    encode_object,
)
from engine.memory import Payload
from engine.store.base import BlockStore, Found, Item, delete_prefix

R = TypeVar("R")

# Messages: the tier's name, and the result of a call, None where the store raised ----------------


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
class TierAnswered:
    """A query of a fetch has ended."""

    tier: str
    fetch_id: int
    result: TierQueryResult | None
    seconds: float


@dataclass(frozen=True, slots=True, repr=False)
class TierReadResult:
    """The body of an object; None when it was gone, or was not as it should be (`is_corrupt`)."""

    body: memoryview | None
    is_corrupt: bool


@dataclass(frozen=True, slots=True, repr=False)
class TierRead:
    """A read of one object has ended."""

    tier: str
    key: bytes
    result: TierReadResult
    seconds: float


@dataclass(frozen=True, slots=True, repr=False)
class TierStored:
    """A write has ended. `num_written` of its `nbytes` were written; None where it is not
    stored."""

    tier: str
    write_id: int
    nbytes: int
    num_written: int | None


@dataclass(frozen=True, slots=True, repr=False)
class TierUpdated:
    """An update has ended, whether it succeeded or not."""

    tier: str
    update: RefreshObjects | ExpireObjects | DeleteObjects


@dataclass(frozen=True, slots=True, repr=False)
class TierPurged:
    """A purge has ended; `num_objects` is None where the store failed to delete them all."""

    tier: str
    purge: PurgeObjects
    num_objects: int | None


@dataclass(frozen=True, slots=True, repr=False)
class TierFailed:
    """A call has raised an exception of this name. The message of the call itself follows."""

    tier: str
    error: str


TierMessage: TypeAlias = (
    TierAnswered | TierRead | TierStored | TierUpdated | TierPurged | TierFailed
)


# Calls ------------------------------------------------------------------------------------------


class TierCall(Protocol[R]):
    """One call of a store."""

    def run(self, store: BlockStore) -> R:
        """Call the store, in an I/O thread."""
        ...

    def message(self, tier: str, result: R | None, seconds: float) -> TierMessage:
        """The message about its end; without a result where the store raised."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class TierQuery:
    """Ask which of `objects` a tier has, and get its entries under `entries`."""

    fetch_id: int
    objects: Sequence[bytes]
    entries: Sequence[ObjectKey]
    namespace: ObjectNamespace
    now_s: float

    def run(self, store: BlockStore) -> TierQueryResult:
        """See `TierCall`."""
        num_damaged = store.stats.num_damaged
        found = store.find_many(self.objects, self.now_s)
        keys = [label.key for label in self.entries]
        payloads = store.get_many(keys, self.now_s) if keys else []
        # The counter has other threads' finds too: never more than what is missing here.
        num_damaged = min(store.stats.num_damaged - num_damaged, [*found, *payloads].count(None))
        entries = [
            self._open(payload, label)
            for payload, label in zip(payloads, self.entries, strict=True)
        ]
        unreadable = [
            key
            for key, payload, entry in zip(keys, payloads, entries, strict=True)
            if payload is not None and entry is None
        ]
        return TierQueryResult(found, entries, num_damaged + len(unreadable), unreadable)

    def message(self, tier: str, result: TierQueryResult | None, seconds: float) -> TierMessage:
        """See `TierCall`."""
        return TierAnswered(tier, self.fetch_id, result, seconds)

    def _open(self, payload: Payload | None, label: ObjectKey) -> StoredEntry | None:
        body = None if payload is None else decode_object(payload, label, self.namespace)
        return None if body is None else decode_entry(body)


@dataclass(frozen=True, slots=True, repr=False)
class ReadObject:
    """Get one object's body."""

    label: ObjectKey
    namespace: ObjectNamespace
    now_s: float

    def run(self, store: BlockStore) -> TierReadResult:
        """See `TierCall`."""
        num_damaged = store.stats.num_damaged
        (payload,) = store.get_many([self.label.key], self.now_s)
        if payload is None:
            return TierReadResult(None, is_corrupt=store.stats.num_damaged > num_damaged)
        body = decode_object(payload, self.label, self.namespace)
        return TierReadResult(body, is_corrupt=body is None)

    def message(self, tier: str, result: TierReadResult | None, seconds: float) -> TierMessage:
        """See `TierCall`."""
        result = result or TierReadResult(None, is_corrupt=False)
        return TierRead(tier, self.label.key, result, seconds)


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
class StoreObject:
    """Store an object. It is not written where it is there already, and never kept shorter: another
    host may have promised more."""

    write_id: int
    spec: ObjectSpec
    body: Payload

    def run(self, store: BlockStore) -> int | None:
        """See `TierCall`. The bytes written; None where it is not stored."""
        spec, key, nbytes = self.spec, self.spec.label.key, len(self.body)
        if not spec.replaces:
            (is_held,) = store.refresh_many({key: spec.expires_at_s}, only_longer=True)
            if is_held:
                return 0
        payload = encode_object(spec.label, spec.namespace, self.body)
        item = Item(key, payload, spec.expires_at_s, spec.prefill_tokens / nbytes)
        (is_held,) = store.put_many([item], only_longer=True)
        return nbytes if is_held else None

    def message(self, tier: str, result: int | None, seconds: float) -> TierMessage:
        """See `TierCall`."""
        return TierStored(tier, self.write_id, len(self.body), result)


@dataclass(frozen=True, slots=True, repr=False)
class RefreshObjects:
    """Move the expiry of objects. `unpinned_nbytes` of KV in them were pinned, and are not any
    more."""

    expiries: Mapping[bytes, float]
    only_longer: bool = True
    unpinned_nbytes: int = 0

    def run(self, store: BlockStore) -> None:
        """See `TierCall`."""
        store.refresh_many(self.expiries, only_longer=self.only_longer)

    def message(self, tier: str, result: None, seconds: float) -> TierMessage:
        """See `TierCall`."""
        return TierUpdated(tier, self)


@dataclass(frozen=True, slots=True, repr=False)
class ExpireObjects:
    """Delete some of what has expired."""

    now_s: float

    def run(self, store: BlockStore) -> None:
        """See `TierCall`."""
        store.expire(self.now_s)

    def message(self, tier: str, result: None, seconds: float) -> TierMessage:
        """See `TierCall`."""
        return TierUpdated(tier, self)


@dataclass(frozen=True, slots=True, repr=False)
class DeleteObjects:
    """Forget objects."""

    keys: Sequence[bytes]

    def run(self, store: BlockStore) -> None:
        """See `TierCall`."""
        store.delete_many(self.keys)

    def message(self, tier: str, result: None, seconds: float) -> TierMessage:
        """See `TierCall`."""
        return TierUpdated(tier, self)


@dataclass(frozen=True, slots=True, repr=False)
class PurgeObjects:
    """Forget every object whose key begins with `prefix`. `purge_id` is None where a failed purge
    is tried again."""

    prefix: bytes
    purge_id: int | None = None

    def run(self, store: BlockStore) -> int | None:
        """See `TierCall`. The number of objects, None where the store does not tell what it has."""
        try:
            return delete_prefix(store, self.prefix)
        except OSError:
            return None

    def message(self, tier: str, result: int | None, seconds: float) -> TierMessage:
        """See `TierCall`."""
        return TierPurged(tier, self, result)
