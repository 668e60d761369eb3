"""The real Claude Code against a real gateway: opt-in, for it needs the program (`PCG_CLAUDE_CODE` names it) and minutes.

npm install --prefix /tmp/claude @anthropic-ai/claude-code
PCG_CLAUDE_CODE=/tmp/claude/node_modules/.bin/claude python -m pytest tests/cases/test_claude_code.py
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools.serving import serving

PROGRAM = os.environ.get("PCG_CLAUDE_CODE")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PROGRAM is None, reason="PCG_CLAUDE_CODE is not set"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "claude-code.yaml"
"""The default model stretched by RoPE scaling, which is for tests: its answers are words, not help."""


def turn(url: str, home: Path, words: str, *more: str) -> dict[str, Any]:
    """One turn in print mode, with one tool and a short system text, so that a small CPU answers in seconds."""
    assert PROGRAM is not None
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "64",
    }
    command = [PROGRAM, "-p", words, *more, "--tools", "Read", "--system-prompt", "You are a helpful assistant."]
    done = subprocess.run(
        [*command, "--output-format", "json"],
        env=environ,
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_second_turn_reads_the_first(default_model: Path, tmp_path: Path) -> None:
    """Both turns complete, and the second reads most of what the first wrote."""
    stop_at_once = "server: {drain: {delay: 0s, timeout: 5s}}\ntiers: {ssd: {bytes: 0}}\n"
    with serving(EXAMPLE.read_text(encoding="utf-8") + stop_at_once) as url:
        first = turn(url, tmp_path, "Say hello.")
        second = turn(url, tmp_path, "Say hello again.", "--continue")
    assert (first["is_error"], second["is_error"]) == (False, False)
    written = first["usage"]["cache_creation_input_tokens"]
    assert written > 200
    assert second["usage"]["cache_read_input_tokens"] > 0.8 * written
