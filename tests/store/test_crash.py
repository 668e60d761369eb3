"""A writer killed at any moment loses at most what it was writing."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.store.base import BlockStore
from engine.store.disk.store import DiskStore
from engine.store.redis.store import RedisStore
from tests.fakes.faulty_files import du
from tests.fakes.redis_server import RedisServer
from tests.fakes.store_writer import LIVES_S, REFRESHED_S, T0, key_of, payload_of

ROOT = Path(__file__).parents[2]


def write_and_kill(kind: str, where: str, seed: int) -> int:
    """Let a writer announce a random number of objects, kill it at a random moment after; how many
    it announced at least."""
    rng = random.Random(seed)
    command = [sys.executable, "-m", "tests.fakes.store_writer", kind, where]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        num_wanted = rng.randrange(1, 40)
        for _ in range(num_wanted):
            assert writer.stdout.readline()
        for _ in range(rng.randrange(200_000)):  # somewhere within the next put
            pass
        writer.send_signal(signal.SIGKILL)
        num_announced = num_wanted + len(writer.stdout.read().splitlines())
        assert writer.wait() == -signal.SIGKILL
    return num_announced


def check_all_there(store: BlockStore, num_announced: int) -> None:
    """Everything announced is exact with its last expiry, what was in flight exact or absent, and
    nothing else there."""
    keys = [key_of(n) for n in range(num_announced)]
    found = store.find_many(keys, T0)
    for n, (about, got) in enumerate(zip(found, store.get_many(keys, T0), strict=True)):
        assert got == payload_of(n), n
        assert about is not None
        refreshed = n % 10 == 4 and n + 5 < num_announced
        assert (
            about.expires_at_s == T0 + (REFRESHED_S if refreshed else LIVES_S)
            or n + 5 == num_announced
        )
    assert store.get_many([key_of(num_announced)], T0)[0] in (None, payload_of(num_announced))
    assert {key for key, _ in store.scan()} <= {*keys, key_of(num_announced)}
    assert store.stats.num_damaged == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_writer_leaves_whole_objects(tmp_path: Path, seed: int) -> None:
    """After SIGKILL the folder opens at once with every finished object; what was half written is
    gone and not counted."""
    num_announced = write_and_kill("disk", str(tmp_path), seed)
    with DiskStore(tmp_path, nbytes=1 << 30) as store:
        assert store.stats.nbytes == du(tmp_path)
        check_all_there(store, num_announced)
        store.check()


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_writer_leaves_whole_values(redis_server: RedisServer, seed: int) -> None:
    """The same for Redis: a value is there whole or not at all."""
    with redis_server.client() as client:
        client.flushall()
    num_announced = write_and_kill("redis", redis_server.url, seed)
    with RedisStore(redis_server.url, timeout_s=5.0, prefix="w:") as store:
        check_all_there(store, num_announced)
