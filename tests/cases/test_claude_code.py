"""The real Claude Code against a real gateway: opt-in,
for it needs the program (`PCG_CLAUDE_CODE` names it) and minutes.

npm install --prefix /tmp/claude @anthropic-ai/claude-code
PCG_CLAUDE_CODE=/tmp/claude/node_modules/.bin/claude python -m pytest
tests/cases/test_claude_code.py
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tools.serving import serving

PROGRAM = os.environ.get("PCG_CLAUDE_CODE")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(PROGRAM is None, reason="PCG_CLAUDE_CODE is not set"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "claude-code.yaml"
"""The default model stretched by RoPE scaling, which is for tests: its answers are words, not
help."""

STOP_AT_ONCE = "server: {drain: {delay: 0s, timeout: 5s}}\ntiers: {ssd: {bytes: 0}}\n"
SMALL = ("--tools", "Read", "--system-prompt", "You are a helpful assistant.")
"""One tool and a short system text, so that a small CPU answers in seconds."""

MAX_OUTPUT = 64
CUT = f"exceeded the {MAX_OUTPUT} output token maximum"
"""What the program says of an answer that does not end. It has asked for the rest three times by
then."""


def turn(url: str, home: Path, words: str, *more: str, timeout_s: float = 400) -> dict[str, Any]:
    """One turn in print mode that ended in an answer, or in one that a small model would not bring
    to an end."""
    assert PROGRAM is not None
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "dummy",
        "API_TIMEOUT_MS": str(int(timeout_s * 1000)),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(MAX_OUTPUT),
    }
    done = subprocess.run(
        [PROGRAM, "-p", words, *more, "--output-format", "json"],
        env=environ,
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    assert not told["is_error"] or CUT in told["result"], told["result"]
    return told


def counted(url: str) -> Counter[str]:
    """Prompt tokens the gateway has billed by kind, and those it has skipped."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    found = Counter(
        {s.labels["kind"]: int(s.value) for s in samples if s.name == "pcg_prompt_tokens_total"}
    )
    return found + Counter(
        skipped=sum(int(s.value) for s in samples if s.name == "pcg_prefill_skipped_tokens_total")
    )


@pytest.mark.timeout(900)
def test_the_second_turn_reads_the_first(default_model: Path, tmp_path: Path) -> None:
    """Both turns complete, and the second reads most of what it sends."""
    with serving(EXAMPLE.read_text(encoding="utf-8") + STOP_AT_ONCE) as url:
        turn(url, tmp_path, "Say hello.", *SMALL)
        first = counted(url)
        turn(url, tmp_path, "Say hello again.", "--continue", *SMALL)
        second = counted(url) - first
    assert first["write_5m"] > 200
    assert second["read"] > 0.6 * (second["read"] + second["write_5m"] + second["uncached"])


@pytest.mark.timeout(1500)
def test_the_whole_prompt(default_model: Path, tmp_path: Path) -> None:
    """With all tools and its own system text: 20,000 tokens are computed once, and the second turn
    skips nearly all of them.

    The model is named in both turns, because the program otherwise describes a tool in other words
    when it continues.
    """
    named = ("--model", "claude-opus-4-8")
    with serving(EXAMPLE.read_text(encoding="utf-8") + STOP_AT_ONCE) as url:
        turn(url, tmp_path, "Say hello.", *named, timeout_s=800)
        first = counted(url)
        turn(url, tmp_path, "Say hello again.", "--continue", *named, timeout_s=600)
        second = counted(url) - first
    assert first["write_5m"] > 15_000
    total = second["read"] + second["write_5m"] + second["uncached"]
    assert second["read"] > 0
    assert second["skipped"] > 0.8 * total
