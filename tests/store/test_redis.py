"""The Redis store against a real server: shared, tampered with, forbidden, full, restarted,
and as a cluster.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engine.store.base import Found, Item
from engine.store.errors import StoreUnsupported
from engine.store.object import HEADER_NBYTES, encode_header
from engine.store.redis.server import Command, RedisConnection, Reply
from engine.store.redis.store import OPEN_S, UNKNOWN_TIME_PX_MS, RedisStore
from tests.fakes.clock import FakeClock
from tests.fakes.redis_server import RedisServer
from tests.fakes.tls_proxy import tls_proxy

T0 = 1_700_000_000.0
A, B = b"a" * 32, b"b" * 32
DATA = random.Random(1).randbytes(5000)
NAME_A = "pcg:" + A.hex()


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    """The shared server, empty."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server


def test_two_hosts_share(server: RedisServer) -> None:
    """What one gateway put another gets, with the expiry as refreshed by either; another prefix
    sees nothing."""
    with (
        RedisStore(server.url, timeout_s=5) as one,
        RedisStore(server.url, timeout_s=5) as two,
        RedisStore(server.url, timeout_s=5, prefix="other:") as other,
    ):
        one.put_many([Item(A, DATA, T0 + 60)])
        two.find_many([A], T0)
        two.refresh_many({A: T0 + 600})
        assert one.get_many([A], T0 + 599) == [DATA]
        assert other.get_many([A], T0) == [None]
        two.delete_many([A])
        assert one.get_many([A], T0) == [None]
        assert list(one.scan()) == []


def test_the_server_forgets_a_minute_after_the_expiry(server: RedisServer) -> None:
    """PX is what remains and a minute, moved by a refresh; a day where no time is known yet."""
    with RedisStore(server.url, timeout_s=5) as store, server.client() as client:
        store.put_many([Item(B, DATA, T0 + 60)])
        assert 0 <= UNKNOWN_TIME_PX_MS - client.pttl("pcg:" + B.hex()) < 60_000
        store.find_many([A], T0)
        store.put_many([Item(A, DATA, T0 + 300)])
        assert 0 <= 360_000 - client.pttl(NAME_A) < 60_000
        store.refresh_many({A: T0 + 3600})
        assert 0 <= 3_660_000 - client.pttl(NAME_A) < 60_000


def test_a_refresh_of_nothing_leaves_no_stump(server: RedisServer) -> None:
    """Refreshing what the server does not have creates nothing there."""
    with RedisStore(server.url, timeout_s=5) as store, server.client() as client:
        store.refresh_many({A: T0 + 60})
        assert client.keys("*") == []


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    **{f"flip-{at}": flip(at) for at in range(0, HEADER_NBYTES, 7)},
    **{f"flip-payload-{at}": flip(HEADER_NBYTES + at) for at in (0, 2500, 4999)},
    **{
        f"cut-{nbytes}": lambda data, nbytes=nbytes: data[:nbytes]
        for nbytes in (1, 119, 120, 121, 5119)
    },  # type: ignore[misc]
    "longer": lambda data: data + b"\0",
    "foreign": lambda data: b"this is no object at all" * 100,
    "other-key": lambda data: encode_header(B, DATA, T0 + 60) + DATA,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_a_miss(server: RedisServer, damage: Callable[[bytes], bytes]) -> None:
    """A value that is not exactly what was put is a miss, whatever was changed, and a new put
    replaces it."""
    with RedisStore(server.url, timeout_s=5) as store, server.client() as client:
        store.put_many([Item(A, DATA, T0 + 60), Item(B, DATA, T0 + 60)])
        client.set(NAME_A, damage(client.get(NAME_A)))
        assert store.get_many([A, B], T0) == [None, DATA]
        assert store.stats.num_damaged == 1
        store.put_many([Item(A, b"anew", T0 + 60)])
        assert store.get_many([A], T0) == [b"anew"]


