"""List the five largest files, functions and signatures of the three packages, as places to look.
Judges nothing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

PACKAGES = ("engine", "gateway", "policies")
NUM_LISTED = 5

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """Something of a size, and where it is."""

    size: int
    where: str


def functions(tree: ast.Module, path: Path) -> Iterator[tuple[FunctionNode, str]]:
    """Every function of a module with `path:line name`."""
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            yield node, f"{path}:{node.lineno} {node.name}"


def num_parameters(node: FunctionNode) -> int:
    """Parameters of a signature, without `self` and `cls`."""
    names = [
        argument.arg
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    ]
    return len([name for name in names if name not in ("self", "cls")])


def measure(root: Path) -> dict[str, list[Place]]:
    """Lines per file, lines per function and parameters per signature, largest first."""
    sizes: dict[str, list[Place]] = {
        "lines in a file": [],
        "lines in a function": [],
        "parameters in a signature": [],
    }
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        shown = path.relative_to(root)
        sizes["lines in a file"].append(Place(source.count("\n"), str(shown)))
        for node, where in functions(ast.parse(source), shown):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            sizes["lines in a function"].append(Place(num_lines, where))
            sizes["parameters in a signature"].append(Place(num_parameters(node), where))
    return {
        what: sorted(places, key=lambda place: (-place.size, place.where))
        for what, places in sizes.items()
    }


def main() -> None:
    for what, places in measure(Path(__file__).parents[1]).items():
        sys.stdout.write(f"most {what}:\n")
        for place in places[:NUM_LISTED]:
            sys.stdout.write(f"  {place.size:5d}  {place.where}\n")


if __name__ == "__main__":
    main()
