"""The places where stored KV lies, read object by object without an engine.

Takes no lock and changes nothing.

A folder is read as it is, whether a gateway uses it or not: objects appear whole under their names
and vanish whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from engine.memory import Payload
from engine.store.base import BlockStore
from engine.store.disk.files import Files
from engine.store.disk.layout import Layout
from engine.store.object import decode_header

Condition: TypeAlias = Literal["whole", "gone", "damaged", "unreadable"]


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object, unread. `nbytes` is what it takes of the medium, about."""

    key: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class ObjectReading:
    """What came of reading an object: its payload when it is `whole`, by the medium's own
    checksums."""

    condition: Condition
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class TierHealth:
    """`problem`: why it can't be listed as it should be. `free_nbytes`: room on its file system,
    None where it has none."""

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
        """How it is, as far as the last `list` has seen."""
        ...

    def read(self, key: bytes) -> ObjectReading:
        """One object. Raises nothing for one that is gone or damaged."""
        ...


class FolderObjects:
    """The SSD tier of one model."""

    tier = "ssd"

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._layout = Layout(folder)
        self._files = Files()

    def list(self) -> Iterator[ListedObject]:
        """See `TierObjects`. A folder that is not there holds nothing."""
        if self._layout.root.is_dir():
            for found in self._layout.survey().objects:
                yield ListedObject(found.key, found.allocated_nbytes)

    def health(self) -> TierHealth:
        """See `TierObjects`."""
        root = self._layout.root
        if not root.exists():
            return TierHealth(None)
        problem = None if root.is_dir() and os.access(root, os.R_OK | os.X_OK) else "cannot be read"
        return TierHealth(problem, self._files.free_nbytes(root))

    def read(self, key: bytes) -> ObjectReading:
        """See `TierObjects`."""
        try:
            head, payload = self._files.read_object(self._layout.path(key))
        except FileNotFoundError:
            return ObjectReading("gone")
        except OSError:
            return ObjectReading("unreadable")
        header = decode_header(head)
        if header is None or header.key != key or not header.describes(payload):
            return ObjectReading("damaged")
        return ObjectReading("whole", payload)


class StoreObjects:
    """A tier that is read through its store, which must be open: what it will not give back counts
    as gone."""

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
