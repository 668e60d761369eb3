"""What an operator does to a gateway: looks at what is stored, has it checked, has it forgotten,
and relies on the cap."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.soaking import watching
from engine.cache.tree.namespace import namespace
from tests.fakes.redis_server import RedisServer
from tests.tiers.hosts import Host, hosts, manual

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

TENANTS = "tenants: [{name: acme, keys: [key-acme]}, {name: zeta, keys: [key-zeta]}]"
QUESTION = "How deep is berth 12?"
SECRET = "0123456789abcdef0123456789abcdef"
MIB = 1024**2


def pcg_cache(host: Host, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`pcg cache ARGUMENTS` as the operator of this host types it."""
    command = [
        sys.executable,
        "-m",
        "gateway.cli",
        "cache",
        *arguments,
        "--policy",
        str(host.home / "policy.yaml"),
    ]
    environ = {**os.environ, "PCG_HOME": str(host.home), "COLUMNS": "200"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_a_tenant_is_forgotten_in_every_tier(default_model: Path, tmp_path: Path) -> None:
    """Device, SSD and Redis: its objects are gone, its next request is cold; the other tenant
    notices nothing."""
    prefixes = {name: namespace(SECRET.encode(), name).hex() for name in ("acme", "zeta")}
    with RedisServer(tmp_path) as redis, redis.client() as client:
        section = (
            f"{{ssd: {{bytes: 1GiB, min_free: 0}}, redis: {{url: '{redis.url}', timeout: 1s}}}}"
        )
        with hosts(tmp_path, section, more=TENANTS, secret=SECRET) as (host,):
            host.start()
            for name in prefixes:
                host.ask(manual("A"), QUESTION, key=f"key-{name}")
            for tier in ("ssd", "redis"):
                host.wait_until_written(tier)

            def stored(name: str) -> tuple[int, int]:
                keys = [key.decode().removeprefix("pcg:") for key in client.keys("pcg:*")]
                prefix = prefixes[name]
                return sum(path.name.startswith(prefix) for path in host.stored()), sum(
                    key.startswith(prefix) for key in keys
                )

            before = stored("zeta")
            assert stored("acme") == before > (0, 0)
            listed = pcg_cache(host, "ls", "--url", host.url)
            assert listed.stdout.count("acme") == listed.stdout.count("zeta") == 2
            done = pcg_cache(host, "flush", "--tenant", "acme", "--url", host.url)
            assert (done.returncode, done.stderr) == (0, "")
            assert (stored("acme"), stored("zeta")) == ((0, 0), before)
            verified = pcg_cache(host, "verify", "--url", host.url)
            assert (verified.returncode, verified.stderr) == (0, "")
            assert f"{sum(before)} objects whole" in verified.stdout
            assert host.ask(manual("A"), QUESTION, key="key-acme").num_read == 0
            assert host.ask(manual("A"), QUESTION, key="key-zeta").tier == "device"


def test_a_flush_that_redis_does_not_hear_is_done_later(
    default_model: Path, tmp_path: Path
) -> None:
    """The operator is told that it is not done; it is not served before, and gone soon after the
    server answers again."""
    with RedisServer(tmp_path) as redis, redis.client() as client:
        section = (
            f"{{ssd: {{bytes: 1GiB, min_free: 0}}, redis: {{url: '{redis.url}', timeout: 100ms}}}}"
        )
        with hosts(tmp_path, section, more=TENANTS, secret=SECRET) as (host,):
            host.start()
            host.ask(manual("A"), QUESTION, key="key-acme")
            for tier in ("ssd", "redis"):
                host.wait_until_written(tier)
            assert client.keys("pcg:*")
            with redis.frozen():
                done = pcg_cache(host, "flush", "--tenant", "acme", "--url", host.url)
                assert done.returncode == 1
                assert "told again" in done.stderr
                assert not host.stored()
                assert host.ask(manual("B"), QUESTION, key="key-acme").num_read == 0
            deadline_s = time.monotonic() + 30
            while client.keys("pcg:*"):
                assert time.monotonic() < deadline_s
                host.advance(1.0)
            assert pcg_cache(host, "flush", "--tenant", "acme", "--url", host.url).returncode == 0


def test_a_stopped_gateways_files_are_checked_and_forgotten(
    default_model: Path, tmp_path: Path
) -> None:
    """The same commands without a gateway: what it left is listed and whole, then gone, and the
    next start is cold."""
    with hosts(tmp_path, "{ssd: {bytes: 1GiB, min_free: 0}}", more="") as (host,):
        host.start()
        cold = host.ask(manual("A"), QUESTION)
        host.wait_until_written()
        host.stop()
        assert "system/0" in pcg_cache(host, "ls").stdout
        assert pcg_cache(host, "verify").returncode == 0
        assert pcg_cache(host, "flush").returncode == 0
        assert host.stored() == []
        host.start()
        again = host.ask(manual("A"), QUESTION)
        assert (again.text, again.bill) == (cold.text, cold.bill)


def test_the_cap_holds_under_a_load_that_wants_ten_times_as_much(
    default_model: Path, tmp_path: Path
) -> None:
    """`du` of the folder never shows more than `bytes`, and the engine's memory grows by no more
    than its queue."""
    cap_nbytes, queue_nbytes, slack_nbytes = 24 * MIB, 256 * MIB, 128 * MIB
    with hosts(tmp_path, f"{{ssd: {{bytes: {cap_nbytes}, min_free: 0}}}}") as (host,):
        host.start()
        assert host.server is not None
        host.ask(manual("warm"), QUESTION, max_tokens=1)
        (pid,) = host.server.worker_pids()
        with watching(host.home / "kv", pid) as watch:
            before_nbytes = watch.resident_nbytes()
            for edition in "ABCDEFGHIJKL":
                host.ask(manual(edition), QUESTION, max_tokens=1)
            host.wait_until_written()
            written = host.metric("pcg_kv_written_bytes_total", tier="ssd")
        assert written >= 8 * cap_nbytes
        assert cap_nbytes / 2 < watch.most_nbytes <= cap_nbytes
        assert watch.most_resident_nbytes <= before_nbytes + 512 * MIB + queue_nbytes + slack_nbytes
        assert host.metric("pcg_kv_bytes", tier="ssd") <= cap_nbytes


def test_a_pinned_entry_outlives_its_time_and_a_kill(default_model: Path, tmp_path: Path) -> None:
    """A day after `kill -9` it is read from the SSD, billed as ever; unpinned and left alone it
    expires."""
    with hosts(tmp_path, "{ssd: {bytes: 1GiB, min_free: 0}}", more="") as (host,):
        host.start()
        cold = host.ask(manual("A"), QUESTION)
        host.wait_until_written()
        lines = pcg_cache(host, "ls", "--url", host.url).stdout.splitlines()
        (line,) = (line for line in lines if "system/0" in line)
        key = line.split()[-1]
        assert pcg_cache(host, "pin", "0000000", "--url", host.url).returncode == 1
        pinned = pcg_cache(host, "pin", key, "--url", host.url)
        assert (pinned.returncode, pinned.stderr) == (0, "")
        host.wait_until_written()
        host.kill()
        host.advance(86_400)
        host.start()
        assert host.metric("pcg_kv_pinned_bytes", tier="ssd") > 0
        assert "pinned" in pcg_cache(host, "ls", "--url", host.url).stdout
        warm = host.ask(manual("A"), QUESTION)
        assert (warm.num_read, warm.text, warm.tier, warm.ttl_s) == (
            cold.num_written,
            cold.text,
            "ssd",
            300,
        )
        unpinned = pcg_cache(host, "unpin", key, "--url", host.url)
        assert (unpinned.returncode, unpinned.stderr) == (0, "")
        host.wait_until_written()
        host.advance(400)
        assert host.ask(manual("A"), QUESTION).num_read == 0
