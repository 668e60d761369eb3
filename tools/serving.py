"""A real `pcg serve` in a process of its own, for the demo, the benchmark and the tests of the examples.

As a program, `python -m tools.serving URL` waits until the gateway at URL is ready.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

START_S = 300.0
"""Enough for a first start, which converts the model."""
STOP_S = 30.0
POLL_S = 0.05
POLICY = "server: {drain: {delay: 0s, timeout: 5s}}\n"
"""The defaults, but stops at once: nobody balances load over a child process."""


class DidNotStart(Exception):
    """The gateway ended, or was not ready in time; holds the end of its output."""


@contextmanager
def serving(policy: str = POLICY, environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run the gateway on a free loopback port while the block lasts and yield its base URL once it is ready.

    `policy` is the text of a policy file; `environ` is added to this process's environment. The server is told to stop by
    SIGTERM and is killed if it does not within 30 s. Raises `DidNotStart`.
    """
    with tempfile.TemporaryDirectory(prefix="pcg-serving-") as folder, open(Path(folder, "output"), "w+b") as output:
        path = Path(folder, "policy.yaml")
        path.write_text(policy, encoding="utf-8")
        port = free_port()
        command = [sys.executable, "-m", "gateway.cli", "serve", "--port", str(port), "--policy", str(path)]
        server = subprocess.Popen(  # noqa: S603 - our own command
            command, env={**os.environ, **(environ or {})}, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            base_url = f"http://127.0.0.1:{port}"
            if not wait_until_ready(base_url, lambda: server.poll() is None):
                output.seek(0)
                raise DidNotStart(output.read()[-4000:].decode(errors="replace"))
            yield base_url
        finally:
            stop(server)


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(base_url: str) -> bool:
    """Whether a gateway answers there and would serve a request now."""
    try:
        with urllib.request.urlopen(f"{base_url}/readyz", timeout=2) as answer:  # noqa: S310 - http, from this module
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until_ready(base_url: str, is_alive: Callable[[], bool] = lambda: True) -> bool:
    """Whether the gateway became ready within 300 s, and before it died."""
    deadline_s = time.monotonic() + START_S
    while not is_ready(base_url):
        if not is_alive() or time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and wait for it; a second SIGTERM is not needed for one that drains."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(0 if wait_until_ready(sys.argv[1]) else 1)
