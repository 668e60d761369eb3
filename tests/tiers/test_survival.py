"""What outlives a process and a machine: after `kill -9`, and on a second host,
bills and times are as if nothing had been.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.redis_server import RedisServer
from tests.tiers.hosts import Answer, Host, hosts, manual

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

SSD = "{ssd: {bytes: 1GiB, min_free: 0}}"
DEVICE_ONLY = "{ssd: {bytes: 0}}"
QUESTIONS = ("How deep is berth 12?", "Which berth is deepest?", "How deep is berth 40?")


def run(host: Host, *, interrupt: bool) -> list[Answer]:
    """Three questions about one text, a hundred and then two hundred and fifty seconds apart, then
    one after its time."""
    answers = [host.ask(manual("A"), QUESTIONS[0])]
    for seconds, question in ((100, QUESTIONS[1]), (250, QUESTIONS[2]), (301, QUESTIONS[0])):
        if interrupt:
            host.wait_until_written()
            host.kill()
            host.advance(seconds)
            host.start()
        else:
            host.advance(seconds)
        answers.append(host.ask(manual("A"), question))
    return answers


def test_kill_nine_changes_no_bill(default_model: Path, tmp_path: Path) -> None:
    """Texts, reads, writes and remaining TTL of a host that is killed before each question equal
    those of one that is not."""
    with hosts(tmp_path, DEVICE_ONLY, SSD) as (untroubled, troubled):
        untroubled.start()
        wanted = run(untroubled, interrupt=False)
        untroubled.stop()
        troubled.start()
        got = run(troubled, interrupt=True)
    assert [answer.bill for answer in got] == [answer.bill for answer in wanted]
    assert [answer.ttl_s for answer in got] == [answer.ttl_s for answer in wanted]
    assert [answer.text for answer in got] == [answer.text for answer in wanted]
    assert [answer.tier for answer in got[:3]] == [None, "ssd", "ssd"]
    assert [answer.num_read > 600 for answer in got] == [False, True, True, False]


def test_a_crash_of_the_gateway_alone(default_model: Path, tmp_path: Path) -> None:
    """The next gateway starts at once, though the engine of the last one still has the folder for a
    moment."""
    with hosts(tmp_path, SSD) as (host,):
        host.start()
        cold = host.ask(manual("A"), QUESTIONS[0])
        host.crash()
        host.start()
        warm = host.ask(manual("A"), QUESTIONS[0])
    assert (warm.text, warm.num_read, warm.tier) == (cold.text, cold.num_written, "ssd")


def test_a_second_host_reads_what_the_first_wrote(default_model: Path, tmp_path: Path) -> None:
    """Two hosts share one Redis and no disk: the second bills and times as the first would, and
    both refresh the same entry."""
    with RedisServer(tmp_path) as redis:
        section = f"{{ssd: {{bytes: 0}}, redis: {{url: '{redis.url}', timeout: 1s}}}}"
        with hosts(tmp_path, DEVICE_ONLY, section, section) as (alone, first, second):
            for host in (alone, first, second):
                host.start()
            wanted = [alone.ask(manual("A"), QUESTIONS[0])]
            got = [first.ask(manual("A"), QUESTIONS[0])]
            first.wait_until_written("redis")
            for host in (alone, first, second):
                host.advance(200)
            wanted.append(alone.ask(manual("A"), QUESTIONS[1]))
            got.append(second.ask(manual("A"), QUESTIONS[1]))
            second.wait_until_written("redis")
            first.kill()
            for host in (alone, first, second):
                host.advance(200)
            first.start()
            wanted.append(alone.ask(manual("A"), QUESTIONS[2]))
            got.append(first.ask(manual("A"), QUESTIONS[2]))
    assert [(answer.bill, answer.ttl_s, answer.text) for answer in got] == [
        (answer.bill, answer.ttl_s, answer.text) for answer in wanted
    ]
    assert [answer.tier for answer in got] == [None, "redis", "redis"]


def test_another_secret_reads_nothing(default_model: Path, tmp_path: Path) -> None:
    """Control: with a secret of its own a host finds nothing in the same Redis."""
    with RedisServer(tmp_path) as redis:
        section = f"{{ssd: {{bytes: 0}}, redis: {{url: '{redis.url}', timeout: 1s}}}}"
        with (
            hosts(tmp_path / "one", section) as (first,),
            hosts(tmp_path / "two", section, secret="f" * 32) as (second,),
        ):
            first.start()
            cold = first.ask(manual("A"), QUESTIONS[0])
            first.wait_until_written("redis")
            second.start()
            other = second.ask(manual("A"), QUESTIONS[0])
    assert (other.bill, other.text) == (cold.bill, cold.text)
    assert other.num_read == 0
