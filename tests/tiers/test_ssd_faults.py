"""An SSD that lies, is full, cannot be written or was cut off: every request gets the cold answer,
and the operator is told."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiers.hosts import Answer, Host, hosts, manual

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

SSD = "{ssd: {bytes: 1GiB, min_free: 0}}"
QUESTION = "How deep is berth 12?"


def flip_one_bit(path: Path) -> None:
    """In the middle of the file, where the KV is."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """To half of its length."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """As a crash of the machine may leave it."""
    os.truncate(path, 0)


def spoiled(host: Host, spoil: Callable[[Path], None]) -> Answer:
    """The answer of a fresh process all of whose stored objects were spoiled while none ran."""
    host.wait_until_written()
    host.kill()
    paths = host.stored()
    assert len(paths) >= 4
    for path in paths:
        spoil(path)
    host.start()
    return host.ask(manual("A"), QUESTION)


@pytest.mark.parametrize("spoil", [flip_one_bit, truncate, empty])
def test_damage_in_every_object(
    spoil: Callable[[Path], None], default_model: Path, tmp_path: Path
) -> None:
    """The answer and the bill are the cold ones, and what is computed anew is stored and read again
    by the next process."""
    with hosts(tmp_path, SSD) as (host,):
        host.start()
        cold = host.ask(manual("A"), QUESTION)
        again = spoiled(host, spoil)
        assert (again.text, again.bill) == (cold.text, cold.bill)
        host.wait_until_written()
        host.kill()
        host.start()
        warm = host.ask(manual("A"), QUESTION)
        assert (warm.text, warm.tier, warm.num_read) == (cold.text, "ssd", cold.num_written)


def test_damage_under_a_running_gateway(default_model: Path, tmp_path: Path) -> None:
    """Objects whose headers were sound at the start are found damaged when they are read: counted,
    said once, a miss."""
    with hosts(tmp_path, SSD) as (host,):
        host.start()
        cold = host.ask(manual("A"), QUESTION)
        host.wait_until_written()
        host.kill()
        host.start()
        for path in host.stored():
            if path.stat().st_size > 100_000:
                flip_one_bit(path)
        again = host.ask(manual("A"), QUESTION)
        assert again.text == cold.text
        assert again.num_read <= again.num_skipped
        host.wait_for("pcg_kv_corrupt_total", 1, tier="ssd")
        assert host.metric("pcg_tier_waits_total", length="long") == 0


@pytest.mark.parametrize("change", ["tenant", "dtype"])
def test_objects_of_others_under_our_names(
    change: str, default_model: Path, tmp_path: Path
) -> None:
    """Files of another tenant or of another number format, put under the names of ours: never read
    into an answer."""
    tenants = "tenants: [{name: a, keys: [key-a]}, {name: b, keys: [key-b]}]"
    with hosts(tmp_path, SSD, SSD, more=tenants) as (ours, theirs):
        ours.start()
        cold = ours.ask(manual("A"), QUESTION, key="key-a")
        ours.wait_until_written()
        ours.kill()
        theirs.dtype = "float32" if change == "dtype" else "bfloat16"
        theirs.start()
        theirs.ask(manual("A"), QUESTION, key="key-b" if change == "tenant" else "key-a")
        theirs.wait_until_written()
        theirs.kill()
        for own, other in zip(
            sorted(ours.stored(), key=size), sorted(theirs.stored(), key=size), strict=False
        ):
            shutil.copyfile(other, own)
        ours.start()
        again = ours.ask(manual("A"), QUESTION, key="key-a")
        assert (again.text, again.bill) == (cold.text, cold.bill)


def size(path: Path) -> int:
    return path.stat().st_size


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{ssd: {path: /dev/null/kv, bytes: 1GiB, min_free: 0}}", "ssd"),
        ("{ssd: {path: /proc/kv, bytes: 1GiB, min_free: 0}}", "ssd"),
        ("{ssd: {bytes: 1GiB, min_free: 1000TiB}}", "ssd"),
    ],
    ids=["not a folder", "read-only", "disk full"],
)
def test_a_folder_that_takes_nothing(
    section: str, words: str, default_model: Path, tmp_path: Path
) -> None:
    """The gateway starts and answers as without it; drops are counted, the tier is shown as down,
    and the log says why."""
    with hosts(tmp_path, section) as (host,):
        host.start()
        cold = host.ask(manual("A"), QUESTION)
        warm = host.ask(manual("A"), QUESTION)
        assert (warm.text, warm.tier) == (cold.text, "device")
        host.wait_for("pcg_kv_put_drops_total", 1, tier="ssd")
        assert host.metric("pcg_store_up", store="ssd") == 0
        assert len(host.log_lines(f"the {words} tier does not work")) == 1


def test_kill_nine_while_writing(default_model: Path, tmp_path: Path) -> None:
    """Killed at the moment of the first object, a gateway comes back with what was whole and
    computes the rest."""
    with hosts(tmp_path, SSD) as (host,):
        host.start()
        cold = host.ask(manual("A"), QUESTION)
        host.wait_until_written()
        for edition in ("B", "C"):
            host.ask(manual(edition), QUESTION, max_tokens=1)
            host.kill()
            host.start()
            again = host.ask(manual("A"), QUESTION)
            assert (again.text, again.num_read) == (cold.text, cold.num_written)
        assert list((host.home / "kv").rglob("*.part")) == []
