"""The tier of files, as configured."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from engine.store.disk.files import Files
from engine.store.disk.reader import FolderObjects
from engine.store.disk.store import DiskStore
from engine.store.kind import Opening, TierKind, TierSpec


class SsdSpec(TierSpec, msgspec.Struct, frozen=True, tag="ssd"):
    """Files of `nbytes` in the folder `path`, of which `min_free_nbytes` stay free on the disk."""

    path: str
    nbytes: int
    min_free_nbytes: int = 0
    eviction: Literal["lru", "lfu", "cost"] = "lru"

    @property
    def where(self) -> str:
        """The folder."""
        return self.path


def _open(spec: SsdSpec, opening: Opening) -> DiskStore:
    return DiskStore(
        Path(spec.path),
        nbytes=spec.nbytes,
        min_free_nbytes=spec.min_free_nbytes,
        eviction=spec.eviction,
        waits=opening.waits,
        files=Files(opening.lend),
        progress=opening.progress,
    )


SSD: Final = TierKind("ssd", SsdSpec, _open, lambda spec: FolderObjects("ssd", Path(spec.path)))
