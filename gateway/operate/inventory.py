"""The stored objects by tenant and by entry, and their condition:
for `pcg cache` and the operators' routes.

Reads, and changes nothing. Never shows text or token ids: a tenant is the hash that begins its
keys, an entry a position and an offset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from engine.cache.tiers.object_format import HEADER, StoredEntry, decode_entry, is_intact
from engine.cache.tree.namespace import NAMESPACE_NBYTES, namespace
from engine.memory import Payload
from engine.store.base import PINNED_UNTIL_S
from engine.store.reader import ListedObject, ObjectReading, TierObjects

MAX_ENTRY_NBYTES: Final = 16 * 1024
"""The object of an entry takes no more than this on any medium, so that larger ones need not be
read to find the entries."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes done, bytes there are)."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The objects of one place in numbers, and its health. `tenants`: hash -> bytes."""

    tier: str
    where: str
    num_objects: int
    nbytes: int
    tenants: Mapping[str, int]
    problem: str | None = None
    free_nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class EntryLine:
    """One entry: its place in the request, how much it covers, how long it lives. Not live for
    `ttl_left_s` <= 0.

    `key` (hexadecimal) names it within its tenant. A pinned one lives for its `ttl_s` from when it
    is unpinned."""

    tier: str
    tenant: str
    position: str
    offset: int
    ttl_s: float
    ttl_left_s: float
    nbytes: int
    key: str = ""
    pinned: bool = False

    @property
    def stored_key(self) -> bytes:
        """The whole key of its object."""
        return bytes.fromhex(self.tenant + self.key)


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that differs from the stored one, or that the medium does not give back. `key` is
    its name in hexadecimal."""

    tier: str
    where: str
    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification. Objects that went away while it ran are neither whole nor
    damaged."""

    num_whole: int
    nbytes: int
    damaged: tuple[Damage, ...]


def tenant_hash(root_secret: bytes, tenant: str) -> str:
    """The name of a tenant in the tiers: the same for all models, and nobody can tell the tenant
    from it."""
    return namespace(root_secret, tenant).hex()


def as_stored(key: bytes, payload: Payload) -> Payload:
    """The payload of a gateway that does not encrypt."""
    return payload


@dataclass(frozen=True, slots=True)
class Inventory:
    """Over all places of a gateway. With `tenant` (a hash) every answer is about that tenant's
    objects alone.

    `unwrap` gives the payload under a key as the engine wrote it, or None when it can't be had: the
    inverse of encryption at rest. All methods may block: they are for threads, never for the event
    loop.
    """

    places: tuple[TierObjects, ...] = ()
    unwrap: Callable[[bytes, Payload], Payload | None] = as_stored

    def contents(self, tenant: str | None = None) -> list[Contents]:
        """Sizes, from names alone: nothing is opened."""
        return [_contents(place, _of(place, tenant)) for place in self.places]

    def entries(self, now_s: float, tenant: str | None = None) -> Iterator[EntryLine]:
        """Every entry stored, expired ones included. The same entry may be in several tiers."""
        for place in self.places:
            for listed in _of(place, tenant):
                entry = self._entry(place, listed)
                if entry is not None:
                    is_pinned = entry.expires_at_s >= PINNED_UNTIL_S
                    yield EntryLine(
                        tier=place.tier,
                        tenant=_tenant(listed.key),
                        position=entry.position,
                        offset=entry.offset,
                        ttl_s=entry.ttl_s,
                        ttl_left_s=entry.ttl_s if is_pinned else entry.expires_at_s - now_s,
                        nbytes=listed.nbytes,
                        key=listed.key[NAMESPACE_NBYTES:].hex(),
                        pinned=is_pinned,
                    )

    def verify(self, progress: Progress, tenant: str | None = None) -> Verified:
        """Read every object and check all its checksums."""
        listed = [(place, item) for place in self.places for item in _of(place, tenant)]
        total_nbytes = sum(item.nbytes for _, item in listed)
        done_nbytes = num_whole = whole_nbytes = 0
        damaged = []
        progress(0, total_nbytes)
        for place, item in listed:
            reading = place.read(item.key)
            problem = self._problem(item.key, reading)
            if problem is not None:
                damaged.append(Damage(place.tier, place.where, item.key.hex(), problem))
            elif reading.condition == "whole":
                num_whole += 1
                whole_nbytes += item.nbytes
            done_nbytes += item.nbytes
            progress(done_nbytes, total_nbytes)
        return Verified(num_whole, whole_nbytes, tuple(damaged))

    def _problem(self, key: bytes, reading: ObjectReading) -> str | None:
        """The fault of an object; None for one that is whole or gone."""
        match reading.condition:
            case "gone":
                return None
            case "unreadable":
                return "cannot be read"
            case "damaged":
                return "its bytes have changed"
            case "whole":
                payload = self.unwrap(key, reading.payload)
                is_ours = payload is not None and is_intact(key, payload)
                return None if is_ours else "not what this gateway stores under this key"

    def _entry(self, place: TierObjects, listed: ListedObject) -> StoredEntry | None:
        if listed.nbytes > MAX_ENTRY_NBYTES:
            return None
        reading = place.read(listed.key)
        payload = self.unwrap(listed.key, reading.payload) if reading.condition == "whole" else None
        if payload is None or not is_intact(listed.key, payload):
            return None
        _, _, fingerprint_nbytes, ids_nbytes, *_ = HEADER.unpack_from(payload)
        return decode_entry(memoryview(payload)[HEADER.size + fingerprint_nbytes + ids_nbytes :])


def _of(place: TierObjects, tenant: str | None) -> Iterable[ListedObject]:
    return (listed for listed in place.list() if tenant is None or _tenant(listed.key) == tenant)


def _contents(place: TierObjects, items: Iterable[ListedObject]) -> Contents:
    num_objects, tenants = 0, Counter[str]()
    for item in items:
        num_objects += 1
        tenants[_tenant(item.key)] += item.nbytes
    health = place.health()
    return Contents(
        place.tier,
        place.where,
        num_objects,
        tenants.total(),
        dict(tenants),
        health.problem,
        health.free_nbytes,
    )


def _tenant(key: bytes) -> str:
    return key[:NAMESPACE_NBYTES].hex()
