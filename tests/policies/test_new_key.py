"""A further rule of providers is one field: read, described and resolved without other changes."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import policies

PACKAGE = Path(policies.__file__).parent
FIELD = '    toy: Count = Field(default=3, description="A toy.")\n'

POLICY = """
presets: {openai: {toy: 5}}
dialects: [{match: spoiled, preset: openai, toy: 8}, {match: plain, preset: openai}]
"""

SCRIPT = """
import json, sys
from pathlib import Path

from engine.types import CachePlan
from policies.errors import PolicyError
from policies.json_schema import json_schema
from policies.keys import key_paths
from policies.load import parse_policy

def read(text):
    return parse_policy(text, file="p.yaml", environ={}, folder=Path())

def plan(rules):  # a dialect that reads the key
    return CachePlan(min_tokens=rules.toy)

policy = read(sys.stdin.read())
models = {"spoiled": "openai", "plain": "openai", "claude-opus-5": "anthropic"}
try:
    read("presets: {openai: {toy: -1}}")
except PolicyError as error:
    problem = str(error)
sections = json_schema()["$defs"].items()
print(json.dumps({
    "planned": [plan(policy.rules_for(*model)).min_tokens for model in models.items()],
    "problem": problem,
    "keys": [key for key in key_paths() if key.endswith(".toy")],
    "schema": [name for name, shape in sections if "toy" in shape.get("properties", {})],
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The words of a process whose rules of providers have one field more."""
    root = tmp_path_factory.mktemp("changed")
    shutil.copytree(PACKAGE, root / "policies", ignore=shutil.ignore_patterns("__pycache__"))
    path = root / "policies" / "rules.py"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    (rules,) = [
        node
        for node in ast.parse("".join(lines)).body
        if isinstance(node, ast.ClassDef) and node.name == "PresetPolicy"
    ]
    assert rules.end_lineno is not None
    lines.insert(rules.end_lineno, FIELD)
    path.write_text("".join(lines), encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{PACKAGE.parent}"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=POLICY,
        env=environ,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_a_dialect_reads_it_under_its_name(told: dict[str, object]) -> None:
    """A line of `dialects`, else the preset's value in the file, else the default."""
    assert told["planned"] == [8, 5, 3]


def test_it_is_checked_and_described(told: dict[str, object]) -> None:
    """A wrong value is refused at its place; editors and the reference know the key of every
    preset and of `dialects`."""
    assert told["problem"] == "p.yaml:1: presets.openai.toy: must be at least 0, not -1"
    assert told["schema"] == ["PresetPolicy", "DialectPolicy"]
    presets = ("anthropic", "openai", "gemini", "deepseek", "kimi", "qwen", "openrouter")
    assert told["keys"] == [*(f"presets.{name}.toy" for name in presets), "dialects[].toy"]
