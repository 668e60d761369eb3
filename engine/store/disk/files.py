"""The calls of the operating system that the disk store makes,
in one place so that each can be made to fail.

Every method may raise OSError and none retries. Files are 0600, folders 0700; links are never
followed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.memory import Lend, Payload, buffer
from engine.store.object import HEADER_NBYTES

_OPEN: Final = os.O_CLOEXEC | os.O_NOFOLLOW
SECTOR_NBYTES: Final = 512
"""The unit of `st_blocks`."""


class Files:
    """Files and folders of one store. What is read lies in memory from `lend`."""

    def __init__(self, lend: Lend = buffer) -> None:
        self._lend = lend

    def read_object(self, path: Path) -> tuple[Payload, Payload]:
        """The first `HEADER_NBYTES` bytes and all the rest, read into memory of their own."""
        fd = os.open(path, os.O_RDONLY | _OPEN)
        try:
            nbytes = os.fstat(fd).st_size
            os.posix_fadvise(fd, 0, nbytes, os.POSIX_FADV_WILLNEED)
            whole = read_into(fd, self._lend(nbytes)).toreadonly()
            return whole[:HEADER_NBYTES], whole[HEADER_NBYTES:]
        finally:
            os.close(fd)

    def read_header(self, path: Path) -> tuple[bytes, int]:
        """The first `HEADER_NBYTES` bytes and how many bytes follow them."""
        fd = os.open(path, os.O_RDONLY | _OPEN)
        try:
            return os.pread(fd, HEADER_NBYTES, 0), os.fstat(fd).st_size - HEADER_NBYTES
        finally:
            os.close(fd)

    def write_new(self, path: Path, parts: Sequence[Payload], *, fsync: bool) -> int:
        """Create the file with these bytes; what it occupies on the medium. An error may leave a
        part of it behind."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
        try:
            for part in parts:
                write_all(fd, part)
            if fsync:
                os.fdatasync(fd)
            return allocated(os.fstat(fd))
        finally:
            os.close(fd)

    def overwrite(self, path: Path, offset: int, data: bytes) -> None:
        """Replace bytes in place with one write."""
        fd = os.open(path, os.O_WRONLY | _OPEN)
        try:
            if os.pwrite(fd, data, offset) != len(data):
                raise OSError(f"short write of {len(data)} bytes")
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Put `source` in the place of `target`, whatever file is there."""
        os.rename(source, target)

    def sync_folder(self, path: Path) -> None:
        """The names in the folder survive a loss of power."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def unlink(self, path: Path) -> None:
        """Remove the file, which may be gone already."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> bool:
        """Make the folder; whether it was missing."""
        try:
            path.mkdir(0o700)
        except FileExistsError:
            return False
        return True

    def allocated(self, path: Path) -> int:
        """Bytes that the file or folder itself occupies on the medium."""
        return allocated(os.lstat(path))

    def free_nbytes(self, path: Path) -> int:
        """Bytes that an ordinary user may still write to the file system."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def lock(self, path: Path) -> int:
        """A descriptor that holds the only lock on `path`. Raises BlockingIOError when another
        process has it."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN, 0o600)
        except PermissionError:
            fd = os.open(path, os.O_RDONLY | _OPEN)
        except OSError:
            if not path.exists():  # a read-only file system still serves reads
                raise
            fd = os.open(path, os.O_RDONLY | _OPEN)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def unlock(self, fd: int) -> None:
        """Give up the lock that `lock` returned."""
        os.close(fd)


def allocated(status: os.stat_result) -> int:
    """The bytes of whole blocks, as `du` counts them."""
    return status.st_blocks * SECTOR_NBYTES


def read_into(fd: int, room: memoryview) -> memoryview:
    """The file's first `len(room)` bytes, in `room`; fewer where it ends sooner."""
    at = 0
    while at < len(room) and (nbytes := os.preadv(fd, [room[at:]], at)):
        at += nbytes
    return room[:at]


def write_all(fd: int, data: Payload) -> None:
    """Write at the descriptor's position until nothing is left."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
