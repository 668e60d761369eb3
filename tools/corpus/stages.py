"""A gateway of one checkout in a process of its own, with a home,
a clock and upstreams that are the same on every run.
"""

from __future__ import annotations

import hmac
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.corpus.models import save_models
from tools.corpus.play import FIRST_S, Player, write_clock
from tools.corpus.steps import Record, Step
from tools.corpus.upstreams import Upstreams
from tools.serving import (
    OURS,
    REAL_HOME,
    DidNotStart,
    Server,
    free_port,
    make_home,
    wait_until_ready,
)

SECRET: Final = "5ec2e7" * 11
OPERATOR_KEY: Final = hmac.digest(SECRET.encode(), b"operator of this gateway", "sha256").hex()
"""Of every gateway here, as it follows from its secret."""

ENVIRON: Final = {
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A gateway and what it is asked. In `policy`, `@MODELS@` is the folder of models and
    `@UPSTREAM@` the upstreams' URL.

    `goes_on`: with the home of the stage before it.
    """

    name: str
    policy: str
    steps: Sequence[Step]
    goes_on: bool = False


def record(checkout: Path, stages: Sequence[Stage]) -> Iterator[Record]:
    """Plays all stages against gateways of the checkout. Raises `DidNotStart`."""
    checkout = checkout.absolute()
    program = _program(checkout)
    environ = {name: value for name, value in os.environ.items() if name not in OURS} | ENVIRON
    environ |= {"PYTHONPATH": str(checkout), "PCG_HOME": str(REAL_HOME)}
    subprocess.run([sys.executable, "hatch_build.py"], cwd=checkout, env=environ, check=True)
    with tempfile.TemporaryDirectory(prefix="pcg-corpus-") as folder, Upstreams() as upstreams:
        if any("@MODELS@" in stage.policy for stage in stages):
            command = [*program, "model", "fetch"]
            told = subprocess.run(  # noqa: S603 - as below
                command, cwd=checkout, env=environ, check=True, stdout=subprocess.PIPE
            )
            save_models(Path(told.stdout.decode().strip()), Path(folder, "models"))
        home = Path(folder, "none")
        for stage in stages:
            home = home if stage.goes_on else make_home(Path(folder, stage.name))
            policy = stage.policy.replace("@MODELS@", f"{folder}/models").replace(
                "@UPSTREAM@", upstreams.url
            )
            with _gateway(checkout, home, policy, environ) as server:
                player = Player(server.base_url, home / "clock", upstreams.passed)
                yield from player.play(stage.name, stage.steps)


def _program(checkout: Path) -> list[str]:
    """The command `pcg` of a checkout, wherever it is defined there."""
    entry = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ]["pcg"]
    module, _, function = entry.partition(":")
    return [
        sys.executable,
        "-c",
        f"import sys; from {module} import {function}; sys.exit({function}())",
    ]


@contextmanager
def _gateway(checkout: Path, home: Path, policy: str, environ: dict[str, str]) -> Iterator[Server]:
    port = free_port()
    files = {name: home / name for name in ("policy.yaml", "output", "clock", "given-secret")}
    files["policy.yaml"].write_text(policy, encoding="utf-8")
    files["given-secret"].write_text(SECRET, encoding="utf-8")
    files["given-secret"].chmod(0o600)
    if not files["clock"].exists():
        write_clock(files["clock"], FIRST_S)
    environ = environ | {
        "PCG_HOME": str(home),
        "PCG_TEST_CLOCK": str(files["clock"]),
        "PCG_SECRET_FILE": str(files["given-secret"]),
    }
    command = [
        *_program(checkout),
        "serve",
        "--port",
        str(port),
        "--policy",
        str(files["policy.yaml"]),
    ]
    with files["output"].open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the checkout's command
            command,
            cwd=checkout,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    server = Server(process, f"http://127.0.0.1:{port}", files["output"])
    try:
        if not wait_until_ready(server.base_url, lambda: process.poll() is None):
            raise DidNotStart(server.log()[-4000:])
        yield server
    finally:
        server.stop()
