"""One meaning per word: no class name stands for two things in the three packages."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

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


RELATIVE = re.compile(r"(What|How|Which|Whoever|Where)\b")
"""Openings that leave the reader without a noun."""

MOST_RELATIVE = {"engine": 33, "gateway": 33, "policies": 0}
"""Docstrings that still open with one of them, by package. May only shrink."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a file with their lines: of modules, classes, functions, and those below
    constants and fields."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for at, statement in enumerate(body if isinstance(body, list) else ()):
            text = getattr(getattr(statement, "value", None), "value", None)
            if not isinstance(statement, ast.Expr) or not isinstance(text, str):
                continue
            if at == 0 or isinstance(body[at - 1], ast.Assign | ast.AnnAssign):
                yield statement.lineno, text


def relative_openings(root: Path) -> list[str]:
    """The docstrings of the files below a folder that open with a free relative."""
    return [
        f"{path}:{line} {text.splitlines()[0]}"
        for path in sorted(root.rglob("*.py"))
        for line, text in docstrings(path)
        if RELATIVE.match(text)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_open_with_a_noun_or_a_verb(package: str) -> None:
    """Not with "What it holds" or "Where it is": a first line names its subject."""
    found = relative_openings(ROOT / package)
    assert len(found) <= MOST_RELATIVE[package], "\n".join(found)
    assert len(found) >= MOST_RELATIVE[package], f"lower MOST_RELATIVE to {len(found)}"


def test_relative_openings_are_found(tmp_path: Path) -> None:
    """Control: in every place a docstring can be, and nowhere else."""
    (tmp_path / "x.py").write_text(
        '"""What this is."""\n\nA = 1\n"""How many."""\n\n'
        'def f():\n    """Where it ends."""\n    g("x")\n    "What is no docstring"\n'
        '    return "How"\n\nclass C:\n    """Whatever it is."""\n\n    b: int\n    """Which."""\n'
    )
    assert [line.split(" ", 1)[1] for line in relative_openings(tmp_path)] == [
        *("What this is.", "How many.", "Where it ends.", "Which."),
    ]
