"""Who may import whom. The table below is the architecture; the source is read, never run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.modules import Module, first_cycle, is_within, read_module, read_modules

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "gateway", "policies")
MODULES = read_modules(ROOT, PACKAGES)
LAZY = "engine.model"
"""The one package that may be imported inside a function, because it loads torch."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the modules below `module` may import besides the standard library. The longest matching
    `module` decides."""

    module: str
    may: tuple[str, ...]
    never: tuple[str, ...] = ()


PLANS = ("engine.types", "engine.prompt.types")
COMPOSITION = ("gateway.app", "gateway.cli.main")

RULES = (
    Rule("policies", ("policies", "pydantic", "pydantic_core", "ruamel.yaml")),
    Rule("engine", ("engine", "msgspec"), never=(LAZY,)),
    Rule(
        "engine.prompt",
        ("engine.prompt", "engine.errors", "msgspec", "jinja2", "tokenizers", "xxhash"),
    ),
    Rule(
        "engine.constrain",
        ("engine.constrain", "engine.prompt", "engine.errors", "engine.types", "llguidance"),
    ),
    Rule("engine.store", ("engine.store", "engine.errors", "engine.memory", "xxhash")),
    Rule("engine.store.open", ("engine.store", "engine.config", "engine.memory")),
    Rule("engine.store.encrypted", ("engine.store", "engine.memory", "cryptography")),
    Rule("engine.store.redis", ("engine.store", "engine.memory", "redis")),
    Rule(
        "engine.cache",
        (
            *(
                "engine.cache",
                "engine.store",
                "engine.errors",
                "engine.memory",
                *PLANS,
                "engine.prompt.rendered",
            ),
            *("msgspec", "xxhash"),
        ),
    ),
    Rule(
        "engine.schedule",
        ("engine.schedule", "engine.cache", "engine.errors", *PLANS, "engine.prompt.rendered"),
    ),
    Rule(
        "engine.model",
        (
            "engine",
            "torch",
            "transformers",
            "safetensors",
            "numpy",
            "gguf",
            "accelerate",
            "huggingface_hub",
            "msgspec",
        ),
        never=("engine.core", "engine.worker", "engine.cache"),
    ),
    Rule("gateway.request", ("gateway.request", *PLANS, "policies.rules", "msgspec")),
    Rule("gateway.errors", ()),
    Rule(
        "gateway.wire",
        (
            *(
                "gateway.wire",
                "gateway.request",
                "gateway.errors",
                "gateway.wire.sse",
                "gateway.backends.base",
                "policies",
            ),
            *(*PLANS, "msgspec", "orjson"),
        ),
    ),
    Rule(
        "gateway.dialects",
        ("gateway.dialects", "gateway.request", "gateway.errors", *PLANS, "policies", "msgspec"),
    ),
    Rule(
        "gateway.serve.handler",
        ("gateway", "engine.messages", *PLANS, "policies", "msgspec", "structlog"),
        never=(
            *(
                *COMPOSITION,
                "gateway.http.server",
                "gateway.backends.local",
                "gateway.backends.router",
                "gateway.upstream.http",
            ),
            "aiohttp",
        ),
    ),
    Rule(
        "gateway.upstream.proxy",
        ("gateway", "policies", "orjson"),
        never=(*COMPOSITION, "gateway.http.server", "gateway.upstream.http"),
    ),
    Rule(
        "gateway.upstream.reported",
        ("gateway.wire.sse", "gateway.wire.reported", "policies", "msgspec"),
    ),
    Rule(
        "gateway",
        (
            "gateway",
            "engine",
            "policies",
            "aiohttp",
            "http_sf",
            "msgspec",
            "orjson",
            "prometheus_client",
            "structlog",
        ),
        never=(LAZY, *COMPOSITION),
    ),
    Rule(
        "gateway.app",
        (
            "gateway",
            "engine",
            "policies",
            "aiohttp",
            "msgspec",
            "orjson",
            "prometheus_client",
            "structlog",
        ),
        never=(LAZY, "gateway.cli.main"),
    ),
    Rule(
        "gateway.cli.cache",
        ("gateway", "engine", "policies", "cyclopts", "rich", "msgspec"),
        never=(LAZY, *COMPOSITION),
    ),
    Rule(
        "gateway.cli.main",
        ("gateway", "engine", "policies", "cyclopts", "rich", "msgspec", "orjson", "structlog"),
        never=(LAZY,),
    ),
)


def rule_for(name: str) -> Rule:
    """The most specific rule for a module."""
    return max(
        (rule for rule in RULES if is_within(name, rule.module)), key=lambda rule: len(rule.module)
    )


def violations(module: Module) -> list[str]:
    """What a module imports against its rule, as `module:line target`."""
    rule = rule_for(module.name)
    found = []
    for imported in module.imports:
        target = imported.target
        if target.split(".")[0] in sys.stdlib_module_names:
            continue
        if imported.inside is not None and is_within(target, LAZY):
            continue
        allowed = any(is_within(target, prefix) for prefix in rule.may)
        if not allowed or any(is_within(target, prefix) for prefix in rule.never):
            found.append(f"{module.name}:{imported.line} {target}")
    return found


def test_every_import_is_allowed() -> None:
    """No module of the three packages imports what its rule does not list."""
    assert [line for module in MODULES.values() for line in violations(module)] == []


def test_imports_are_at_the_top() -> None:
    """Imports inside functions are only those that load `engine.model`, from one function."""
    inside = [
        (m.name, i.inside, i.target)
        for m in MODULES.values()
        for i in m.imports
        if i.inside is not None
    ]
    assert [place for place in inside if not is_within(place[2], LAZY)] == []


def test_no_import_cycles() -> None:
    """The modules can be put in an order in which each imports only earlier ones, type-checking
    imports included."""
    assert first_cycle(MODULES) == []


def test_only_the_model_package_names_torch() -> None:
    """torch and transformers appear in no import outside `engine.model`, not even inside a
    function."""
    heavy = ("torch", "transformers", "accelerate", "gguf", "safetensors")
    users = {m.name for m in MODULES.values() for i in m.imports if i.target.split(".")[0] in heavy}
    assert {name for name in users if not is_within(name, LAZY)} == set()


@pytest.mark.parametrize(
    "name", ["engine", "engine.core", "gateway", "gateway.app", "gateway.cli.main", "policies"]
)
def test_importing_loads_no_torch(name: str) -> None:
    """A fresh interpreter that imports the package has neither torch nor transformers loaded."""
    code = (
        f"import sys, {name}; print(sorted({{'torch', 'transformers', 'numpy'}} & "
        "set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("gateway.wire.x", "import aiohttp", ["aiohttp"]),
        ("gateway.x", "from gateway.app import run", ["gateway.app"]),
        ("engine.cache.x", "def f():\n    import torch", ["torch"]),
        ("engine.worker", "def f():\n    from engine.model.load.load import load_runner", []),
        (
            "engine.worker",
            "from engine.model.load.load import load_runner",
            ["engine.model.load.load"],
        ),
        ("policies.x", "import json\nfrom gateway import request", ["gateway"]),
    ],
)
def test_the_rules_catch(name: str, source: str, expected: list[str], tmp_path: Path) -> None:
    """Controls: known offences are reported, the allowed lazy import is not."""
    path = tmp_path / "x.py"
    path.write_text(source)
    module = read_module(name, path, frozenset())
    assert [line.split()[1] for line in violations(module)] == expected


def test_a_cycle_is_found(tmp_path: Path) -> None:
    """Control: two modules that import each other, one of them for types only, are a cycle."""
    package = tmp_path / "p"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from p import b\n")
    (package / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a\n"
    )
    assert set(first_cycle(read_modules(tmp_path, ["p"]))) == {"p.a", "p.b"}
