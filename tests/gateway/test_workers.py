"""`pcg serve` with two engine workers of one model: real processes, real files,
one of them killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gateway.cli.main import main
from tools import serving

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

MANUAL = "\n".join(f"Berth {i} of the harbour is {i * 7 % 13} metres deep." for i in range(60))


@contextmanager
def running(home: Path, model: Path) -> Iterator[serving.Server]:
    """A gateway with two workers of `model`, over what earlier ones have left in `home`."""
    policy = f"models: [{{name: m, source: '{model}', engine: {{kv_bytes: 128MiB, workers: 2}}}}]"
    server = serving.start(
        home, f"{policy}\ntiers: {{ssd: {{min_free: 1MiB}}}}\nserver: {{drain: {{delay: 0s}}}}"
    )
    try:
        yield server
    finally:
        server.stop()


def ask(server: serving.Server, system: str, question: str) -> anthropic.types.Usage:
    """The usage of one short answer about a marked system text."""
    with anthropic.Anthropic(
        base_url=server.base_url, api_key="k", max_retries=0, timeout=120
    ) as client:
        marked = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
        said = [{"role": "user", "content": question}]
        return client.messages.create(model="m", max_tokens=4, system=marked, messages=said).usage  # type: ignore[arg-type]


def by_worker(server: serving.Server, name: str) -> list[float]:
    """The samples of one metric in the order of the workers, as soon as both can be asked for
    it."""
    samples: list[Sample] = []
    while len(samples) < 2:  # a busy machine: who does not answer in time has none
        text = anthropic.Anthropic(base_url=server.base_url, api_key="k").get(
            "/metrics", cast_to=str
        )
        samples = [
            s
            for family in text_string_to_metric_families(text)
            for s in family.samples
            if s.name == name
        ]
    return [sample.value for sample in sorted(samples, key=lambda sample: sample.labels["worker"])]


def pcg(
    server: serving.Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *words: str,
) -> str:
    """What a `pcg cache` command prints when it asks this gateway."""
    monkeypatch.setenv("PCG_HOME", str(server.output.parent))
    monkeypatch.setenv("PCG_POLICY", str(server.output.parent / "policy.yaml"))
    with pytest.raises(SystemExit) as ended:
        main(["cache", *words, "--url", server.base_url])
    assert not ended.value.code
    return capsys.readouterr().out


def stored(server: serving.Server, number: int) -> None:
    """Returns when so many entries have been written behind the answers."""
    with anthropic.Anthropic(base_url=server.base_url, api_key="k") as client:
        while (
            len(client.get("/admin/cache/entries", cast_to=dict[str, list[Any]])["entries"])
            < number
        ):
            pass


def worker_pid(server: serving.Server, number: int) -> int:
    """The process of a worker, as the log names it."""
    (pid,) = re.findall(rf'"worker": {number}, "pid": (\d+)', server.log())
    return int(pid)


def test_a_worker_dies(tmp_path: Path, small_model: Path) -> None:
    """A conversation stays with one worker, and goes on with the other when that is killed; after
    `kill -9` of everything its prefix is read from the SSD."""
    home = serving.make_home(tmp_path / "home")
    with running(home, small_model) as server:
        first = ask(server, MANUAL, "How deep is berth 12?")
        again = [
            ask(server, MANUAL, f"How deep is berth {i}?").cache_read_input_tokens for i in range(3)
        ]
        assert again == [first.cache_creation_input_tokens] * 3
        numbers = by_worker(server, "pcg_cache_requests_total")
        assert sorted(numbers) == [0, 4]
        stored(server, 1)
        victim = psutil.Process(worker_pid(server, numbers.index(4)))
        victim.kill()
        psutil.wait_procs([victim])
        after = [
            ask(server, MANUAL, f"Which berth is {i} metres deep?").cache_read_input_tokens
            for i in range(3)
        ]
        assert after == [0, *([first.cache_creation_input_tokens] * 2)]
        server.kill()
    with running(home, small_model) as server:
        assert (
            ask(server, MANUAL, "And after all?").cache_read_input_tokens
            == first.cache_creation_input_tokens
        )


def test_operators_reach_both_workers(
    tmp_path: Path,
    small_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a folder; what both hold is listed, pinned, verified and flushed."""
    home = serving.make_home(tmp_path / "home")
    with running(home, small_model) as server:
        told = [
            ask(server, f"{i}. {MANUAL}", "How deep is berth 12?").cache_creation_input_tokens
            for i in range(8)
        ]
        assert min(by_worker(server, "pcg_cache_requests_total")) > 0
        assert sorted(folder.name for folder in (home / "kv").iterdir()) == ["m", "m#1"]
        assert {"m#0", "m#1"} <= set(re.findall(r"m#\d", pcg(server, capsys, monkeypatch, "stat")))
        stored(server, len(told))
        keys = set(re.findall(r"\b[0-9a-f]{12}\b", pcg(server, capsys, monkeypatch, "ls")))
        assert len(keys) == len(told)
        for key in keys:
            assert "pinned" in pcg(server, capsys, monkeypatch, "pin", key)
            assert "unpinned" in pcg(server, capsys, monkeypatch, "unpin", key)
        assert "0 damaged" in pcg(server, capsys, monkeypatch, "verify")
        assert "forgot" in pcg(server, capsys, monkeypatch, "flush")
        assert not re.search(r"\b[0-9a-f]{12}\b", pcg(server, capsys, monkeypatch, "ls"))
        assert [
            ask(server, f"{i}. {MANUAL}", "Gone?").cache_read_input_tokens for i in range(2)
        ] == [0, 0]
