"""The disk store: what comes back after a restart, what is damaged, what else is in the folder,
and the cap.
"""

from __future__ import annotations

import random
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engine.store.base import Found, Item
from engine.store.disk.files import Files
from engine.store.disk.layout import Layout
from engine.store.disk.store import DiskStore
from engine.store.errors import StoreBusy
from engine.store.object import HEADER_NBYTES, encode_header
from tests.fakes.faulty_files import FaultyFiles, MeasuredFiles, du

T0 = 1_700_000_000.0
MIB = 1 << 20
A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
DATA = random.Random(1).randbytes(5000)


def open_store(path: Path, nbytes: int = 64 * MIB, **options: object) -> DiskStore:
    return DiskStore(path, nbytes=nbytes, **options)  # type: ignore[arg-type]


def file_of(root: Path, key: bytes) -> Path:
    return Layout(root).path(key)


def test_everything_comes_back(tmp_path: Path) -> None:
    """A new process finds every object with its refreshed expiry, and counts what is on the
    disk."""
    items = [
        Item(random.Random(n).randbytes(32), random.Random(n).randbytes(n * 1000), T0 + n)
        for n in range(20)
    ]
    with open_store(tmp_path) as store:
        store.put_many(items)
        store.refresh_many({item.key: T0 + 100 for item in items[:5]})
    seen: list[tuple[int, int]] = []
    with open_store(tmp_path, progress=lambda done, total: seen.append((done, total))) as store:
        assert store.stats.num_items == 20
        assert store.stats.nbytes == du(tmp_path)
        assert store.get_many([item.key for item in items], T0 - 1) == [
            item.payload for item in items
        ]
        found = store.find_many([item.key for item in items], T0 - 1)
        assert [f and f.expires_at_s for f in found] == [T0 + 100] * 5 + [
            T0 + n for n in range(5, 20)
        ]
        store.check()
    assert seen == [(done, 20) for done in range(21)]


