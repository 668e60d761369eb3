"""The tiers of a configuration."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

import engine.store.open
from engine.config import EngineConfig
from engine.memory import Stage
from engine.store.base import Item
from engine.store.disk.kind import SsdSpec
from engine.store.disk.store import DiskStore
from engine.store.errors import StoreBusy, StoreUnsupported
from engine.store.kind import TierSpec
from engine.store.memory import MemoryStore
from engine.store.memory_kind import RamSpec
from engine.store.open import open_tiers
from engine.store.redis.kind import RedisSpec
from engine.store.redis.store import RedisStore
from tests.fakes.redis_server import RedisServer
from tests.fakes.stage import lent_nbytes

T0 = 1_700_000_000.0
A = b"a" * 32
TEXT = b"the codeword is heliotrope " * 50


def config(*tiers: TierSpec, encrypt: bool = False) -> EngineConfig:
    return EngineConfig(
        model="m", model_path="/nowhere", root_secret=b"s" * 32, tiers=tiers, encrypt=encrypt
    )


def test_nothing_configured() -> None:
    """Without tiers there are none."""
    with open_tiers(config()) as tiers:
        assert tiers == ()


def test_all_in_reading_order(tmp_path: Path, redis_server: RedisServer) -> None:
    """Each configured tier is there under its name in reports, fastest first, open, and closed at
    the end."""
    seen: list[tuple[str, int, int]] = []
    asked = config(
        RamSpec(1 << 20),
        SsdSpec(str(tmp_path), 1 << 20),
        RedisSpec(redis_server.url, prefix="open:"),
    )
    with open_tiers(asked, lambda *progress: seen.append(progress)) as tiers:
        assert [(tier.name, type(tier.store)) for tier in tiers] == [
            ("ram", MemoryStore),
            ("ssd", DiskStore),
            ("redis", RedisStore),
        ]
        for tier in tiers:
            tier.store.put_many([Item(A, tier.name.encode(), T0 + 60)])
            assert tier.store.get_many([A], T0) == [tier.name.encode()]
    assert seen == [("ssd", 0, 0)]
    with open_tiers(config(SsdSpec(str(tmp_path), 1 << 20))) as tiers:
        assert tiers[0].store.get_many([A], T0) == [b"ssd"]


def test_what_is_read_lies_in_the_stage(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megabytes read from SSD and Redis, plain or decrypted, are in memory that comes back when
    nobody needs them."""
    stages: list[Stage] = []
    monkeypatch.setattr(
        engine.store.open, "Stage", lambda nbytes: stages.append(Stage(nbytes)) or stages[-1]
    )
    payload = bytes(range(256)) * 8192
    for encrypt in (False, True):
        asked = config(
            SsdSpec(str(tmp_path / str(encrypt)), 1 << 24),
            RedisSpec(redis_server.url, timeout_s=5.0, prefix=f"staged-{encrypt}:"),
            encrypt=encrypt,
        )
        with open_tiers(asked, stage_nbytes=32 << 20) as tiers:
            for tier in tiers:
                tier.store.put_many([Item(A, payload, T0 + 60)])
                (got,) = tier.store.get_many([A], T0)
                assert got == payload
                assert lent_nbytes(stages[-1]) >= 2 << 20
                del got
                assert lent_nbytes(stages[-1]) == 0
    with open_tiers(config(RamSpec(1 << 20)), stage_nbytes=32 << 20):
        assert len(stages) == 2


def test_encryption_covers_what_lies_at_rest(tmp_path: Path, redis_server: RedisServer) -> None:
    """With `encrypt` neither the disk nor Redis sees plaintext; memory keeps it as it is."""
    asked = config(
        RamSpec(1 << 20),
        SsdSpec(str(tmp_path), 1 << 20),
        RedisSpec(redis_server.url, prefix="sealed:"),
        encrypt=True,
    )
    with open_tiers(asked) as (ram, ssd, redis), redis_server.client() as client:
        for tier in (ram, ssd, redis):
            tier.store.put_many([Item(A, TEXT, T0 + 60)])
            assert tier.store.get_many([A], T0) == [TEXT]
        assert b"heliotrope" not in client.get("sealed:" + A.hex())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert max(path.stat().st_size for path in files) > len(TEXT)
    assert not any(b"heliotrope" in path.read_bytes() for path in files)


def test_a_folder_in_use_is_waited_for(tmp_path: Path) -> None:
    """A second user of a folder is refused, or does without, says so, and takes the folder over
    when the first has ended."""
    asked = config(SsdSpec(str(tmp_path), 1 << 20))
    with open_tiers(asked), pytest.raises(StoreBusy), open_tiers(asked):
        pass
    with ExitStack() as first:
        (theirs,) = first.enter_context(open_tiers(asked))
        theirs.store.put_many([Item(A, TEXT, T0 + 60)])
        with open_tiers(asked, waits=True) as (ours,):
            assert ours.store.get_many([A], T0) == [None]
            assert "another process" in str(ours.store.stats.problem)
            first.close()
            assert ours.store.get_many([A], T0 + 10) == [TEXT]
            assert ours.store.stats.problem is None


@pytest.mark.parametrize(
    ("name", "spec", "says"),
    [
        ("redis.kind.RedisStore", RedisSpec("redis://h"), "redis"),
        ("open.EncryptedStore", None, "cryptography"),
    ],
)
def test_a_missing_library_is_named(
    name: str, spec: TierSpec | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extra the tier says what to install, and only when it is asked for."""
    monkeypatch.setattr(f"engine.store.{name}", None)
    disk = SsdSpec(str(tmp_path), 1 << 20)
    with open_tiers(config(disk)):
        pass
    asked = config(disk, encrypt=True) if spec is None else config(disk, spec)
    with (
        pytest.raises(StoreUnsupported, match=rf"package {says}.*pip install"),
        open_tiers(asked),
    ):
        pass


def test_a_bad_url_is_an_error_without_its_password() -> None:
    """A URL of no known kind is refused at start."""
    with (
        pytest.raises(StoreUnsupported) as raised,
        open_tiers(config(RedisSpec("http://:hunter2@h"))),
    ):
        pass
    assert "hunter2" not in str(raised.value)
