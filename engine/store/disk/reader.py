"""The objects of a folder, read without a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from engine.store.disk.files import Files
from engine.store.disk.layout import Layout
from engine.store.object import decode_header
from engine.store.reader import ListedObject, ObjectReading, TierHealth


class FolderObjects:
    """The objects in a folder, whether an engine uses it or not: they appear whole under their
    names and vanish whole. Takes no lock."""

    def __init__(self, tier: str, folder: Path) -> None:
        self.tier = tier
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
