"""What can be checked of the way the source is written."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tools.largest import measure
from tools.modules import read_modules

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("engine", "gateway", "policies", "bench", "examples", "tools")
    for path in (ROOT / folder).rglob("*.py")
)
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=shown)
def test_first_statement_says_what_the_file_is(path: Path) -> None:
    """Every file begins with a docstring whose first line is a sentence, empty package markers
    included."""
    docstring = ast.get_docstring(parsed(path))
    assert docstring
    assert docstring.splitlines()[0].rstrip().endswith((".", ":", ","))


@pytest.mark.parametrize("path", TESTS, ids=shown)
def test_every_test_says_what_it_shows(path: Path) -> None:
    """Every test function has a docstring."""
    tree = parsed(path)
    tests = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name.startswith("test_")
    ]
    assert [node.name for node in tests if ast.get_docstring(node) is None] == []


@pytest.mark.parametrize("path", TESTS, ids=shown)
def test_tests_do_not_sleep(path: Path) -> None:
    """No test waits for time to pass: they wait for events, or move an injected clock."""
    tree = parsed(path)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    waits = [
        call for call in calls if ast.unparse(call.func) in ("time.sleep", "sleep", "asyncio.sleep")
    ]
    sleeps = [
        call.lineno for call in waits if [ast.unparse(argument) for argument in call.args] != ["0"]
    ]
    assert sleeps == []


@pytest.mark.parametrize("word", ["Manager", "Helper", "Utils"])
def test_no_class_or_module_has_an_empty_name(word: str) -> None:
    """Names that say nothing are not used for classes or modules."""
    modules = read_modules(ROOT, ("engine", "gateway", "policies"))
    classes = [
        f"{shown(path)}:{node.name}"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and word in node.name
    ]
    assert classes == []
    assert [name for name in modules if word.lower() in name.rsplit(".", 1)[-1]] == []


def test_the_listing_orders_by_size(tmp_path: Path) -> None:
    """The listing of `make check` names the longest function and the widest signature first."""
    for package in ("engine", "gateway", "policies"):
        (tmp_path / package).mkdir()
    (tmp_path / "engine" / "a.py").write_text(
        "def one(self, x, *, y): ...\n\n\ndef two(x):\n    pass\n    pass\n"
    )
    sizes = measure(tmp_path)
    assert [place.where for place in sizes["lines in a function"]] == [
        "engine/a.py:4 two",
        "engine/a.py:1 one",
    ]
    assert sizes["parameters in a signature"][0].size == 2


def test_lines_fit_a_hundred_columns() -> None:
    """Where no formatter of Python looks: the kernels."""
    kernels = sorted((ROOT / "engine/native/src").glob("*.[ch]"))
    assert kernels
    wide = [
        f"{shown(path)}:{number}"
        for path in kernels
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 100
    ]
    assert wide == []
