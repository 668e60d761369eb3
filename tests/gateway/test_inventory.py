"""Reading what is stored without an engine: sizes, entries, damage, and forgetting,
on real folders.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig
from engine.store.disk.kind import SsdSpec
from engine.store.disk.store import DiskStore
from engine.store.errors import StoreBusy, StoreError
from engine.store.redis.kind import RedisSpec
from gateway.operate.inventory import Inventory, tenant_hash
from gateway.operate.tier_maintenance import forget, open_inventory
from tests.gateway.stocked import CAP, SECRET, SPAN_NBYTES, fill, flip, objects, path_of

NOW_S = 1_700_000_000.0


def config(folder: Path, **more: object) -> EngineConfig:
    """An engine whose SSD tier is `folder`."""
    engine = EngineConfig(
        model="m", model_path="", root_secret=SECRET, tiers=(SsdSpec(str(folder), CAP),)
    )
    return msgspec.structs.replace(engine, **more)


def quiet(done_nbytes: int, total_nbytes: int) -> None:
    pass


def problems(inventory: Inventory) -> dict[str, str]:
    """Damage found: key -> what is wrong."""
    return {damage.key: damage.problem for damage in inventory.verify(quiet).damaged}


@pytest.mark.parametrize("encrypt", [False, True])
def test_contents_are_told_by_tenant(tmp_path: Path, encrypt: bool) -> None:
    """Objects and bytes of each tenant, under a hash that only the secret connects with the
    name."""
    fill(
        tmp_path, objects("a", NOW_S + 60) + objects("b", NOW_S + 60, num_spans=1), encrypt=encrypt
    )
    with open_inventory([config(tmp_path, encrypt=encrypt)]) as inventory:
        (place,) = inventory.contents()
    a, b = tenant_hash(SECRET, "a"), tenant_hash(SECRET, "b")
    assert (place.tier, place.where, place.num_objects) == ("ssd", str(tmp_path), 5)
    assert set(place.tenants) == {a, b}
    assert place.nbytes == sum(place.tenants.values())
    assert place.problem is None
    assert place.free_nbytes
    assert 2 * SPAN_NBYTES < place.tenants[a] < 2 * SPAN_NBYTES + 64 * 1024
    with open_inventory([config(tmp_path)]) as inventory:
        assert [set(place.tenants) for place in inventory.contents(tenant=b)] == [{b}]


@pytest.mark.parametrize("encrypt", [False, True])
def test_entries_are_listed_without_text(tmp_path: Path, encrypt: bool) -> None:
    """Place, offset and time left of each; spans of KV are not read for it."""
    fill(tmp_path, objects("a", NOW_S + 60) + objects("b", NOW_S - 1), encrypt=encrypt)
    with open_inventory([config(tmp_path, encrypt=encrypt)]) as inventory:
        lines = {line.tenant: line for line in inventory.entries(NOW_S)}
    assert set(lines) == {tenant_hash(SECRET, "a"), tenant_hash(SECRET, "b")}
    line = lines[tenant_hash(SECRET, "a")]
    assert (line.tier, line.position, line.offset, line.ttl_s, line.ttl_left_s) == (
        "ssd",
        "system/0",
        700,
        300.0,
        60.0,
    )
    assert lines[tenant_hash(SECRET, "b")].ttl_left_s == -1


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_whole_folder_verifies(tmp_path: Path, encrypt: bool) -> None:
    """Everything is read, progress ends at the total, nothing is reported."""
    fill(tmp_path, objects("a", NOW_S + 60), encrypt=encrypt)
    told: list[tuple[int, int]] = []
    with open_inventory([config(tmp_path, encrypt=encrypt)]) as inventory:
        found = inventory.verify(
            lambda done_nbytes, total_nbytes: told.append((done_nbytes, total_nbytes))
        )
    assert (found.num_whole, found.damaged) == (3, ())
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] == found.nbytes > 2 * SPAN_NBYTES


@pytest.mark.parametrize("encrypt", [False, True])
@pytest.mark.parametrize("at", [0, 9, 40, 100, 110, 119, 130, 5000, -1])
def test_one_changed_bit_is_found(tmp_path: Path, at: int, encrypt: bool) -> None:
    """Wherever it is: in the header, in the expiry, in the payload's own header, in the KV."""
    items = objects("a", NOW_S + 60)
    fill(tmp_path, items, encrypt=encrypt)
    flip(path_of(tmp_path, items[0].key), at)
    with open_inventory([config(tmp_path, encrypt=encrypt)]) as inventory:
        assert problems(inventory) == {items[0].key.hex(): "its bytes have changed"}


