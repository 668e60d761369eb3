"""The disk store's calls of the operating system, made to fail or to wait, and watched."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.store.disk.files import Files, allocated


class FaultyFiles(Files):
    """`errors[name]` is raised by the method of that name; `hooks[name]` runs before it otherwise.
    Both may change any time."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, OSError] = {}
        self.hooks: dict[str, Callable[[], None]] = {}

    def fail(self, *names: str, code: int) -> None:
        """From now on these methods raise the error `code`."""
        self.errors.update({name: OSError(code, os.strerror(code)) for name in names})

    def heal(self) -> None:
        """From now on everything works."""
        self.errors.clear()

    def _check(self, name: str) -> None:
        if name in self.errors:
            raise self.errors[name]
        if name in self.hooks:
            self.hooks[name]()

    def read_object(self, path: Path) -> tuple[bytes, bytes]:
        self._check("read_object")
        return super().read_object(path)

    def read_header(self, path: Path) -> tuple[bytes, int]:
        self._check("read_header")
        return super().read_header(path)

    def write_new(self, path: Path, parts: Sequence[bytes], *, fsync: bool) -> int:
        """Leaves the first part behind when it fails, as a full disk does."""
        if "write_new" in self.errors:
            super().write_new(path, parts[:1], fsync=False)
        self._check("write_new")
        return super().write_new(path, parts, fsync=fsync)

    def overwrite(self, path: Path, offset: int, data: bytes) -> None:
        self._check("overwrite")
        super().overwrite(path, offset, data)

    def rename(self, source: Path, target: Path) -> None:
        self._check("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._check("unlink")
        super().unlink(path)

    def sync_folder(self, path: Path) -> None:
        self._check("sync_folder")
        super().sync_folder(path)

    def make_folder(self, path: Path) -> bool:
        self._check("make_folder")
        return super().make_folder(path)

    def free_nbytes(self, path: Path) -> int:
        self._check("free_nbytes")
        return super().free_nbytes(path)

    def lock(self, path: Path) -> int:
        self._check("lock")
        return super().lock(path)


class MeasuredFiles(Files):
    """Looks at what the whole folder occupies after every change of it, one change at a time, and
    remembers the most."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.most_nbytes = 0
        self.num_looks = 0
        self._root = root
        self._lock = threading.RLock()

    def write_new(self, path: Path, parts: Sequence[bytes], *, fsync: bool) -> int:
        return self._measured(super().write_new, path, parts, fsync=fsync)

    def rename(self, source: Path, target: Path) -> None:
        self._measured(super().rename, source, target)

    def unlink(self, path: Path) -> None:
        self._measured(super().unlink, path)

    def make_folder(self, path: Path) -> bool:
        return self._measured(super().make_folder, path)

    def _measured(self, change: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with self._lock:
            result = change(*args, **options)
            nbytes = du(self._root)
            self.most_nbytes = max(self.most_nbytes, nbytes)
            self.num_looks += 1
            return result


def du(root: Path) -> int:
    """What everything in the folder occupies, itself included."""
    paths = [
        root,
        *(
            Path(folder, name)
            for folder, names, files in os.walk(root)
            for name in (*names, *files)
        ),
    ]
    return sum(allocated(os.lstat(path)) for path in paths)
