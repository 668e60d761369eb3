"""A real `pcg serve` in a process of its own, for the demo, the benchmarks and the black-box tests.

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

START_S = 300.0
"""Enough for a first start, which converts the model."""
STOP_S = 30.0
POLL_S = 0.05
POLICY = "server: {drain: {delay: 0s, timeout: 5s}}\n"
"""The defaults, but stops at once: nobody balances load over a child process."""
REAL_HOME = Path(os.environ.get("PCG_HOME") or Path.home() / ".cache" / "pcg")
OURS = ("PCG_POLICY", "PCG_HOST", "PORT", "PCG_TEST_CLOCK", "PCG_SECRET_FILE", "PCG_REDIS_URL")
"""Settings of whoever starts us, which are not meant for the gateways started here."""


class DidNotStart(Exception):
    """The gateway ended, or was not ready in time; holds the end of its output."""


@dataclass(frozen=True, slots=True)
class Server:
    """A gateway's process. `output` is the file with everything it and its engine said."""

    process: subprocess.Popen[bytes]
    base_url: str
    output: Path

    def log(self) -> str:
        """Everything said so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def worker_pids(self) -> list[int]:
        """The engines' processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with suppress(OSError):
            return [int(pid) for pid in children.read_text().split()]
        return []

    def kill(self) -> None:
        """`kill -9` for the gateway and its engines, at any moment; returns when all are gone."""
        pids = self.worker_pids()
        self.process.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while any(is_running(pid) for pid in pids):
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it by SIGTERM and wait; SIGKILL when it does not end within 30 s. Idempotent."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


def start(home: Path, policy: str = POLICY, environ: Mapping[str, str] | None = None) -> Server:
    """Run a gateway with this home on a free loopback port; returns when it is ready. Raises
    `DidNotStart`.

    `policy` is the text of a policy file; `environ` is added to this process's environment. Whoever
    starts it stops it.
    """
    port = free_port()
    policy_file, output = home / "policy.yaml", home / f"output-{port}"
    policy_file.write_text(policy, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "gateway.cli",
        "serve",
        "--port",
        str(port),
        "--policy",
        str(policy_file),
    ]
    inherited = {name: value for name, value in os.environ.items() if name not in OURS}
    with output.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            env={**inherited, "PCG_HOME": str(home), **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    server = Server(process, f"http://127.0.0.1:{port}", output)
    try:
        if not wait_until_ready(server.base_url, lambda: process.poll() is None):
            raise DidNotStart(server.log()[-4000:])
    except BaseException:
        server.stop()
        raise
    return server


@contextmanager
def serving(policy: str = POLICY, environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a gateway while the block lasts and yield its base URL once it is ready; arguments and
    errors as of `start`.

    It has a home of its own that is gone afterwards: it starts cold and leaves no KV behind.
    """
    with tempfile.TemporaryDirectory(prefix="pcg-serving-") as folder:
        server = start(make_home(Path(folder, "home")), policy, environ)
        try:
            yield server.base_url
        finally:
            server.stop()


def make_home(path: Path) -> Path:
    """A new `$PCG_HOME` with the models of the real one, brought there when they are first
    needed."""
    models = REAL_HOME / "models"
    models.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.mkdir(mode=0o700)
    (path / "models").symlink_to(models.absolute())
    return path


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(base_url: str) -> bool:
    """Whether a gateway answers there and would serve a request now. No proxy is asked for it."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{base_url}/readyz", timeout=2) as answer:
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


def is_running(pid: int) -> bool:
    """Whether a process has this id and has not ended; one that nobody has waited for yet has
    ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(0 if wait_until_ready(sys.argv[1]) else 1)
