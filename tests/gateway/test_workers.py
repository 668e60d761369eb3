"""`pcg serve` with two engine workers of one model: real processes, real files, one of them killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import anthropic
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.cli import main
from tools import serving

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

MANUAL = "\n".join(f"Berth {i} of the harbour is {i * 7 % 13} metres deep." for i in range(60))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serving.make_home(tmp_path_factory.mktemp("workers") / "home")


@pytest.fixture(scope="module")
def server(home: Path, small_model: Path) -> Iterator[serving.Server]:
    policy = f"models: [{{name: m, source: '{small_model}', engine: {{kv_bytes: 128MiB, workers: 2}}}}]"
    server = serving.start(home, f"{policy}\ntiers: {{ssd: {{min_free: 1MiB}}}}\nserver: {{drain: {{delay: 0s}}}}")
    yield server
    server.stop()


def ask(server: serving.Server, system: str, question: str) -> anthropic.types.Usage:
    """The usage of one short answer about a marked system text."""
    with anthropic.Anthropic(base_url=server.base_url, api_key="k", max_retries=0, timeout=120) as client:
        marked = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
        said = [{"role": "user", "content": question}]
        return client.messages.create(model="m", max_tokens=4, system=marked, messages=said).usage  # type: ignore[arg-type]


def by_worker(server: serving.Server, name: str) -> list[float]:
    """The samples of one metric in the order of the workers."""
    text = anthropic.Anthropic(base_url=server.base_url, api_key="k").get("/metrics", cast_to=str)
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name]
    return [sample.value for sample in sorted(samples, key=lambda sample: sample.labels["worker"])]


def pcg(server: serving.Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What a `pcg cache` command prints when it asks this gateway."""
    monkeypatch.setenv("PCG_HOME", str(server.output.parent))
    monkeypatch.setenv("PCG_POLICY", str(server.output.parent / "policy.yaml"))
    with pytest.raises(SystemExit) as ended:
        main(["cache", *words, "--url", server.base_url])
    assert not ended.value.code
    return capsys.readouterr().out


def test_two_workers(
    server: serving.Server, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation stays with one worker and survives its death; entries are listed, pinned, verified and flushed in both."""
    first = ask(server, MANUAL, "How deep is berth 12?")
    again = [ask(server, MANUAL, f"How deep is berth {i}?").cache_read_input_tokens for i in range(3)]
    assert again == [first.cache_creation_input_tokens] * 3
    assert sorted(by_worker(server, "pcg_cache_requests_total")) == [0, 4]
    assert by_worker(server, "pcg_worker_up") == [1, 1]

    busy = by_worker(server, "pcg_cache_requests_total").index(4)
    number = re.search(rf'"worker": {busy}, "pid": (\d+)|"pid": (\d+).*"worker": {busy}', server.log())
    assert number is not None
    victim = psutil.Process(int(number[1] or number[2]))
    victim.kill()
    psutil.wait_procs([victim])
    after = [ask(server, MANUAL, f"Which berth is {i} metres deep?").cache_read_input_tokens for i in range(3)]
    assert after == [0, *([first.cache_creation_input_tokens] * 2)]
    assert serving.wait_until_ready(server.base_url)
    while by_worker(server, "pcg_worker_up") != [1, 1]:
        pass
    assert ask(server, MANUAL, "And now?").cache_read_input_tokens == first.cache_creation_input_tokens
    assert by_worker(server, "pcg_worker_restarts_total")[busy] == 1

    folders = sorted(folder.name for folder in (home / "kv").iterdir())
    assert folders == ["m", "m#1"]
    assert {"m#0", "m#1"} <= set(re.findall(r"m#\d", pcg(server, capsys, monkeypatch, "stat")))
    listed = pcg(server, capsys, monkeypatch, "ls")
    (key,) = set(re.findall(r"\b[0-9a-f]{12}\b", listed))
    assert "pinned" in pcg(server, capsys, monkeypatch, "pin", key)
    assert "unpinned" in pcg(server, capsys, monkeypatch, "unpin", key)
    assert "0 damaged" in pcg(server, capsys, monkeypatch, "verify")
    assert "forgot" in pcg(server, capsys, monkeypatch, "flush")
    assert not re.search(r"\b[0-9a-f]{12}\b", pcg(server, capsys, monkeypatch, "ls"))
    assert ask(server, MANUAL, "Is it gone?").cache_read_input_tokens == 0
