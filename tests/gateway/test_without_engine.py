"""`pcg` where the engine extra is not installed:
in front of upstreams it needs neither torch nor a model.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import anthropic
import pytest

from tests.fakes.upstream import FakeUpstream, say_json

EXTRA = (
    "torch",
    "transformers",
    "accelerate",
    "gguf",
    "llguidance",
    "numpy",
    "safetensors",
    "redis",
    "cryptography",
)
"""What `pip install prompt-cache-gateway` alone does not bring."""

WITHOUT = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRA}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from gateway.cli.main import main
main(sys.argv[1:])
"""


def command(*arguments: str) -> list[str]:
    """The `pcg` command in an interpreter that has none of the extras."""
    return [sys.executable, "-c", WITHOUT, *arguments]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home of its own."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("PCG_") and key != "PORT"
    }
    return kept | {"PCG_HOME": str(tmp_path / "home"), "UPSTREAM_KEY": "up-key", "COLUMNS": "200"}


async def test_serving_upstreams_only(tmp_path: Path, environ: dict[str, str]) -> None:
    """It starts, serves the official SDK, shows its key to the upstream and to nobody else, and
    ends with status 0."""
    usage = {"input_tokens": 4, "cache_read_input_tokens": 90, "output_tokens": 2}
    content = [{"type": "text", "text": "Hello"}]
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "usage": usage,
    }
    policy = tmp_path / "policy.yaml"
    async with FakeUpstream(say_json(answer)).listening() as upstream:
        backend = (
            f"{{name: up, api: anthropic, base_url: '{upstream.url}', api_key: "
            f"'${{ENV:UPSTREAM_KEY}}'}}"
        )
        policy.write_text(
            f"models: []\nbackends: [{backend}]\nserver: {{port: 0, drain: {{delay: 0s}}}}"
        )
        arguments = command("serve", "--policy", str(policy))
        with subprocess.Popen(
            arguments,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                ready = next((line for line in process.stdout if "ready at" in line), "")
                found = re.search(r"http://\S+", ready)
                assert found, process.stderr.read()
                async with anthropic.AsyncAnthropic(
                    base_url=found[0], api_key="k", max_retries=0
                ) as client:
                    question = {"role": "user", "content": "Hi"}
                    told = await client.messages.create(
                        model="claude-x", max_tokens=5, messages=[question]
                    )  # type: ignore[list-item]
                assert told.usage.cache_read_input_tokens == 90
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
                log = process.stderr.read()
            finally:
                process.kill()
        assert upstream.got[0].headers["x-api-key"] == "up-key"
    assert '"cache": "hit"' in log
    assert "up-key" not in log


def test_a_model_still_needs_the_engine(tmp_path: Path, environ: dict[str, str]) -> None:
    """Control: with a model of its own the same interpreter says what to install, before it brings
    the model."""
    done = subprocess.run(
        command("serve", "--port", "0"),
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "pip install 'prompt-cache-gateway[engine]'" in done.stderr
    assert not (tmp_path / "home" / "models").exists()


def test_a_policy_of_upstreams_is_summed_up(tmp_path: Path, environ: dict[str, str]) -> None:
    """Who gets which ids, and no key."""
    policy = tmp_path / "policy.yaml"
    models = "[{match: 'gpt-*'}, {match: fast, model: Qwen/Qwen3-32B}]"
    policy.write_text(
        f"models: []\nbackends: [{{name: up, models: {models}, api_key: '${{ENV:UPSTREAM_KEY}}'}}]"
    )
    done = subprocess.run(
        command("check", str(policy)),
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "gpt-*, fast = Qwen/Qwen3-32B to up at http://127.0.0.1:8000 (openai)" in done.stdout
    assert "up-key" not in done.stdout
