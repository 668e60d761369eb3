"""The same suite with an older release of the SDK, which must pass,
and against a server that pretends, which must fail.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fakes.clocked import Clocked

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1500)]

ROOT: Final = Path(__file__).parents[3]
SUITE: Final = (
    "tests/conformance/anthropic/test_rules.py",
    "tests/conformance/anthropic/test_wire.py",
)
OLDER: Final = "anthropic<1"
"""The last release that sends its key as `x-api-key` and speaks version 2023-06-01."""


def run_suite(url: str, clock: Path | None, packages: Path | None = None) -> tuple[int, int]:
    """(passed, failed) of the suite's tests that are not long, in a process of their own."""
    path = os.pathsep.join(str(folder) for folder in (packages, ROOT) if folder is not None)
    environ = {**os.environ, "PYTHONPATH": path, "PCG_CONFORMANCE_URL": url}
    if clock is not None:
        environ["PCG_CONFORMANCE_CLOCK"] = str(clock)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not long",
        *SUITE,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=1400
    )
    counts = {
        word: int(number)
        for number, word in re.findall(r"(\d+) (passed|failed)", done.stdout.splitlines()[-1])
    }
    assert counts, done.stdout[-4000:] + done.stderr[-2000:]
    return counts.get("passed", 0), counts.get("failed", 0)


def test_an_older_sdk(served: Clocked, tmp_path: Path) -> None:
    """A release before 1.0, unmodified, passes what the newest passes."""
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        str(tmp_path),
        OLDER,
    ]
    subprocess.run(install, check=True, timeout=600)
    show = [sys.executable, "-c", "import anthropic; print(anthropic.__version__)"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    version = subprocess.run(show, env=environ, capture_output=True, text=True, check=True).stdout
    assert version.startswith("0.")
    passed, failed = run_suite(served.url, served.clock, tmp_path)
    if served.clock is not None:
        served.now_s = float(served.clock.read_text())
    assert failed == 0
    assert passed > 50


MESSAGE: Final[dict[str, Any]] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "smollm2-135m-instruct",
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 10,
        "output_tokens": 1,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 0},
    },
}


class Canned(BaseHTTPRequestHandler):
    """Answers everything alike."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._send({"input_tokens": 110} if self.path.endswith("count_tokens") else MESSAGE)

    def do_GET(self) -> None:
        self._send(
            {
                "data": [
                    {
                        "type": "model",
                        "id": "x",
                        "display_name": "x",
                        "created_at": "2026-01-01T00:00:00Z",
                    }
                ]
            }
        )

    def do_HEAD(self) -> None:
        self._send({})

    def _send(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in {
            "request-id": "req_1",
            "pcg-cache-read-tokens": "0",
            "pcg-cache": "miss",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def canned() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Canned) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_control_a_canned_server_fails() -> None:
    """Plausible answers that know nothing of the request pass next to nothing."""
    with canned() as url:
        passed, failed = run_suite(url, None)
    assert failed > 40
    assert passed < failed / 4
