"""The places of objects in the folder of a disk store, and a survey of the folder.

Reads names and sizes, never contents.

    lock            held while a process uses the folder
    tmp/*.part      files being written; what a dead writer left is removed at the next start
    a/b/ab12....    the object under key ab12... (hex): 256 folders keep each one small at any size

Anything else is foreign: it counts against the cap and is left alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engine.store.disk.files import allocated
from engine.store.object import MAX_KEY_NBYTES

PART_SUFFIX: Final = ".part"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file whose place and name are those of the object under `key`."""

    key: bytes
    allocated_nbytes: int
    modified_s: float


@dataclass(slots=True)
class Survey:
    """The contents of a folder when it was looked through. `other_nbytes` are foreign files and the
    lock."""

    objects: list[FoundFile] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)
    folders: dict[Path, int] = field(default_factory=dict)
    other_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one store."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def temp(self) -> Path:
        return self.root / "tmp"

    def path(self, key: bytes) -> Path:
        """The file of the object under `key`."""
        name = key.hex()
        return self.root / name[0] / name[1] / name

    def folders(self, key: bytes) -> tuple[Path, Path]:
        """The two folders that `path(key)` lies in, outer first."""
        inner = self.path(key).parent
        return inner.parent, inner

    def part(self, name: str) -> Path:
        """A file to write before its object is complete."""
        return self.temp / f"{name}{PART_SUFFIX}"

    def key_of(self, path: Path) -> bytes | None:
        """The key whose object belongs at `path`, None when no object does."""
        try:
            key = bytes.fromhex(path.name)
        except ValueError:
            return None
        return key if 1 <= len(key) <= MAX_KEY_NBYTES and self.path(key) == path else None

    def survey(self) -> Survey:
        """Look through the whole folder. What can't be listed, or vanishes meanwhile, is left
        out."""
        found = Survey()
        found.folders[self.root] = allocated(os.lstat(self.root))
        for path, status in _walk(self.root):
            self._sort(path, status, found)
        return found

    def _sort(self, path: Path, status: os.stat_result, found: Survey) -> None:
        key = self.key_of(path)
        if stat.S_ISDIR(status.st_mode):
            found.folders[path] = allocated(status)
        elif key is not None:
            found.objects.append(FoundFile(key, allocated(status), status.st_mtime))
        elif path.parent == self.temp and path.suffix == PART_SUFFIX:
            found.leftovers.append(path)
        else:
            found.other_nbytes += allocated(status)


def _walk(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below `root`, links not followed."""
    for folder, folder_names, file_names in os.walk(root):
        for name in (*folder_names, *file_names):
            path = Path(folder, name)
            with suppress(OSError):
                yield path, os.lstat(path)
