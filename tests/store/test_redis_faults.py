"""A Redis server that fails in every way we could think of: misses, little waiting, one line,
and back by itself.
"""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from engine.store.base import Item, delete_prefix
from engine.store.redis.store import (
    MAX_OWED,
    MAX_OWED_AT_ONCE,
    NUM_FAILURES,
    OPEN_S,
    WRITE_PATIENCE,
    RedisStore,
)
from tests.fakes.clock import FakeClock
from tests.fakes.redis_server import Fault, FaultProxy, RedisServer

T0 = 1_700_000_000.0
TIMEOUT_S = 0.25
A, B = b"a" * 32, b"b" * 32
DATA = random.Random(1).randbytes(500_000)
FAULTS: tuple[Fault, ...] = ("refuse", "hang", "slow", "reset", "garbage")


@dataclass(frozen=True, slots=True)
class Setup:
    """A store behind a proxy before a real server that holds A."""

    store: RedisStore
    proxy: FaultProxy
    server: RedisServer
    clock: FakeClock


@pytest.fixture
def setup(redis_server: RedisServer) -> Iterator[Setup]:
    clock = FakeClock()
    with redis_server.client() as client:
        client.flushall()
    with (
        FaultProxy(redis_server.path) as proxy,
        RedisStore(proxy.url, timeout_s=TIMEOUT_S, clock=clock) as store,
    ):
        store.put_many([Item(A, DATA, T0 + 60)])
        yield Setup(store, proxy, redis_server, clock)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_server_costs_little_and_comes_back(
    setup: Setup, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of a few calls waits for at most the timeout, then none waits; the counters tell, and
    one line; then it works."""
    caplog.set_level(logging.INFO, "engine.store")
    store, proxy = setup.store, setup.proxy
    proxy.fault = fault
    waits: list[float] = []
    for _ in range(100):
        begin_s = time.perf_counter()
        assert store.get_many([A], T0) == [None]
        assert store.find_many([A], T0) == [None]
        waits.append(time.perf_counter() - begin_s)
    assert sum(waits) < NUM_FAILURES * TIMEOUT_S * 2 + 1.0
    assert store.stats.num_errors == NUM_FAILURES
    assert store.stats.problem is not None
    assert store.put_many([Item(B, DATA, T0 + 60)]) == [False]
    proxy.fault = "none"
    assert store.get_many([A], T0) == [None]
    setup.clock.advance(OPEN_S)
    assert store.get_many([A, B], T0) == [DATA, None]
    assert store.stats.problem is None
    levels = [record.levelno for record in caplog.records if record.name == "engine.store"]
    assert levels == [logging.WARNING, logging.INFO]


@pytest.mark.parametrize("num_before_reset", [0, 9, 200_000])
def test_a_large_reply_that_breaks_off_is_a_miss(setup: Setup, num_before_reset: int) -> None:
    """Wherever the connection ends within megabytes that are received in place; the next call
    works."""
    store, proxy, large = setup.store, setup.proxy, DATA * 6
    store.put_many([Item(B, large, T0 + 60)])
    proxy.num_before_reset, proxy.fault = num_before_reset, "reset"
    assert store.get_many([B], T0) == [None]
    proxy.fault = "none"
    assert store.get_many([A, B], T0) == [DATA, large]
    proxy.fault = "hang"
    assert store.get_many([B], T0) == [None]
    assert store.stats.num_errors == 2


def test_a_large_reply_is_asked_for_once(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """In however many pieces it comes: each call waits for the interpreter."""
    large, sizes = DATA * 20, []
    receive = socket.socket.recv_into

    def recv_into(sock: socket.socket, *args: Any) -> int:
        sizes.append(receive(sock, *args))
        return sizes[-1]

    monkeypatch.setattr(socket.socket, "recv_into", recv_into)
    with RedisStore(setup.proxy.url, timeout_s=5) as store:
        store.put_many([Item(B, large, T0 + 60)])
        assert store.get_many([B], T0) == [large]
    assert len(sizes) == 1
    assert sizes[0] > len(large) - (1 << 17), "all but what came with the reply's beginning"


def test_asking_nothing_proves_nothing(setup: Setup) -> None:
    """A call without keys tells the store the time: it says nothing of a server that does not
    answer."""
    store, proxy = setup.store, setup.proxy
    proxy.fault = "refuse"
    for _ in range(NUM_FAILURES):
        assert store.get_many([A], T0) == [None]
    setup.clock.advance(OPEN_S)
    store.expire(T0 + 1)
    assert store.stats.problem is not None
    assert store.get_many([A], T0) == [None]
    assert store.stats.num_errors == NUM_FAILURES + 1, "one probe, which failed"
    assert store.get_many([A], T0) == [None]
    assert store.stats.num_errors == NUM_FAILURES + 1, "and the breaker is open again"


@pytest.mark.parametrize("num_bytes", [0, 1, 5, 124, 130, 131, 140, 300_000])
def test_a_reset_in_the_middle_of_a_reply(setup: Setup, num_bytes: int) -> None:
    """Wherever the connection breaks, the call is a miss and the next one sees none of the rest."""
    setup.proxy.num_before_reset = num_bytes
    setup.proxy.fault = "reset"
    assert setup.store.get_many([A, B], T0) in ([None, None], [DATA, None])
    setup.proxy.fault = "none"
    assert setup.store.get_many([B, A], T0) == [None, DATA]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_write_that_fails_is_dropped(setup: Setup, fault: Fault) -> None:
    """A put without an answer is dropped; its key is a miss here until the server has been told to
    forget it, then free."""
    store = setup.store
    setup.proxy.num_before_reset, setup.proxy.delay_s = 2, 60.0
    setup.proxy.fault = fault
    begin_s = time.perf_counter()
    assert store.put_many([Item(A, b"newer", T0 + 60)]) == [False]
    assert time.perf_counter() - begin_s < TIMEOUT_S * WRITE_PATIENCE + 1.0
    setup.proxy.fault = "none"
    setup.clock.advance(OPEN_S)
    assert store.get_many([A], T0) == [None]
    store.put_many([Item(A, b"newest", T0 + 60)])
    assert store.get_many([A], T0) == [b"newest"]


def test_deletes_are_owed(setup: Setup) -> None:
    """What is deleted while the server is away is a miss at once, and gone from the server when it
    is back."""
    store = setup.store
    setup.proxy.fault = "refuse"
    store.delete_many([A])
    setup.proxy.fault = "none"
    setup.clock.advance(OPEN_S)
    assert store.find_many([A], T0) == [None]
    assert store.find_many([B], T0) == [None]
    with setup.server.client() as client:
        assert client.keys("*") == []


def test_what_is_owed_is_a_miss_until_it_is_paid(setup: Setup) -> None:
    """Where more deletes are owed than go out at once, the last of them is not read in between."""
    store = setup.store
    setup.proxy.fault = "refuse"
    store.delete_many([*(n.to_bytes(4, "big") for n in range(2 * MAX_OWED_AT_ONCE)), A])
    setup.proxy.fault = "none"
    setup.clock.advance(OPEN_S)
    assert store.get_many([A], T0) == [None]
    with setup.server.client() as client:
        assert len(client.keys("*")) == 1
    assert [store.find_many([A], T0) for _ in range(3)] == [[None]] * 3
    with setup.server.client() as client:
        assert client.keys("*") == []


@pytest.mark.parametrize("fault", FAULTS)
def test_half_a_list_is_no_list(setup: Setup, fault: Fault) -> None:
    """Who wants to forget what the server has learns that it did not tell all, also while nobody
    asks it any more."""
    setup.proxy.fault = fault
    for _ in range(NUM_FAILURES + 1):
        with pytest.raises(OSError, match="does not tell"):
            delete_prefix(setup.store, b"a")
    setup.proxy.fault = "none"
    setup.clock.advance(OPEN_S)
    assert delete_prefix(setup.store, b"a") == 1
    assert setup.store.find_many([A], T0) == [None]


def test_what_is_owed_is_not_forgotten_yet(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that went away after it had told what it has was not told to forget it."""
    listed = list(setup.store.scan())
    setup.proxy.fault = "refuse"
    with monkeypatch.context() as earlier:
        earlier.setattr(setup.store, "scan", lambda: iter(listed))
        with pytest.raises(OSError, match="could not be deleted"):
            delete_prefix(setup.store, b"a")
    setup.proxy.fault = "none"
    setup.clock.advance(OPEN_S)
    delete_prefix(setup.store, b"a")
    with setup.server.client() as client:
        assert client.keys("*") == []


def test_owed_deletes_are_bounded(setup: Setup) -> None:
    """A server that is away for long costs bounded memory."""
    setup.proxy.fault = "refuse"
    setup.store.delete_many([n.to_bytes(4, "big") for n in range(MAX_OWED + 1000)])
    assert len(setup.store._owed) == MAX_OWED


def test_refreshes_that_fail_are_counted(setup: Setup) -> None:
    """The old expiry stays, and the operator can see how many refreshes were lost."""
    setup.proxy.fault = "refuse"
    assert setup.store.refresh_many({A: T0 + 600}) == [False]
    setup.proxy.fault = "none"
    setup.clock.advance(OPEN_S)
    found = setup.store.find_many([A], T0)[0]
    assert found is not None
    assert found.expires_at_s == T0 + 60


def test_only_one_call_probes(setup: Setup) -> None:
    """Of many calls at a server that still hangs, one per pause waits."""
    setup.proxy.fault = "hang"
    for _ in range(NUM_FAILURES):
        setup.store.find_many([A], T0)
    for _ in range(3):
        setup.clock.advance(OPEN_S)
        for _ in range(10):
            setup.store.find_many([A], T0)
    assert setup.store.stats.num_errors == NUM_FAILURES + 3
