"""For measuring: how much of a folder is in the page cache, and dropping it from there."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def drop_page_cache(path: Path) -> None:
    """Write the file, or every file under the folder, to the medium, and ask the kernel to forget
    its pages.

    The kernel may keep pages that others map or write; `resident_nbytes` says what is left. Raises
    OSError.
    """
    for fd in _open_files(path):
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def resident_nbytes(path: Path) -> int:
    """How many bytes of the file, or of all files under the folder, are in memory now, in whole
    pages. Raises OSError."""
    return sum(_resident(fd) for fd in _open_files(path))


def _open_files(path: Path) -> Iterator[int]:
    files = (
        [path]
        if path.is_file()
        else sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink())
    )
    for file in files:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


def _resident(fd: int) -> int:
    nbytes = os.fstat(fd).st_size
    if nbytes == 0:
        return 0
    address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        pages = ctypes.create_string_buffer(-(-nbytes // mmap.PAGESIZE))
        if _libc.mincore(address, nbytes, pages) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE
    finally:
        _libc.munmap(address, nbytes)
