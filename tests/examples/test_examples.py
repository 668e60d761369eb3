"""The programs in examples/ against a real gateway: what a stranger runs first."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import serving as serving_scripts
from tools.serving import POLICY, serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PYTHON = sys.executable

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def base_url(served_model: Path) -> Iterator[str]:
    """A gateway with the default policy but for the model, shared by the tests of this file."""
    with serving(
        f"{POLICY}models: [{{source: '{served_model}', engine: {{kv_bytes: 1GiB}}}}]\n"
    ) as url:
        yield url


def run(*command: str, base_url: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a person would, with the gateway's address in the environment."""
    environ = {**os.environ, "PCG_BASE_URL": base_url}
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["anthropic_sdk.py", "openai_sdk.py"])
def test_sdk_example_ends_warm(name: str, base_url: str) -> None:
    """The program of each official SDK sees its second question read the document, and prints
    nothing as an error."""
    done = run(PYTHON, str(EXAMPLES / name), base_url=base_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "warm: the second question read the document" in done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_example_shows_a_miss_and_a_read(base_url: str) -> None:
    """The script prints the headers of a miss, then those of a read of the same number of
    tokens."""
    done = run(str(EXAMPLES / "curl.sh"), base_url, base_url=base_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fwd=miss" in done.stdout
    assert "fwd=partial" in done.stdout


def test_demo_prints_the_bill(base_url: str) -> None:
    """The demo drives both SDKs through three turns each, reads on every warm one, and ends by
    itself."""
    done = run(PYTHON, "-m", "examples.demo", base_url=base_url)
    assert (done.returncode, done.stderr) == (0, "")
    for cell in ("anthropic", "openai", "cold", "same conversation", "new conversation", "saved"):
        assert cell in done.stdout


async def test_example_fails_where_nothing_is_cached() -> None:
    """Control: at a gateway whose every answer is a miss, the program says so and exits with 1."""
    async with serving_scripts(ScriptedBackend()) as served:
        environ = {**os.environ, "PCG_BASE_URL": served.url}
        program = str(EXAMPLES / "anthropic_sdk.py")
        started = await asyncio.create_subprocess_exec(
            PYTHON, program, cwd=ROOT, env=environ, stdout=PIPE, stderr=PIPE
        )
        stdout, stderr = await started.communicate()
    assert (started.returncode, stderr) == (1, b"")
    assert b"cold: nothing was read" in stdout
