"""A disk that is full, read-only, forbidden or broken costs misses and dropped puts, is said once,
and comes back."""

from __future__ import annotations

import errno
import logging
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.store.base import Item, delete_prefix
from engine.store.disk.files import Files
from engine.store.disk.store import REOPEN_S, DiskStore
from tests.fakes.faulty_files import FaultyFiles, du

T0 = 1_700_000_000.0
MIB = 1 << 20
A, B = b"a" * 32, b"b" * 32
DATA = random.Random(1).randbytes(5000)
CODES = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO)


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    "call", ["write_new", "rename", "make_folder", "free_nbytes", "sync_folder"]
)
def test_a_put_that_fails_is_dropped(
    tmp_path: Path, call: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is left under the key, no byte leaks, one line tells the operator, and the next put
    works."""
    caplog.set_level(logging.INFO, "engine.store")
    files = FaultyFiles()
    with DiskStore(tmp_path, nbytes=MIB, files=files, fsync=True) as store:
        store.expire(T0)
        store.put_many([Item(A, b"old", T0 + 60), Item(B, DATA, T0 + 60)])
        files.fail(call, code=code)
        for _ in range(20):
            assert store.put_many([Item(A, DATA, T0 + 60)]) == [False]
        assert store.get_many([A, B], T0) == [None, DATA]
        assert store.stats.num_errors == 20
        assert store.stats.problem is not None
        assert store.stats.problem.startswith("put: ")
        assert store.stats.nbytes == du(tmp_path)
        files.heal()
        store.put_many([Item(A, DATA, T0 + 60)])
        assert store.get_many([A], T0) == [DATA]
        assert store.stats.problem is None
        store.check()
    assert len(lines(caplog, logging.WARNING)) == 1
    assert lines(caplog, logging.INFO) == ["the ssd tier works again"]


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_read_that_fails_is_a_miss(tmp_path: Path, code: int) -> None:
    """An object that can't be read now is None now, is not deleted, and is there when the disk
    is."""
    files = FaultyFiles()
    with DiskStore(tmp_path, nbytes=MIB, files=files) as store:
        store.put_many([Item(A, DATA, T0 + 60)])
        files.fail("read_object", code=code)
        assert store.get_many([A], T0) == [None]
        assert (store.stats.num_errors, store.stats.num_damaged) == (1, 0)
        assert store.stats.problem is not None
        files.heal()
        assert store.get_many([A], T0) == [DATA]
        assert store.stats.problem is None


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_refresh_that_fails_keeps_the_shorter_life(tmp_path: Path, code: int) -> None:
    """An expiry that could not be written never makes an object outlive what was asked, here or
    after a restart."""
    files = FaultyFiles()
    with DiskStore(tmp_path, nbytes=MIB, files=files) as store:
        store.put_many([Item(A, DATA, T0 + 60), Item(B, DATA, T0 + 60)])
        files.fail("overwrite", code=code)
        assert store.refresh_many({A: T0 + 600, B: T0 + 6}) == [False, True]
        assert store.get_many([A, B], T0 + 6) == [DATA, None]
        assert store.get_many([A], T0 + 60) == [None]
        files.heal()


def test_what_cannot_be_deleted_is_forgotten_and_retried(tmp_path: Path) -> None:
    """A file that resists deletion is a miss, keeps counting against the cap, and goes when it
    can."""
    files = FaultyFiles()
    with DiskStore(tmp_path, nbytes=MIB, files=files) as store:
        store.put_many([Item(A, bytes(100_000), T0 + 60), Item(B, DATA, T0 + 60)])
        files.fail("unlink", code=errno.EROFS)
        store.delete_many([A])
        assert store.get_many([A, B], T0) == [None, DATA]
        assert store.stats.nbytes == du(tmp_path) > 100_000
        assert store.stats.problem == "delete: Read-only file system"
        files.heal()
        store.get_many([B], T0)
        assert store.stats.nbytes == du(tmp_path) < 50_000
        assert store.stats.problem is None
        store.check()


def test_a_resisting_file_can_be_replaced(tmp_path: Path) -> None:
    """A put under the key of a file that could not be deleted takes its place, and counts once."""
    files = FaultyFiles()
    with DiskStore(tmp_path, nbytes=MIB, files=files) as store:
        store.put_many([Item(A, bytes(100_000), T0 + 60)])
        files.fail("unlink", code=errno.EACCES)
        store.delete_many([A])
        store.put_many([Item(A, DATA, T0 + 60)])
        assert store.get_many([A], T0) == [DATA]
        assert store.stats.nbytes == du(tmp_path)
        files.heal()
        store.expire(T0)
        assert store.get_many([A], T0) == [DATA]
        store.check()


def test_a_full_cap_that_cannot_evict_drops(tmp_path: Path) -> None:
    """Where no room can be made, puts are dropped and the cap holds."""
    files = FaultyFiles()
    with DiskStore(tmp_path, nbytes=300_000, files=files) as store:
        store.put_many([Item(A, bytes(200_000), T0 + 60)])
        files.fail("unlink", code=errno.EROFS)
        for _ in range(3):
            store.put_many([Item(B, bytes(200_000), T0 + 60)])
        assert store.get_many([B], T0) == [None]
        assert du(tmp_path) <= 300_000
        files.heal()
        store.expire(T0)
        store.put_many([Item(B, bytes(200_000), T0 + 60)])
        assert store.get_many([B], T0) == [bytes(200_000)]
        store.check()


def test_what_cannot_be_deleted_is_not_forgotten_yet(tmp_path: Path) -> None:
    """A start would find it again: who wants to forget it learns that it is there, until it is
    gone."""
    files = FaultyFiles()
    with DiskStore(tmp_path, nbytes=MIB, files=files) as store:
        store.put_many([Item(A, DATA, T0 + 60), Item(B, DATA, T0 + 60)])
        files.fail("unlink", code=errno.EROFS)
        for _ in range(2):
            with pytest.raises(OSError, match="could not be deleted"):
                delete_prefix(store, b"a")
        files.heal()
        store.expire(T0)
        assert delete_prefix(store, b"a") == 0
        assert du(tmp_path) == store.stats.nbytes


def test_a_folder_that_is_removed_is_made_again(tmp_path: Path) -> None:
    """Somebody empties the cache with `rm -rf`: it is empty, and is a cache again without anybody's
    help."""
    root = tmp_path / "kv"
    with DiskStore(root, nbytes=MIB) as store:
        store.put_many([Item(A, DATA, T0 + 60), Item(B, DATA, T0 + 60)])
        shutil.rmtree(root)
        assert store.get_many([A], T0) == [None]
        store.put_many([Item(A, DATA, T0 + 60)])
        assert store.stats.problem is not None
        store.put_many([Item(A, DATA, T0 + 60)])
        assert store.get_many([A, B], T0) == [DATA, None]
        assert store.stats.problem is None
        store.check()
    with DiskStore(root, nbytes=MIB) as again:
        assert again.get_many([A], T0) == [DATA]


@pytest.mark.parametrize("call", ["lock", "make_folder"])
def test_a_folder_that_cannot_be_opened_is_tried_again(tmp_path: Path, call: str) -> None:
    """The engine starts without the tier, writes nothing there, and has it as soon as the folder
    works."""
    root = tmp_path / "kv"
    files = FaultyFiles()
    files.fail(call, code=errno.EACCES)
    with DiskStore(root, nbytes=MIB, files=files) as store:
        assert store.stats.problem == "open: Permission denied"
        store.find_many([A], T0)
        assert store.put_many([Item(A, DATA, T0 + 60)]) == [False]
        store.delete_many([B])
        assert store.get_many([A], T0) == [None]
        with pytest.raises(OSError, match="Permission denied"):
            list(store.scan())
        files.heal()
        assert store.find_many([A], T0 + REOPEN_S / 2) == [None]
        store.find_many([A], T0 + REOPEN_S)
        assert store.stats.problem is None
        store.put_many([Item(A, DATA, T0 + 60)])
        assert store.get_many([A], T0 + REOPEN_S) == [DATA]
        store.check()


def test_a_read_only_folder_is_still_read(tmp_path: Path) -> None:
    """A store whose folder became read-only serves what is there."""
    with DiskStore(tmp_path, nbytes=MIB) as store:
        store.put_many([Item(A, DATA, T0 + 60)])
    files = FaultyFiles()
    files.fail("write_new", "rename", "unlink", "overwrite", "make_folder", code=errno.EROFS)
    with DiskStore(tmp_path, nbytes=MIB, files=files) as store:
        assert store.get_many([A], T0) == [DATA]
        assert store.put_many([Item(B, DATA, T0 + 60)]) == [False]
        assert store.refresh_many({A: T0 + 90}) == [False]
        assert store.get_many([A, B], T0) == [DATA, None]


def test_unreadable_headers_at_start(tmp_path: Path) -> None:
    """Objects that can't be read while opening count against the cap and are not deleted."""
    with DiskStore(tmp_path, nbytes=MIB) as store:
        store.put_many([Item(A, DATA, T0 + 60)])
    files = FaultyFiles()
    files.fail("read_header", code=errno.EIO)
    with DiskStore(tmp_path, nbytes=MIB, files=files) as store:
        assert store.stats.nbytes == du(tmp_path)
        assert store.get_many([A], T0) == [None]
    with DiskStore(tmp_path, nbytes=MIB) as store:
        assert store.get_many([A], T0) == [DATA]


def test_little_free_space_stops_writing(tmp_path: Path) -> None:
    """While less than `min_free_nbytes` would be left, puts are dropped; reads and refreshes
    work."""
    files = FaultyFiles()
    free = files.free_nbytes(tmp_path)
    with DiskStore(tmp_path, nbytes=MIB, min_free_nbytes=free // 2, files=files) as store:
        store.put_many([Item(A, DATA, T0 + 60)])
    with DiskStore(tmp_path, nbytes=MIB, min_free_nbytes=free * 2) as store:
        assert store.put_many([Item(B, DATA, T0 + 60)]) == [False]
        assert store.refresh_many({A: T0 + 90}) == [True]
        assert store.get_many([A, B], T0 + 80) == [DATA, None]
        assert store.stats.problem == "put: too little space is free on the file system"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],
        check=False,
        capture_output=True,
        text=True,
    )
    if mount.returncode != 0:
        pytest.skip(f"this user can't mount a small file system: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


class Unaware(Files):
    """Sees endless free space, so that only the write itself finds the disk full."""

    def free_nbytes(self, path: Path) -> int:
        return 1 << 40


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (Unaware(), "put: No space left on device"),
        (Files(), "put: too little space is free on the file system"),
    ],
    ids=["unaware", "aware"],
)
def test_a_really_full_disk(small_disk: Path, files: Files, problem: str) -> None:
    """On a real file system without room every get is exact or None, no part is left, and deleting
    makes it work again."""
    keys = [bytes([n]) * 32 for n in range(40)]
    blobs = [random.Random(n).randbytes(100_000) for n in range(40)]
    with DiskStore(small_disk / "kv", nbytes=1 << 30, files=files) as store:
        held = [
            store.put_many([Item(key, blob, T0 + 60)])[0]
            for key, blob in zip(keys, blobs, strict=True)
        ]
        got = store.get_many(keys, T0)
        assert all(payload in (None, blob) for payload, blob in zip(got, blobs, strict=True))
        assert 5 < sum(payload is not None for payload in got) < 11
        assert held == [payload is not None for payload in got]
        assert store.stats.problem == problem
        assert list((small_disk / "kv" / "tmp").iterdir()) == []
        store.delete_many(keys[:20])
        store.put_many([Item(keys[39], blobs[39], T0 + 60)])
        assert store.get_many([keys[39]], T0) == [blobs[39]]
        assert store.stats.problem is None
        store.check()