HEADLESS = [
    name for name in DAMAGE if not name.startswith(("flip-payload", "cut-12", "cut-5", "longer"))
]


@pytest.mark.parametrize("damage", [DAMAGE[name] for name in HEADLESS], ids=HEADLESS)
def test_a_damaged_header_is_seen_without_reading_all(
    server: RedisServer, damage: Callable[[bytes], bytes]
) -> None:
    """What does not begin as it should is not found, and is counted."""
    with RedisStore(server.url, timeout_s=5) as store, server.client() as client:
        store.put_many([Item(A, DATA, T0 + 60), Item(B, DATA, T0 + 60)])
        client.set(NAME_A, damage(client.get(NAME_A)))
        assert store.find_many([A, B, b"c"], T0) == [None, Found(len(DATA), T0 + 60), None]
        assert store.stats.num_damaged == 1


def test_a_key_of_another_type_is_a_miss(server: RedisServer) -> None:
    """A list under our name is a miss for find, get and scan, and no reason to stop asking."""
    with RedisStore(server.url, timeout_s=5) as store, server.client() as client:
        client.rpush(NAME_A, "x")
        client.set("pcg:nohex", "x")
        store.put_many([Item(B, DATA, T0 + 60)])
        assert store.refresh_many({A: T0 + 60}) == [False]
        assert store.find_many([A], T0) == [None]
        assert store.get_many([A, B], T0) == [None, DATA]
        assert store.stats.num_damaged == 0
        assert [key for key, _ in store.scan()] == [B]


def test_a_refresh_extends_a_newer_payload(server: RedisServer) -> None:
    """A refresh that crosses another host's put of the same key leaves a sound value."""
    with RedisStore(server.url, timeout_s=5) as one, RedisStore(server.url, timeout_s=5) as two:
        one.put_many([Item(A, b"older", T0 + 60)])
        two.put_many([Item(A, DATA, T0 + 90)])
        one.find_many([A], T0)
        one.refresh_many({A: T0 + 600})
        assert two.get_many([A], T0 + 599) == [DATA]


