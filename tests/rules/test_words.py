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

MOST_RELATIVE = {"engine": 0, "gateway": 0, "policies": 0}
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


VAGUE = frozenset({"told", "said", "given", "lane", "crossing", "wish", "whoever"})
"""Words that name no part of the product: the field has a noun for each of their meanings."""


def vague_names(root: Path) -> list[str]:
    """The functions, classes, parameters, attributes and variables of a folder that bear one."""
    return [
        f"{path}:{line} {name}"
        for path in sorted(root.rglob("*.py"))
        for line, name in bound_names(path)
        if name.strip("_").lower() in VAGUE
    ]


def bound_names(path: Path) -> Iterator[tuple[int, str]]:
    """The names that a file defines, assigns or takes as parameters, and the attributes it uses."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.MatchMapping(rest=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_nouns_of_the_field(package: str) -> None:
    """No part of the product is called by a vague word, with or without an underscore."""
    assert vague_names(ROOT / package) == []


def test_vague_names_are_found(tmp_path: Path) -> None:
    """Control: at every place that binds a name, and not within a longer name or a text."""
    (tmp_path / "x.py").write_text(
        "import a as said\n\n"
        "def told(given, *wish, **whoever):\n    _told = lane.size\n    return 'told'\n\n"
        "class Lane:\n    crossing: int\n\n"
        "async def _said():\n    self._given += 1\n    for told_s in other: pass\n"
        "try: f()\nexcept E as said: pass\n"
        "match x:\n    case [told, *wish]: pass\n    case {'a': 1, **given}: pass\n"
        "if (whoever := 1): pass\n"
    )
    found = [line.rsplit(":", 1)[1] for line in vague_names(tmp_path)]
    assert sorted(found) == sorted(
        [
            *("1 said", "3 told", "3 given", "3 wish", "3 whoever", "4 _told"),
            *("7 Lane", "8 crossing", "10 _said", "11 _given", "14 said"),
            *("16 told", "16 wish", "17 given", "18 whoever"),
        ]
    )
