"""Hosts with real gateways on the default model in exact mode: started, killed, asked,
and their clock moved.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.clocked import set_clock
from tools.serving import Server, make_home, start

NOW_S = 1_800_000_000.0
MODEL = "smollm2-135m-instruct"
PATIENCE_S = 60.0
"""Far longer than anything waited for here takes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its text, what was billed, and what the headers say."""

    text: str
    num_read: int
    num_written: int
    num_input: int
    headers: Mapping[str, str]

    @property
    def bill(self) -> tuple[int, int, int]:
        return self.num_read, self.num_written, self.num_input

    @property
    def num_skipped(self) -> int:
        return int(self.headers["pcg-prefill-skipped-tokens"])

    @property
    def tier(self) -> str | None:
        """Where most of what was read came from."""
        found = re.search(r"detail=([a-z-]+)", self.headers["cache-status"])
        return found[1] if found else None

    @property
    def ttl_s(self) -> int | None:
        """Time left of what was read or written."""
        found = re.search(r"ttl=(-?\d+)", self.headers["cache-status"])
        return int(found[1]) if found else None


@dataclass(slots=True)
class Host:
    """A machine of its own: a home, a clock, and at most one gateway. `tiers` is that section of
    its policy, as YAML."""

    home: Path
    tiers: str = "{}"
    kv_bytes: str = "512MiB"
    dtype: str = "bfloat16"
    more: str = ""
    now_s: float = NOW_S
    server: Server | None = None
    past_output: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Run a gateway; returns when it is ready."""
        assert self.server is None
        self._write_clock()
        policy = (
            f"models: [{{dtype: {self.dtype}, engine: {{exact: 'on', kv_bytes: "
            f"{self.kv_bytes}}}}}]\n"
            "server: {drain: {delay: 0s, timeout: 5s}}\n"
            f"tiers: {self.tiers}\n{self.more}"
        )
        self.server = start(self.home, policy, {"PCG_TEST_CLOCK": str(self._clock)})

    def kill(self) -> None:
        """`kill -9` for the gateway and its engine."""
        self._over().kill()

    def crash(self) -> None:
        """`kill -9` for the gateway alone; its engine notices, and ends by itself some time
        later."""
        server = self._over()
        server.process.kill()
        server.process.wait()

    def stop(self) -> None:
        """End it as an operator does."""
        self._over().stop()

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self.now_s += seconds
        self._write_clock()

    def ask(
        self, system: str, question: str, *, ttl: str = "5m", max_tokens: int = 12, key: str = "k"
    ) -> Answer:
        """One greedy answer to a question behind a marked system text. Any status but 200 raises
        `HTTPError`."""
        body = {
            "model": MODEL,
            "max_tokens": max_tokens,
            "temperature": 0,
            "system": [
                {"type": "text", "text": system, "cache_control": {"type": "ephemeral", "ttl": ttl}}
            ],
            "messages": [{"role": "user", "content": question}],
        }
        content, headers = self._request(
            "/v1/messages", json.dumps(body).encode(), {"x-api-key": key}
        )
        told: dict[str, Any] = json.loads(content)
        usage = told["usage"]
        counts = (
            usage["cache_read_input_tokens"],
            usage["cache_creation_input_tokens"],
            usage["input_tokens"],
        )
        return Answer("".join(block["text"] for block in told["content"]), *counts, headers)

    def metric(self, name: str, **labels: str) -> float:
        """One sample of `/metrics`; KeyError where there is none."""
        content, _ = self._request("/metrics", None, {})
        for family in text_string_to_metric_families(content.decode()):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        raise KeyError(name)

    def wait_for(self, name: str, wanted: float, **labels: str) -> None:
        """Until a metric is at least `wanted`; fails after a minute."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (value := self.metric(name, **labels)) < wanted:
            assert time.monotonic() < deadline_s, f"{name} is {value}, not {wanted}"

    def wait_until_written(self, tier: str = "ssd") -> None:
        """Until nothing waits to be written any more."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.metric("pcg_kv_queued_bytes", tier=tier) or self.metric("pcg_cache_unwritten"):
            assert time.monotonic() < deadline_s, f"the {tier} tier is not done writing"

    def stored(self) -> list[Path]:
        """The files of all stored objects."""
        return sorted(
            path
            for path in (self.home / "kv").rglob("*")
            if path.is_file() and len(path.name) == 64
        )

    def log(self) -> str:
        """Everything this host's gateways have said."""
        return "".join([*self.past_output, self.server.log() if self.server else ""])

    def log_lines(self, words: str) -> list[str]:
        """Lines of the log that hold these words."""
        return [line for line in self.log().splitlines() if words in line]

    @property
    def url(self) -> str:
        assert self.server is not None
        return self.server.base_url

    @property
    def _clock(self) -> Path:
        return self.home / "now"

    def _write_clock(self) -> None:
        set_clock(self._clock, self.now_s)

    def _request(
        self, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[bytes, dict[str, str]]:
        request = urllib.request.Request(
            f"{self.url}{path}", body, {"Content-Type": "application/json", **headers}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.read(), {name.lower(): value for name, value in answer.headers.items()}

    def _over(self) -> Server:
        """The server, which this host no longer has."""
        assert self.server is not None
        server, self.server = self.server, None
        self.past_output.append(server.log())
        return server


@contextmanager
def hosts(
    folder: Path, *tiers: str, secret: str = "0123456789abcdef0123456789abcdef", **more: Any
) -> Iterator[list[Host]]:
    """Hosts with the same secret and nothing running, one per section; whatever runs at the end is
    stopped."""
    folder.mkdir(exist_ok=True)
    made = []
    for i, section in enumerate(tiers):
        host = Host(make_home(folder / f"host-{i}"), section, **more)
        (host.home / "secret").touch(mode=0o600)
        (host.home / "secret").write_text(secret)
        made.append(host)
    try:
        yield made
    finally:
        for host in made:
            if host.server is not None:
                host.stop()


def manual(edition: str, num_lines: int = 60) -> str:
    """A text whose first line no other edition shares; about thirteen tokens a line."""
    lines = (f"Berth {i} of the harbour is {i * 7 % 13} metres deep." for i in range(num_lines))
    return f"Edition {edition}.\n" + "\n".join(lines)
