"""Every policy key, metric and header is documented,
and the generated pages are what the code says now.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from engine.types import MissCause
from gateway.operate.metrics import Metrics
from policies.schema import Policy
from tools.reference import documents, policy_keys, with_generated

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_generated_pages_are_current() -> None:
    """`make docs` would change nothing."""
    assert {path.name: path.read_text(encoding="utf-8") for path in documents()} == {
        p.name: t for p, t in documents().items()
    }


def test_every_policy_key_is_documented() -> None:
    """Each property name of the JSON Schema, at any depth, is the last part of a key in
    docs/policy.md, with a meaning."""
    schema = Policy.model_json_schema()
    names = {
        name for part in (schema, *schema["$defs"].values()) for name in part.get("properties", {})
    }
    keys = list(policy_keys())
    parts = {part.removesuffix("[]") for key in keys for part in key.path.split(".")}
    assert names == parts
    assert [key.path for key in keys if not key.meaning.endswith(".")] == []
    page = (DOCS / "policy.md").read_text(encoding="utf-8")
    assert [key.path for key in keys if f"`{key.path}`" not in page] == []


def test_every_metric_is_documented() -> None:
    """Each family in a scrape is named in docs/metrics.md."""
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    metrics = Metrics().describe()
    assert metrics
    assert [metric.name for metric in metrics if f"`{metric.name}`" not in page] == []
    families = {family.name for family in Metrics().registry.collect()}
    described = {metric.name for metric in metrics}
    assert {
        name for name in families if name not in described and f"{name}_total" not in described
    } == set()


def header_names(path: Path) -> set[str]:
    """Our own header names among the string constants of a file; a name that is completed at run
    time ends in `-`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in texts if re.fullmatch(r"pcg-[a-z0-9-]+", text)}


def test_every_header_is_documented() -> None:
    """Each `pcg-*` name in the gateway's source is in docs/headers.md."""
    page = (DOCS / "headers.md").read_text(encoding="utf-8")
    names = {name for path in (ROOT / "gateway").rglob("*.py") for name in header_names(path)}
    assert {"pcg-cache", "pcg-cost-usd"} <= names
    assert [name for name in sorted(names) if name not in page] == []


def test_every_miss_reason_is_documented() -> None:
    """Each word that `pcg-miss-reason` may begin with is in docs/headers.md."""
    page = (DOCS / "headers.md").read_text(encoding="utf-8")
    reasons = get_args(MissCause)
    assert "cold" in reasons
    assert [reason for reason in reasons if f"`{reason}`" not in page] == []


def test_generated_part_is_replaced_and_nothing_else() -> None:
    """Control: the prose around the two comments stays; a page without them is refused."""
    page = "before\n<!-- generated: make docs -->\nold\n<!-- end of the generated part -->\nafter\n"
    assert with_generated(page, "new\n").split("\n") == [
        *(
            "before",
            "<!-- generated: make docs -->",
            "",
            "new",
            "",
            "<!-- end of the generated part -->",
            "after",
            "",
        ),
    ]
    with pytest.raises(ValueError, match="lacks"):
        with_generated("no comments", "new")


def test_the_places_named_in_the_architecture_exist() -> None:
    """Every "`NAME` in `FILE`" of docs/architecture.md is a definition of that file."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w.]+)` in\s+`([\w/]+\.py)`", text)
    assert len(named) >= 8
    for name, path in named:
        scope: ast.AST = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        for part in name.split("."):
            scope = next(
                (node for node in ast.iter_child_nodes(scope) if defines(node, part)), scope
            )
            assert defines(scope, part), f"{path} has no {name}"


def defines(node: ast.AST, name: str) -> bool:
    """Whether a statement defines a class, function or constant of that name."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == name
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name
