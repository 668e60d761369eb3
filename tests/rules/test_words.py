"""One meaning per word: no class name stands for two things in the three packages."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "gateway", "policies")

TWICE = frozenset({"BadFormat", "BadPrompt", "ContextExceeded", "Overloaded"})
"""Errors of the engine that the gateway tells its clients under the same names. May only shrink."""


def class_places() -> dict[str, list[str]]:
    """Where each class name of the three packages is defined, as `path:line`."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return places


def test_no_class_name_means_two_things() -> None:
    """A name that is looked up leads to one class; the listed exceptions are still exceptions."""
    twice = {name: places for name, places in class_places().items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in TWICE} == {}
    assert set(twice) >= TWICE, "take from TWICE what is unique by now"
