"""The modules of the packages and what they import, read from their source without running it.
Knows no rule."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module. `inside` is the enclosing function's name, None at module level (also
    under `TYPE_CHECKING`)."""

    target: str
    line: int
    inside: str | None


@dataclass(frozen=True, slots=True)
class Module:
    """One source file. `name` is dotted; a package is named without `__init__`."""

    name: str
    path: Path
    docstring: str | None
    imports: tuple[Import, ...]


def read_modules(root: Path, packages: Sequence[str]) -> dict[str, Module]:
    """Every module of `packages` below `root`, by dotted name."""
    paths = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    names = {path: dotted_name(path.relative_to(root)) for path in paths}
    known = frozenset(names.values())
    return {name: read_module(name, path, known) for path, name in names.items()}


def read_module(name: str, path: Path, known: frozenset[str]) -> Module:
    """Parse one file. `from package import x` counts as `package.x` where that is one of the
    `known` modules."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return Module(name, path, ast.get_docstring(tree), tuple(_imports(tree, known)))


def dotted_name(path: Path) -> str:
    """`engine/cache/__init__.py` -> `engine.cache`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def first_cycle(modules: Mapping[str, Module]) -> list[str]:
    """One import cycle as a list of names that begins and ends alike, or nothing."""
    graph = {
        name: {
            found.target
            for found in module.imports
            if found.target in modules and found.inside is None
        }
        for name, module in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def is_within(name: str, prefix: str) -> bool:
    """Whether a dotted name is `prefix` or lies below it."""
    return name == prefix or name.startswith(prefix + ".")


def _imports(node: ast.AST, known: frozenset[str], inside: str | None = None) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            if child.level:
                raise ValueError(f"relative import in line {child.lineno}")
            module = child.module or ""
            targets = {
                name if (name := f"{module}.{alias.name}") in known else module
                for alias in child.names
            }
            yield from (Import(target, child.lineno, inside) for target in sorted(targets))
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(child, known, child.name)
        else:
            yield from _imports(child, known, inside)
