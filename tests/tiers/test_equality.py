"""Exact mode from every tier, the faster ones out of the way: the answer is the cold one,
and the headers say who served it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.redis_server import RedisServer
from tests.tiers.hosts import Answer, Host, hosts, manual

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

WARMER, QUESTION = "Which berth is deepest?", "How deep is berth 12?"
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def cold(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answer]:
    """The answer of a gateway that has never seen the text, and keeps nothing but on the device."""
    with hosts(tmp_path_factory.mktemp("cold"), "{ssd: {bytes: 0}}") as (host,):
        host.start()
        yield host.ask(manual("A"), QUESTION, max_tokens=NUM_TOKENS)


def ask(host: Host) -> Answer:
    return host.ask(manual("A"), QUESTION, max_tokens=NUM_TOKENS)


def test_from_the_device(cold: Answer, tmp_path: Path) -> None:
    """A second question behind the same text."""
    with hosts(tmp_path, "{ssd: {bytes: 0}}") as (host,):
        host.start()
        host.ask(manual("A"), WARMER)
        check(ask(host), cold, "device")


def test_from_memory(cold: Answer, tmp_path: Path) -> None:
    """The memory store, forced: what a request leaves behind leaves the device at once."""
    with hosts(tmp_path, "{ram: {bytes: 1GiB, force: true}, ssd: {bytes: 0}}") as (host,):
        host.start()
        host.ask(manual("A"), WARMER)
        check(ask(host), cold, "ram")


@pytest.mark.parametrize("encrypt", ["false", "true"])
def test_from_the_ssd(encrypt: str, cold: Answer, tmp_path: Path) -> None:
    """A fresh process has nothing else."""
    with hosts(tmp_path, f"{{ssd: {{bytes: 1GiB, min_free: 0, encrypt: {encrypt}}}}}") as (host,):
        host.start()
        host.ask(manual("A"), WARMER)
        host.wait_until_written()
        host.kill()
        host.start()
        check(ask(host), cold, "ssd")
        assert host.metric("pcg_kv_read_bytes_total", tier="ssd") > 10 * 1024**2


@pytest.mark.parametrize("encrypt", ["false", "true"])
def test_from_redis(encrypt: str, cold: Answer, tmp_path: Path) -> None:
    """Another process without a disk."""
    with RedisServer(tmp_path) as redis:
        section = (
            f"{{ssd: {{bytes: 0, encrypt: {encrypt}}}, redis: {{url: '{redis.url}', timeout: 1s}}}}"
        )
        with hosts(tmp_path, section, section) as (first, second):
            first.start()
            first.ask(manual("A"), WARMER)
            first.wait_until_written("redis")
            first.stop()
            second.start()
            check(ask(second), cold, "redis")
            assert second.metric("pcg_store_up", store="redis") == 1


def check(answer: Answer, cold: Answer, tier: str) -> None:
    """Read from `tier`, with the cold answer; nothing but the last tokens was computed."""
    assert answer.text == cold.text
    assert answer.tier == tier
    assert answer.num_read == cold.num_written > 600
    assert answer.num_read <= answer.num_skipped < sum(answer.bill)
    assert sum(answer.bill) == sum(cold.bill)