def test_a_write_is_one_round_trip(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of a batch is there already, and so is a refresh."""
    batches: list[int] = []
    run = RedisConnection.run

    def counted(self: RedisConnection, commands: Sequence[Command]) -> list[Reply]:
        batches.append(len(commands))
        return run(self, commands)

    monkeypatch.setattr(RedisConnection, "run", counted)
    with RedisStore(server.url, timeout_s=5) as store:
        for ttl_s in (60, 30, 90):
            items = [Item(A, DATA, T0 + ttl_s), Item(B, DATA, T0 + ttl_s)]
            assert store.put_many(items, only_longer=True) == [True, True]
        assert store.refresh_many({A: T0 + 99, B: T0 + 1}, only_longer=True) == [True, True]
        assert batches == [4, 4, 4, 2]
        assert store.find_many([A, B], T0) == [Found(5000, T0 + 99), Found(5000, T0 + 90)]


def test_a_host_that_was_faster_is_not_cut_short(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host's put between the two commands of ours stays, and ours is told as not held."""
    with RedisStore(server.url, timeout_s=5) as one, RedisStore(server.url, timeout_s=5) as two:
        run = one._writes.run

        def crossed(commands: Sequence[Command]) -> list[Reply]:
            first = run(commands[:1])
            assert two.put_many([Item(A, DATA, T0 + 600)], only_longer=True) == [True]
            return [*first, *run(commands[1:])]

        with monkeypatch.context() as crossing:
            crossing.setattr(one._writes, "run", crossed)
            assert one.put_many([Item(A, b"mine", T0 + 60)], only_longer=True) == [False]
        assert one.get_many([A], T0 + 599) == [DATA]
        assert one.refresh_many({A: T0 + 60}, only_longer=True) == [True]
        assert one.get_many([A], T0 + 599) == [DATA]


LASTING = [name for name in HEADLESS if name.startswith("flip") or name == "cut-119"]


@pytest.mark.parametrize("damage", [DAMAGE[name] for name in LASTING], ids=LASTING)
def test_damage_that_would_last_longer_gives_way(
    server: RedisServer, damage: Callable[[bytes], bytes]
) -> None:
    """No script knows the checksums: what outlives a put by a damaged header is replaced."""
    with RedisStore(server.url, timeout_s=5) as store, server.client() as client:
        store.put_many([Item(A, DATA, T0 + 600)])
        client.set(NAME_A, damage(client.get(NAME_A)))
        assert store.put_many([Item(A, b"anew", T0 + 60)], only_longer=True) == [True]
        assert store.get_many([A], T0) == [b"anew"]


def test_a_server_without_scripts(tmp_path: Path) -> None:
    """It stores what is new; what is there can be neither replaced nor refreshed, which is said."""
    with (
        RedisServer(tmp_path) as server,
        server.client() as client,
        RedisStore(server.url, timeout_s=5) as store,
    ):
        client.acl_setuser(
            "default", enabled=True, nopass=True, commands=["+@all", "-eval"], keys=["*"]
        )
        assert store.put_many([Item(A, DATA, T0 + 60)], only_longer=True) == [True]
        assert store.put_many([Item(A, DATA, T0 + 90)], only_longer=True) == [False]
        assert store.refresh_many({A: T0 + 90}) == [False]
        assert store.find_many([A], T0) == [Found(len(DATA), T0 + 60)]
        assert store.stats.problem == "put: NoPermissionError"


def test_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The password of the URL opens the server; a wrong one is a tier that does not work, named
    without secrets."""
    with RedisServer(tmp_path, password="right horse") as server:
        with RedisStore(f"unix://:right%20horse@{server.path}", timeout_s=5) as store:
            store.put_many([Item(A, DATA, T0 + 60)])
            assert store.get_many([A], T0) == [DATA]
        clock = FakeClock()
        for url in (f"unix://:wrong-horse@{server.path}", f"unix://{server.path}"):
            with RedisStore(url, timeout_s=5, clock=clock) as store:
                assert store.put_many([Item(B, DATA, T0 + 60)]) == [False]
                assert store.get_many([A, B], T0) == [None, None]
                assert store.find_many([A], T0) == [None]
                with pytest.raises(OSError, match="does not tell"):
                    list(store.scan())
                assert store.stats.problem is not None
                assert "Authentication" in store.stats.problem
    assert "horse" not in caplog.text
    assert len(caplog.records) == 2


def test_a_server_that_lets_nobody_list(tmp_path: Path) -> None:
    """A refusal to list is said, and is no silence: reads and writes go on."""
    with (
        RedisServer(tmp_path) as server,
        server.client() as client,
        RedisStore(server.url, timeout_s=5) as store,
    ):
        client.acl_setuser(
            "default", enabled=True, nopass=True, commands=["+@all", "-scan"], keys=["*"]
        )
        for _ in range(5):
            with pytest.raises(OSError, match="does not tell"):
                list(store.scan())
        assert store.stats.problem == "scan: NoPermissionError"
        store.put_many([Item(A, DATA, T0 + 60)])
        assert store.get_many([A], T0) == [DATA]
        client.acl_setuser("default", commands=["+scan"])
        assert [key for key, _ in store.scan()] == [A]
        assert store.stats.problem is None


def test_out_of_memory(tmp_path: Path) -> None:
    """What the server refuses is dropped and leaves nothing under its key; reads go on, and so do
    writes once there is room."""
    blob = random.Random(2).randbytes(1 << 20)
    keys = [bytes([n]) * 32 for n in range(12)]
    with (
        RedisServer(tmp_path, maxmemory="6mb") as server,
        RedisStore(server.url, timeout_s=5) as store,
    ):
        store.put_many([Item(keys[0], b"old", T0 + 60)])
        held = store.put_many([Item(key, blob, T0 + 60) for key in [*keys[1:], keys[0]]])
        got = store.get_many(keys, T0)
        assert all(payload in (None, blob) for payload in got)
        assert got[0] is None
        assert got[1] == blob
        assert [*held[-1:], *held[:-1]] == [payload is not None for payload in got]
        assert held.count(False) > 3
        assert store.stats.problem == "put: OutOfMemoryError"
        store.delete_many(keys)
        store.put_many([Item(keys[0], blob, T0 + 60)])
        assert store.get_many(keys[:2], T0) == [blob, None]
        assert store.stats.problem is None


def test_a_server_that_comes_back_empty(tmp_path: Path) -> None:
    """After a restart everything is a miss and new puts work, without anybody's help."""
    clock = FakeClock()
    with RedisServer(tmp_path) as server, RedisStore(server.url, timeout_s=5, clock=clock) as store:
        store.put_many([Item(A, DATA, T0 + 60)])
        server.kill()
        for _ in range(10):
            assert store.get_many([A], T0) == [None]
        assert store.stats.problem is not None
        server.start()
        clock.advance(OPEN_S)
        assert store.get_many([A], T0) == [None]
        store.put_many([Item(A, DATA, T0 + 60)])
        assert store.get_many([A], T0) == [DATA]
        assert store.stats.problem is None


def test_cluster(tmp_path: Path) -> None:
    """All of the contract's calls work on a cluster, whose keys are in many slots."""
    keys = [bytes([n]) * 32 for n in range(20)]
    with (
        RedisServer(tmp_path, cluster=True, password="p") as server,
        RedisStore(server.url, timeout_s=5) as store,
    ):
        store.put_many([Item(key, key * 100, T0 + 60) for key in keys])
        assert store.refresh_many(dict.fromkeys(keys, T0 + 90)) == [True] * 20
        assert store.put_many([Item(keys[0], b"", T0 + 60)], only_longer=True) == [True]
        assert store.get_many(keys, T0 + 80) == [key * 100 for key in keys]
        assert all(store.find_many(keys, T0 + 80))
        assert {key for key, _ in store.scan()} == set(keys)
        store.delete_many(keys)
        assert store.get_many(keys, T0) == [None] * 20
        assert store.stats.num_errors == 0


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    """Its client connects at the first use only, and its absence is a miss."""
    with RedisServer(tmp_path, cluster=True) as server:
        url = server.url
    with RedisStore(url, timeout_s=0.05) as store:
        store.put_many([Item(A, DATA, T0 + 60)])
        assert store.get_many([A], T0) == [None]
        assert store.stats.problem is not None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis",
        "http://host",
        "redis://",
        "memcached://x",
        "redis://host:port",
        "redis://h/?db=x",
    ],
)
def test_urls_that_make_no_sense(url: str) -> None:
    """They are refused before anything is asked, without repeating them."""
    with pytest.raises(StoreUnsupported) as raised:
        RedisStore(url)
    assert "host" not in str(raised.value)


def test_tls(server: RedisServer, tmp_path: Path) -> None:
    """Megabytes come whole over TLS, in whatever pieces; nothing comes of a server that no known
    authority vouches for."""
    large, authority = DATA * 600, tmp_path / "authority.pem"
    with tls_proxy(server.path, authority) as port:
        url = f"rediss://127.0.0.1:{port}"
        with RedisStore(f"{url}?ssl_ca_certs={authority}", timeout_s=5) as store:
            store.put_many([Item(A, large, T0 + 60), Item(B, DATA, T0 + 60)])
            assert store.get_many([A, B], T0) == [large, DATA]
        with RedisStore(url, timeout_s=5) as stranger:
            assert stranger.get_many([A], T0) == [None]
            assert stranger.stats.problem is not None


@pytest.mark.parametrize(
    "url",
    ["redis://h", "rediss://u:p@h:1/2", "valkey://h", "valkeys://h", "redis+cluster://h:7000"],
)
def test_urls_that_are_known(url: str) -> None:
    """Each kind of URL makes a client, which has not connected."""
    RedisConnection(url, timeout_s=0.05).close()
