"""Every kind of store, opened the same way, so that one suite runs on all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.store.base import BlockStore
from engine.store.disk.store import DiskStore
from engine.store.encrypted import EncryptedStore
from engine.store.memory import MemoryStore
from engine.store.redis.store import RedisStore
from tests.fakes.redis_server import RedisServer

ROOMY_NBYTES = 256 << 20
TIGHT_NBYTES = 200_000
SECRET = b"a secret of enough bytes"


@dataclass(frozen=True, slots=True)
class Kind:
    """`make()` gives a new handle, not entered, on a new place. Keeps all that fits, unless `keeps`
    is false."""

    name: str
    make: Callable[[], BlockStore]
    keeps: bool = True


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One real server, shared: each store takes a prefix of its own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


KINDS = (
    *("memory", "memory-tight", "disk", "disk-tight", "disk-fsync", "redis"),
    *("encrypted-memory", "encrypted-disk", "encrypted-redis"),
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> Kind:
    """One kind of store after the other."""
    numbers = itertools.count()

    def disk(nbytes: int = ROOMY_NBYTES, *, fsync: bool = False) -> BlockStore:
        return DiskStore(tmp_path / f"disk{next(numbers)}", nbytes=nbytes, fsync=fsync)

    def redis() -> BlockStore:
        return RedisStore(
            redis_server.url, timeout_s=5.0, prefix=f"{tmp_path.name}:{next(numbers)}*[x]:"
        )

    makes: dict[str, Callable[[], BlockStore]] = {
        "memory": lambda: MemoryStore(ROOMY_NBYTES),
        "memory-tight": lambda: MemoryStore(TIGHT_NBYTES),
        "disk": disk,
        "disk-tight": lambda: disk(TIGHT_NBYTES),
        "disk-fsync": lambda: disk(fsync=True),
        "redis": redis,
        "encrypted-memory": lambda: EncryptedStore(MemoryStore(ROOMY_NBYTES), SECRET),
        "encrypted-disk": lambda: EncryptedStore(disk(), SECRET),
        "encrypted-redis": lambda: EncryptedStore(redis(), SECRET),
    }
    return Kind(
        request.param,
        makes[request.param],
        keeps=request.param not in ("memory-tight", "disk-tight"),
    )
