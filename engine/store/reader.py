"""The objects of a tier, listed and read one by one beside the engine that uses them.

Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from engine.memory import Payload
from engine.store.base import BlockStore

Condition: TypeAlias = Literal["whole", "gone", "damaged", "unreadable"]


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object, unread. `nbytes` is what it takes of the medium, about."""

    key: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class ObjectReading:
    """The result of reading an object: its payload when it is `whole` by the medium's own
    checksums."""

    condition: Condition
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class TierHealth:
    """The state of a place. `problem`: why not all of it can be listed, None where it can.
    `free_nbytes`: free space of its file system, None where it has none."""

    problem: str | None
    free_nbytes: int | None = None


class TierObjects(Protocol):
    """One place of one tier. `where` names it to the operator, without secrets."""

    @property
    def tier(self) -> str: ...

    @property
    def where(self) -> str: ...

    def list(self) -> Iterator[ListedObject]:
        """Every object, expired ones included, in no order."""
        ...

    def health(self) -> TierHealth:
        """The state of the place, as far as the last `list` has seen."""
        ...

    def read(self, key: bytes) -> ObjectReading:
        """One object. Raises nothing for one that is gone or damaged."""
        ...


class StoreObjects:
    """The objects of an open store; one that the store does not give back counts as gone."""

    def __init__(self, tier: str, where: str, store: BlockStore) -> None:
        self.tier = tier
        self.where = where
        self._store = store

    def list(self) -> Iterator[ListedObject]:
        """See `TierObjects`."""
        with suppress(OSError):  # `health` says why not all are listed
            for key, found in self._store.scan():
                yield ListedObject(key, found.nbytes)

    def health(self) -> TierHealth:
        """See `TierObjects`."""
        return TierHealth(self._store.stats.problem)

    def read(self, key: bytes) -> ObjectReading:
        """See `TierObjects`. Expired objects are gone to a store."""
        before = self._store.stats.num_damaged
        (payload,) = self._store.get_many([key], 0.0)
        if payload is None:
            return ObjectReading("damaged" if self._store.stats.num_damaged > before else "gone")
        return ObjectReading("whole", payload)
