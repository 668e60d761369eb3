"""`pcg cache`: the same answers from a running gateway and from the files of one that has ended."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from engine.store.base import PINNED_UNTIL_S, Item
from engine.store.disk.reader import FolderObjects
from engine.store.disk.store import DiskStore
from gateway.cli.admin_client import is_gateway
from gateway.cli.main import main
from gateway.config import read_settings, root_secret
from gateway.operate.inventory import Inventory
from tests.gateway.serving import serving
from tests.gateway.stocked import CAP, fill, flip, objects, path_of
from tests.gateway.test_cache_admin import FlushableBackend

LATER_S = 4_000_000_000.0
POLICY = """
server: {port: 1}
models: [{name: m}]
tenants: [{name: acme, keys: [key-of-acme]}, {name: zeta, keys: [key-of-zeta]}]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a policy, whose SSD tier holds one prompt of each tenant; no gateway runs at the
    policy's address."""
    for name in ("PORT", "PCG_HOST", "PCG_TEST_CLOCK", "PCG_SECRET_FILE", "PCG_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PCG_HOME", str(tmp_path))
    monkeypatch.setenv("PCG_POLICY", str(tmp_path / "policy.yaml"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "policy.yaml").write_text(POLICY)
    fill(folder(tmp_path), contents("acme") + contents("zeta"))
    return tmp_path


def folder(home: Path) -> Path:
    """Where the model's KV is."""
    return home / "kv" / "m"


def secret() -> bytes:
    return root_secret(read_settings())


def contents(tenant: str) -> list[Item]:
    return objects(tenant, LATER_S, secret=secret())


def run(*arguments: str) -> int:
    """The exit status of `pcg cache ARGUMENTS`."""
    try:
        main(("cache", *arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_stat_shows_sizes_and_tenants(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the folder, with the names of tenants the policy knows."""
    assert run("stat") == 0
    shown = capsys.readouterr().out
    assert re.search(r"ssd +.*/kv/m +6 ", shown)
    assert "acme" in shown
    assert "8GiB" in shown
    assert "works" in shown


def test_stat_says_what_is_wrong(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A disk with too little room, and a Redis that does not answer."""
    (home / "policy.yaml").write_text(
        POLICY + "tiers: {ssd: {min_free: 1000TiB}, redis: {url: 'redis://127.0.0.1:1'}}"
    )
    assert run("stat") == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["min_free" in line for line in lines if line.strip().startswith("ssd")] == [True]
    assert ["answer" in line for line in lines if line.strip().startswith("redis")] == [True]


def test_ls_shows_entries(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line per entry: place, tokens, class."""
    assert run("ls") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "system/0" in line]
    assert sorted(line.split()[1] for line in lines) == ["acme", "zeta"]
    assert all(line.split()[3:5] == ["700", "5m"] for line in lines)


def test_nothing_is_cut_off(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a narrow terminal, or in a pipe, the key is whole, and names go on in the next line."""
    monkeypatch.setenv("COLUMNS", "60")
    for verb in ("ls", "stat"):
        assert run(verb) == 0
        shown = capsys.readouterr().out
        assert "\N{HORIZONTAL ELLIPSIS}" not in shown
        assert verb == "stat" or contents("acme")[-1].key[8:].hex()[:12] in shown


def test_verify_ends_by_what_it_finds(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 while everything is whole; 1, with the object's name, once it is not."""
    assert run("verify") == 0
    assert "6 objects whole" in capsys.readouterr().out
    key = contents("acme")[0].key
    flip(path_of(folder(home), key), 4000)
    assert run("verify") == 1
    shown = capsys.readouterr().out
    assert key.hex() in "".join(shown.split())
    assert "1 damaged" in shown


def test_flush_forgets_a_tenant_and_verify_proves_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then everything, folders of models that are no longer served included."""
    assert run("flush", "--tenant", "acme") == 0
    assert "forgot 3 objects of acme" in capsys.readouterr().out
    assert run("stat") == 0
    shown = capsys.readouterr().out
    assert "zeta" in shown
    assert "acme" not in shown
    fill(home / "kv" / "former", contents("acme"))
    assert run("flush") == 0
    assert "forgot 6 objects" in capsys.readouterr().out
    assert run("verify") == 0
    assert "0 objects whole" in capsys.readouterr().out


def test_flush_needs_the_gateway_that_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in use is not emptied behind the engine's back; the message says how to reach it."""
    with DiskStore(folder(home), nbytes=CAP):
        assert run("flush") == 1
    assert "--url" in capsys.readouterr().err


def test_pin_needs_a_gateway_that_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only an engine can pin; the message says how to reach one."""
    for verb in ("pin", "unpin"):
        assert run(verb, "abcd") == 1
        assert "--url" in capsys.readouterr().err


async def test_a_running_gateway_pins(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the key that `ls` shows; what it refuses is an error in its own words."""
    assert run("flush", "--tenant", "acme") == 0
    capsys.readouterr()
    backend = FlushableBackend()
    stored = contents("zeta")[-1]
    async with serving(
        backend,
        POLICY,
        inventory=Inventory((FolderObjects("ssd", folder(home)),)),
        root_secret=secret(),
    ) as served:
        options = ["--url", served.url]
        assert await asyncio.to_thread(run, "ls", *options) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "system/0" in line)
        key = line.split()[-1]
        assert stored.key[8:].hex().startswith(key)
        for verb in ("pin", "unpin"):
            assert await asyncio.to_thread(run, verb, key, *options) == 0
            assert (
                capsys.readouterr().out
                == f"{verb}ned {key}; pinned entries take 1.0 kB of 4.0 kB\n"
            )
        assert await asyncio.to_thread(run, "pin", "00000000", *options) == 1
        assert "no live entry" in capsys.readouterr().err
    assert backend.pins == [(stored.key, True), (stored.key, False)]


def test_ls_shows_what_is_pinned(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the place of the time left, which it does not have."""
    fill(folder(home), objects("acme", PINNED_UNTIL_S, secret=secret()))
    assert run("ls") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "system/0" in line]
    assert sorted((line[1], line[5] == "pinned") for line in lines) == [
        ("acme", True),
        ("zeta", False),
    ]


@pytest.mark.parametrize("key", [None, "key-of-acme"])
async def test_a_running_gateway_is_asked(
    home: Path, capsys: pytest.CaptureFixture[str], key: str | None
) -> None:
    """With the operator's key from the secret file, or with a tenant's: then about that tenant
    alone."""
    backend = FlushableBackend()
    inventory = Inventory((FolderObjects("ssd", folder(home)),))
    more = ["--key", key] if key else []
    async with serving(backend, POLICY, inventory=inventory, root_secret=secret()) as served:
        for verb, number in (
            ("stat", "cache_hits_total"),
            ("ls", "system/0"),
            ("verify", f"{3 if key else 6} objects whole"),
        ):
            assert await asyncio.to_thread(run, verb, "--url", served.url, *more) == 0
            shown = capsys.readouterr().out
            assert number in shown
            assert verb == "verify" or ("zeta" in shown) == (key is None)
        assert await asyncio.to_thread(run, "flush", "--url", served.url, *more) == 0
    assert "forgot 7 blocks" in capsys.readouterr().out
    assert backend.flushed == ["acme" if key else None]


async def test_no_proxy_stands_between(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway on this machine is asked itself, whatever proxy the environment names: it would see
    the operator's key."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    async with serving(FlushableBackend(), POLICY, root_secret=secret()) as served:
        assert await asyncio.to_thread(is_gateway, served.url)
        assert await asyncio.to_thread(run, "stat", "--url", served.url) == 0
    assert "cache_hits_total" in capsys.readouterr().out


async def test_what_is_no_gateway_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another server at the address, whatever it speaks, and an address that is none; at the
    policy's own, files are read."""
    replies = [b"-ERR unknown command\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"]

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(replies[0])
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        (home / "policy.yaml").write_text(POLICY.replace("port: 1", f"port: {port}"))
        assert await asyncio.to_thread(run, "stat") == 0
        assert "kv/m" in capsys.readouterr().out
        while replies:
            assert await asyncio.to_thread(run, "stat", "--url", f"http://127.0.0.1:{port}") == 1
            assert "is no gateway" in capsys.readouterr().err
            del replies[0]
    for url in ("no-url", "http://[::1"):
        assert run("stat", "--url", url) == 1
        assert "is no gateway" in capsys.readouterr().err
    assert run("stat", "--url", "http://127.0.0.1:8080", "--key", "secret\nkey") == 1
    assert "secret" not in capsys.readouterr().err


def test_what_an_ssd_tier_left_behind_is_forgotten(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once the policy has none any more its folder is still shown, and emptied by a flush."""
    (home / "policy.yaml").write_text(POLICY + "tiers: {ssd: {bytes: 0}}")
    assert run("ls") == 0
    assert "system/0" in capsys.readouterr().out
    assert run("flush") == 0
    assert "forgot 6 objects" in capsys.readouterr().out


def test_a_policy_of_upstreams_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What models left behind that are no longer served is shown and forgotten; no folder is made
    for a model."""
    (home / "policy.yaml").write_text(
        "server: {port: 1}\nmodels: []\nbackends: [{}]\n" + POLICY.splitlines()[-1]
    )
    assert run("ls") == 0
    assert "system/0" in capsys.readouterr().out
    assert run("flush") == 0
    assert "forgot 6 objects" in capsys.readouterr().out
    assert [path.name for path in (home / "kv").iterdir()] == ["m"]


async def test_refusals_are_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the gateway answers, and that none answers, in one line."""
    async with serving(FlushableBackend(), POLICY, root_secret=b"of another gateway") as served:
        assert await asyncio.to_thread(run, "stat", "--url", served.url) == 1
        assert "invalid API key" in capsys.readouterr().err
    assert await asyncio.to_thread(run, "stat", "--url", served.url) == 1
    assert "does not answer" in capsys.readouterr().err