def test_other_damage_is_found(tmp_path: Path) -> None:
    """A truncated file, another object's file under a name, something that no engine wrote,
    something encrypted for others."""
    items = objects("a", NOW_S + 60)
    fill(tmp_path, items)
    first, second = path_of(tmp_path, items[0].key), path_of(tmp_path, items[1].key)
    os.truncate(first, 5000)
    shutil.copyfile(path_of(tmp_path, items[2].key), second)
    alien = items[0]._replace(key=b"alien" * 4, payload=b"not KV")
    fill(tmp_path / "other", [alien])
    with open_inventory([config(tmp_path), config(tmp_path / "other")]) as inventory:
        assert problems(inventory) == {
            items[0].key.hex(): "its bytes have changed",
            items[1].key.hex(): "its bytes have changed",
            alien.key.hex(): "not what this gateway stores under this key",
        }
    fill(tmp_path / "sealed", objects("b", NOW_S + 60, num_spans=0), encrypt=True)
    with open_inventory(
        [config(tmp_path / "sealed", root_secret=b"another secret!!")]
    ) as inventory:
        assert list(problems(inventory).values()) == ["not what this gateway stores under this key"]


def test_a_missing_folder_holds_nothing(tmp_path: Path) -> None:
    """And is not made by looking."""
    with open_inventory([config(tmp_path / "none")]) as inventory:
        assert [place.num_objects for place in inventory.contents()] == [0]
        assert inventory.verify(quiet).num_whole == 0
        assert list(inventory.entries(NOW_S)) == []
    assert not (tmp_path / "none").exists()


def test_reading_needs_no_lock_and_changes_nothing(tmp_path: Path) -> None:
    """An engine may have the folder open; damage stays for it to find."""
    items = objects("a", NOW_S + 60)
    fill(tmp_path, items)
    flip(path_of(tmp_path, items[0].key), -1)
    with DiskStore(tmp_path, nbytes=CAP) as store, open_inventory([config(tmp_path)]) as inventory:
        before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
        assert inventory.verify(quiet).num_whole == 2
        assert list(inventory.entries(NOW_S))
        assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
        assert store.stats.num_items == 3


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_tenant_is_forgotten_and_nobody_else(tmp_path: Path, encrypt: bool) -> None:
    """Its objects are gone from the disk, all others are whole; then everyone's are gone."""
    fill(tmp_path, objects("a", NOW_S + 60) + objects("b", NOW_S + 60), encrypt=encrypt)
    engines = [config(tmp_path, encrypt=encrypt)]
    assert forget(engines, "a") == 3
    with open_inventory(engines) as inventory:
        assert [set(place.tenants) for place in inventory.contents()] == [
            {tenant_hash(SECRET, "b")}
        ]
        assert inventory.verify(quiet).num_whole == 3
    assert forget(engines, "nobody") == 0
    assert forget(engines, None) == 3
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"] == []


def test_nothing_is_forgotten_behind_an_engines_back(tmp_path: Path) -> None:
    """While an engine has the folder, its index must be told: refused."""
    fill(tmp_path, objects("a", NOW_S + 60))
    with DiskStore(tmp_path, nbytes=CAP) as store:
        with pytest.raises(StoreBusy, match="another process"):
            forget([config(tmp_path)], "a")
        assert store.stats.num_items == 3


def test_a_redis_that_does_not_answer_is_not_taken_for_emptied(tmp_path: Path) -> None:
    """Forgetting says that it could not; looking finds nothing."""
    engine = config(tmp_path, tiers=(RedisSpec("redis://127.0.0.1:1", host="127.0.0.1:1"),))
    with pytest.raises(StoreError, match="redis"):
        forget([engine], None)
    with open_inventory([engine]) as inventory:
        (place,) = inventory.contents()
    assert (place.tier, place.where, place.num_objects) == ("redis", "127.0.0.1:1", 0)
    assert place.problem
