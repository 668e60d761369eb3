"""A Redis that is gone, silent, slow, cut, locked, full or empty: no request fails,
none waits long, and it comes back.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.redis_server import Fault, FaultProxy, RedisServer
from tests.tiers.hosts import PATIENCE_S, Answer, Host, hosts, manual

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

QUESTION = "How deep is berth 12?"
NUM_REQUESTS = 200
FAULTS: tuple[Fault, ...] = ("refuse", "hang", "slow", "reset", "garbage")


def section(url: str, timeout: str = "50ms") -> str:
    """A gateway without a disk."""
    return f"{{ssd: {{bytes: 0}}, redis: {{url: '{url}', timeout: {timeout}}}}}"


def many(host: Host, num_requests: int = NUM_REQUESTS) -> None:
    """Short prompts nobody has seen, so that every one asks the tier; each is answered with 200."""
    for _ in range(num_requests):
        assert host.ask(manual(uuid.uuid4().hex, num_lines=5), "Yes?", max_tokens=1).num_read == 0


def check_nobody_waited(host: Host, num_requests: int = NUM_REQUESTS) -> None:
    """At most one request in a hundred waited for 0.3 s or longer for what did not come."""
    assert host.metric("pcg_tier_waits_total", length="long") <= num_requests // 100


def check_said(host: Host) -> None:
    """The operator was told, and not with every request."""
    assert 1 <= len(host.log_lines("the redis tier does not work")) <= 3


def comes_back(host: Host, edition: str) -> Answer:
    """Requests go on until the tier is used again; what is written then is read by a process that
    has nothing else."""
    deadline_s = time.monotonic() + PATIENCE_S
    while host.metric("pcg_store_up", store="redis") != 1:
        assert time.monotonic() < deadline_s, "the tier did not come back"
        many(host, 1)
    cold = host.ask(manual(edition), QUESTION)
    host.wait_until_written("redis")
    host.kill()
    host.start()
    warm = host.ask(manual(edition), QUESTION)
    assert (warm.text, warm.num_read) == (cold.text, cold.num_written)
    return warm


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_in_trouble(fault: Fault, default_model: Path, tmp_path: Path) -> None:
    """It begins while the gateway holds open connections and believes in the tier: the first
    request loses what it was reading, two hundred more are served through it, and afterwards the
    tier is used again."""
    with (
        RedisServer(tmp_path) as redis,
        FaultProxy(redis.path) as proxy,
        hosts(tmp_path, section(proxy.url)) as (host,),
    ):
        host.start()
        cold = host.ask(manual("A"), QUESTION)
        host.wait_until_written("redis")
        host.kill()
        host.start()
        many(host, 1)
        proxy.num_before_reset = 100_000
        proxy.fault = fault
        again = host.ask(manual("A"), QUESTION)
        assert again.text == cold.text
        assert again.num_read <= again.num_skipped
        proxy.num_before_reset = 1
        many(host)
        check_nobody_waited(host)
        assert host.metric("pcg_store_up", store="redis") == 0
        check_said(host)
        proxy.fault = "none"
        assert comes_back(host, "B").tier == "redis"
        assert host.log_lines("the redis tier works again")


@pytest.mark.parametrize("fault", ["refuse", "hang"])
def test_a_server_that_is_not_there_at_the_start(
    fault: Fault, default_model: Path, tmp_path: Path
) -> None:
    """The gateway starts without it, and uses it as soon as it is there."""
    with (
        RedisServer(tmp_path) as redis,
        FaultProxy(redis.path) as proxy,
        hosts(tmp_path, section(proxy.url)) as (host,),
    ):
        proxy.fault = fault
        host.start()
        many(host, 20)
        check_nobody_waited(host, 20)
        proxy.fault = "none"
        assert comes_back(host, "B").tier == "redis"


def locked(redis: RedisServer) -> str:
    return redis.url.replace(":opensesame@", ":wrong@")


def unlocked(redis: RedisServer) -> str:
    return redis.url


@pytest.mark.parametrize(
    ("options", "url"),
    [({"password": "opensesame"}, locked), ({"maxmemory": "2mb"}, unlocked)],
    ids=["password", "memory"],
)
def test_a_server_that_takes_nothing(
    options: dict[str, str], url: Callable[[RedisServer], str], default_model: Path, tmp_path: Path
) -> None:
    """A wrong password, no memory left: answers as without it; drops are counted, the log says why
    and no password."""
    with RedisServer(tmp_path, **options) as redis, hosts(tmp_path, section(url(redis))) as (host,):  # type: ignore[arg-type]
        host.start()
        cold = host.ask(manual("A"), QUESTION)
        warm = host.ask(manual("A"), QUESTION)
        assert (warm.text, warm.tier) == (cold.text, "device")
        host.wait_for("pcg_kv_put_drops_total", 1, tier="redis")
        many(host, 20)
        check_nobody_waited(host, 20)
        check_said(host)
        assert "opensesame" not in host.log()
        assert "wrong" not in host.log()


def test_a_server_restarted_empty(default_model: Path, tmp_path: Path) -> None:
    """What it held is a miss, and what is computed then is stored there again."""
    with RedisServer(tmp_path) as redis, hosts(tmp_path, section(redis.url, "1s")) as (host,):
        host.start()
        cold = host.ask(manual("A"), QUESTION)
        host.wait_until_written("redis")
        host.kill()
        redis.kill()
        redis.start()
        host.start()
        again = host.ask(manual("A"), QUESTION)
        assert (again.text, again.bill) == (cold.text, cold.bill)
        assert comes_back(host, "B").tier == "redis"