def test_files_are_private(tmp_path: Path) -> None:
    """Nobody but the owner may look at files or folders."""
    root = tmp_path / "kv" / "ssd"
    with open_store(root) as store:
        store.put_many([Item(A, DATA, T0)])
    paths = [root.parent, root, *root.rglob("*")]
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert modes == {True: 0o700, False: 0o600}


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def cut(nbytes: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:nbytes]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    **{
        f"flip-{at}": flip(at)
        for at in (0, 8, 10, 12, 16, 24, 32, 63, 64, 95, 96, 103, 104, 111, 112, 119)
    },
    **{f"flip-payload-{at}": flip(HEADER_NBYTES + at) for at in (0, 1, 2500, 4999)},
    **{f"cut-{nbytes}": cut(nbytes) for nbytes in (0, 1, 104, 119, 120, 121, 512, 4096, 5119)},
    "longer": lambda data: data + b"\0",
    "empty-after-header": cut(HEADER_NBYTES),
    "zeros": lambda data: bytes(len(data)),
    "foreign": lambda data: b"this is no object at all" * 100,
    "other-key": lambda data: encode_header(B, DATA, T0 + 60) + DATA,
    "other-version": lambda data: data[:8] + b"\2" + data[9:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("when", ["open", "closed"])
def test_damage_is_a_miss(tmp_path: Path, damage: Callable[[bytes], bytes], when: str) -> None:
    """A file that is not exactly what was written is deleted and counted, its key a miss and free
    for a new put."""
    store = open_store(tmp_path)
    with store:
        store.put_many([Item(A, DATA, T0 + 60), Item(C, DATA, T0 + 60)])
        path = file_of(tmp_path, A)
        if when == "open":
            path.write_bytes(damage(path.read_bytes()))
            assert store.get_many([A], T0) == [None]
    if when == "closed":
        path.write_bytes(damage(path.read_bytes()))
        store = open_store(tmp_path)
    with store if when == "closed" else open_store(tmp_path) as reopened:
        assert reopened.get_many([A, C], T0) == [None, DATA]
        assert (store.stats.num_damaged, store.stats.num_errors) == (1, 0)
        assert not path.exists()
        reopened.put_many([Item(A, b"anew", T0 + 60)])
        assert reopened.get_many([A], T0) == [b"anew"]
        reopened.check()


def test_every_bit_of_the_header_is_guarded(tmp_path: Path) -> None:
    """Whichever byte of the file's header changes, the object is a miss at the next start."""
    with open_store(tmp_path) as store:
        store.put_many([Item(bytes([n]) * 32, b"x", T0 + 60) for n in range(HEADER_NBYTES)])
    for n in range(HEADER_NBYTES):
        path = file_of(tmp_path, bytes([n]) * 32)
        path.write_bytes(flip(n)(path.read_bytes()))
    with open_store(tmp_path) as store:
        assert list(store.scan()) == []
        assert store.stats.num_damaged == HEADER_NBYTES


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A symbolic link in the place of an object is removed; what it points to stays as it was."""
    outside = tmp_path / "outside"
    outside.write_bytes(encode_header(A, DATA, T0 + 60) + DATA)
    root = tmp_path / "kv"
    with open_store(root) as store:
        store.put_many([Item(A, DATA, T0 + 60)])
        file_of(root, A).unlink()
        file_of(root, A).symlink_to(outside)
        store.refresh_many({A: T0 + 90})
        assert store.get_many([A], T0) == [None]
        store.put_many([Item(A, b"anew", T0 + 60)])
        assert store.get_many([A], T0) == [b"anew"]
    assert outside.read_bytes() == encode_header(A, DATA, T0 + 60) + DATA


def test_foreign_files_are_left_and_counted(tmp_path: Path) -> None:
    """What isn't ours is never touched, not even under a name like ours in another place, and takes
    from the cap."""
    with open_store(tmp_path) as store:
        store.put_many([Item(A, DATA, T0 + 60)])
    foreign = [
        tmp_path / "notes.txt",
        tmp_path / "a" / A.hex(),
        tmp_path / "a" / "b" / "x.kv",
        tmp_path / "tmp" / "keep.me",
    ]
    foreign += [tmp_path / "deep" / "er" / A.hex(), file_of(tmp_path, A).with_name("6" * 63)]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"f" * 20_000)
    with open_store(tmp_path, 300_000) as store:
        assert store.stats.nbytes == du(tmp_path)
        store.put_many([Item(bytes([n]) * 32, bytes(50_000), T0 + 60) for n in range(10)])
        assert store.stats.nbytes == du(tmp_path) <= 300_000
        assert store.stats.num_items < 11
        store.check()
    assert [path.read_bytes() for path in foreign] == [b"f" * 20_000] * len(foreign)


def test_a_folder_full_of_foreign_files_takes_nothing(tmp_path: Path) -> None:
    """Where others fill the cap, every put is dropped and nothing else happens."""
    (tmp_path / "big").write_bytes(bytes(500_000))
    with open_store(tmp_path, 200_000) as store:
        assert store.put_many([Item(A, DATA, T0 + 60)]) == [False]
        assert store.get_many([A], T0) == [None]
        assert store.stats.num_errors == 0


def test_leftovers_of_a_dead_writer_are_removed(tmp_path: Path) -> None:
    """Unfinished files are gone after the next start and count no more."""
    with open_store(tmp_path) as store:
        before = store.stats.nbytes
    for n in range(3):
        (tmp_path / "tmp" / f"99-{n}.part").write_bytes(bytes(100_000))
    with open_store(tmp_path) as store:
        assert store.stats.nbytes == before == du(tmp_path)
        assert list((tmp_path / "tmp").iterdir()) == []


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A second store on the folder is told so, and the first goes on; after it closed the folder is
    free."""
    with open_store(tmp_path) as store:
        store.put_many([Item(A, DATA, T0 + 60)])
        with (
            pytest.raises(StoreBusy, match="another process uses the folder"),
            open_store(tmp_path),
        ):
            pass
        assert store.get_many([A], T0) == [DATA]
    with open_store(tmp_path) as store:
        assert store.get_many([A], T0) == [DATA]


def test_what_is_over_the_cap_at_start_goes_soonest_to_expire_first(tmp_path: Path) -> None:
    """A smaller cap than before is kept from the start."""
    keys = [bytes([n]) * 32 for n in range(10)]
    with open_store(tmp_path) as store:
        store.put_many([Item(key, bytes(100_000), T0 + (n * 7) % 10) for n, key in enumerate(keys)])
    with open_store(tmp_path, 500_000) as store:
        assert store.stats.nbytes == du(tmp_path) <= 500_000
        left = [found.expires_at_s - T0 for _, found in store.scan()]
        assert sorted(left) == [10 - len(left) + n for n in range(len(left))]
        assert len(left) >= 3
        store.check()


def test_the_cap_holds_at_every_instant(tmp_path: Path) -> None:
    """Under four threads that want ten times the cap, neither the folder nor the counter is ever
    above it."""
    cap = 2 * MIB
    files = MeasuredFiles(tmp_path)
    store = open_store(tmp_path, cap, files=files)
    counted: list[int] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            key = rng.randbytes(1) * 32
            store.put_many([Item(key, bytes(rng.randrange(200_000)), T0 + 60)])
            counted.append(store.stats.nbytes)
            store.get_many([key], T0)

    with store:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.check()
        assert store.stats.nbytes == du(tmp_path)
    assert files.num_looks > 300
    assert cap / 2 < files.most_nbytes <= cap
    assert max(counted) <= cap


class Watching(Files):
    """Notes what the store counts while the name of a new object is made durable."""

    def __init__(self) -> None:
        super().__init__()
        self.store: DiskStore | None = None
        self.counted: list[int] = []

    def sync_folder(self, path: Path) -> None:
        if self.store is not None:
            self.counted.append(self.store.stats.nbytes)
        super().sync_folder(path)


def test_an_object_is_not_counted_beside_its_reservation(tmp_path: Path) -> None:
    """Whoever reads the counter while a write ends sees the cap kept, too."""
    files = Watching()
    with open_store(tmp_path, 2 * MIB, files=files, fsync=True) as store:
        files.store = store
        assert store.put_many([Item(b"k" * 32, bytes(3 * MIB // 2), T0 + 60)]) == [True]
        assert files.counted
        assert max(files.counted) <= 2 * MIB


def test_folders_that_grow_are_counted(tmp_path: Path) -> None:
    """A folder of many long names takes more than one block, which counts too."""
    with open_store(tmp_path) as store:
        before = store.stats.nbytes
        store.put_many([Item(b"k" * 63 + bytes([n]), b"x", T0 + 60) for n in range(200)])
        grown = store.stats.nbytes - before - 200 * 4096
        assert store.stats.nbytes == du(tmp_path)
        assert grown > 3 * 4096 or grown == 0  # 0: a file system whose folders take nothing


class Bulky(Files):
    """A file system on which every file takes twice its length."""

    def write_new(self, path: Path, parts: Sequence[bytes], *, fsync: bool) -> int:
        return 2 * super().write_new(path, parts, fsync=fsync)


def test_files_that_take_more_than_was_reserved(tmp_path: Path) -> None:
    """What a file really occupies is what counts, and others make room for it."""
    with open_store(tmp_path, MIB, files=Bulky()) as store:
        for n in range(20):
            store.put_many([Item(bytes([n]) * 32, bytes(100_000), T0 + 60)])
            assert store.stats.nbytes <= MIB
        assert 3 <= store.stats.num_items <= 5
        store.check()


def test_expired_go_before_the_least_recently_used(tmp_path: Path) -> None:
    """Room is made by what has expired, then by what was unused for longest; expired ones go in
    time anyway."""
    with open_store(tmp_path, 500_000) as store:
        store.put_many(
            [
                Item(A, bytes(100_000), T0 + 60),
                Item(B, bytes(100_000), T0 + 60),
                Item(C, bytes(100_000), T0 + 5),
            ]
        )
        store.get_many([A], T0 + 5)
        store.expire(T0 + 5)
        store.put_many([Item(b"d" * 32, bytes(100_000), T0 + 60)])
        assert {key for key, _ in store.scan()} == {A, B, b"d" * 32}
        store.put_many([Item(b"e" * 32, bytes(200_000), T0 + 60)])
        assert {key for key, _ in store.scan()} == {A, b"d" * 32, b"e" * 32}


@pytest.mark.parametrize("eviction", ["lru", "lfu", "cost"])
def test_what_is_refreshed_is_in_use(tmp_path: Path, eviction: str) -> None:
    """What the device serves again and again is never read from here: it must not be what a full
    folder gives up first."""
    with open_store(tmp_path, 500_000, eviction=eviction) as store:
        store.put_many([Item(key, bytes(100_000), T0 + 60, 1.0) for key in (A, B, C)])
        for seconds in (61, 62, 63):
            store.refresh_many({A: T0 + seconds})
        store.put_many([Item(bytes([n]) * 32, bytes(100_000), T0 + 60, 1.0) for n in range(3)])
        assert store.find_many([A, B, C], T0) == [Found(100_000, T0 + 63), None, None]


def test_every_call_sweeps_a_little(tmp_path: Path) -> None:
    """What has expired goes a few objects at a time, until nothing but live ones is left."""
    with open_store(tmp_path) as store:
        store.put_many([Item(bytes([n]) * 32, b"x", T0 + (n >= 50) * 60) for n in range(60)])
        num_before = 60
        while store.stats.num_items > 10:
            store.expire(T0)
            assert 0 < num_before - store.stats.num_items <= 16
            num_before = store.stats.num_items
        store.expire(T0)
        assert store.stats.num_items == 10
        assert store.stats.nbytes == du(tmp_path)


def test_what_is_being_read_is_not_evicted(tmp_path: Path) -> None:
    """While a thread reads an object its bytes stay counted, and room is made by others or not at
    all."""
    files = FaultyFiles()
    reading, go_on = threading.Event(), threading.Event()
    with open_store(tmp_path, 300_000, files=files) as store:
        store.put_many([Item(A, bytes(200_000), T0 + 60)])
        got: list[bytes | None] = []
        files.hooks["read_object"] = lambda: (reading.set(), go_on.wait())  # type: ignore[dict-item, return-value]
        thread = threading.Thread(target=lambda: got.extend(store.get_many([A], T0)))
        thread.start()
        reading.wait()
        files.hooks.clear()
        assert store.put_many([Item(B, bytes(200_000), T0 + 60)]) == [False]
        store.delete_many([A])
        assert store.stats.nbytes > 200_000
        go_on.set()
        thread.join()
        assert got in ([bytes(200_000)], [None])
        assert store.stats.nbytes == du(tmp_path) < 100_000
        store.check()


def test_after_the_end_nothing_is_taken_again(tmp_path: Path) -> None:
    """A late call to a closed store neither writes nor takes the folder from the next one."""
    store = open_store(tmp_path)
    with store:
        store.put_many([Item(A, DATA, T0 + 60)])
    store.find_many([A], T0 + 1000)
    store.put_many([Item(B, DATA, T0 + 2000)])
    with open_store(tmp_path) as reopened:
        assert reopened.get_many([B], T0) == [None]


def test_too_large_for_the_cap(tmp_path: Path) -> None:
    """What can never fit is dropped without evicting anything but what was under its key."""
    with open_store(tmp_path, 200_000) as store:
        held = store.put_many(
            [Item(A, b"old", T0 + 60), Item(B, DATA, T0 + 60), Item(A, bytes(190_000), T0 + 60)]
        )
        assert held == [True, True, False]
        assert store.get_many([A, B], T0) == [None, DATA]


def test_a_folder_removed_under_way_comes_back(tmp_path: Path) -> None:
    """When somebody deletes the files, they are misses and the store goes on with new ones."""
    root = tmp_path / "kv"
    with open_store(root) as store:
        store.put_many([Item(A, DATA, T0 + 60)])
        for path in root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert store.get_many([A], T0) == [None]
        store.put_many([Item(A, DATA, T0 + 60)])
        assert store.get_many([A], T0) == [DATA]
        assert store.stats.problem is None


def test_a_refresh_that_comes_late_is_not_lost(tmp_path: Path) -> None:
    """Readers are told a later time than the writes before it have reached: what expired in between
    lives on."""
    with open_store(tmp_path) as store:
        store.put_many([Item(A, b"x", T0 + 10)])
        assert store.get_many([A], T0 + 11) == [None]
        assert store.find_many([A], T0 + 11) == [None]
        store.put_many([Item(B, b"y", T0 + 60)])
        assert store.refresh_many({A: T0 + 60}) == [True]
        assert store.get_many([A], T0 + 11) == [b"x"]
        store.expire(T0 + 61)
        assert store.stats.num_items == 0


def test_what_an_object_is_worth_survives_a_restart(tmp_path: Path) -> None:
    """By cost the cheap one goes, though it was written last and by a process that is gone."""
    key = b"n" * 32
    with DiskStore(tmp_path, nbytes=350_000, eviction="cost") as store:
        store.put_many(
            [Item(A, bytes(100_000), T0 + 60, 5.0), Item(B, bytes(100_000), T0 + 60, 1.0)]
        )
    with DiskStore(tmp_path, nbytes=350_000, eviction="cost") as store:
        store.put_many([Item(key, bytes(150_000), T0 + 60, 2.0)])
        assert {held for held, _ in store.scan()} == {A, key}
        store.check()
