"""Who may import whom. The table below is the architecture; the source is read, never run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
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
    """What the modules below `module` may import besides the standard library and their own room.

    The longest matching `module` decides.
    """

    module: str
    may: tuple[str, ...]
    never: tuple[str, ...] = ()


COMPOSITION = ("gateway.app", "gateway.cli")
PLANS = ("engine.types", "engine.prompt.types", "engine.prompt.numerals")
FACTS = ("gateway.request", "gateway.errors", "gateway.models")
"""What every room of the gateway may know of a request."""

STAIRS = (
    *("gateway.wire", "gateway.dialects", "gateway.backends"),
    *("gateway.calls", "gateway.upstream", "gateway.bill", "gateway.state", "gateway.serve"),
    *("gateway.http", "gateway.operate"),
)
"""The gateway's rooms, the lowest first. Each may import those before it, as its rule says."""

RULES = (
    # Decisions
    Rule("policies", ("pydantic", "pydantic_core", "ruamel.yaml")),
    # The engine
    Rule("engine", ("engine", "msgspec"), never=(LAZY,)),
    Rule("engine.memory", ()),
    Rule("engine.structures", ()),
    Rule("engine.metric", ()),
    Rule("engine.errors", ()),
    Rule("engine.types", ("engine.prompt.types", "msgspec")),
    Rule("engine.messages", (*PLANS, "msgspec")),
    Rule(
        "engine.prompt",
        ("engine.errors", "engine.structures", "msgspec", "jinja2", "tokenizers", "xxhash"),
    ),
    Rule("engine.output", ("engine.prompt", "engine.types", "msgspec")),
    Rule(
        "engine.constrain",
        ("engine.prompt", "engine.errors", "engine.structures", "engine.types", "llguidance"),
    ),
    Rule(
        "engine.store",
        ("engine.errors", "engine.memory", "engine.structures", "msgspec", "xxhash"),
    ),
    Rule("engine.store.open", ("engine.store", "engine.config", "engine.memory")),
    Rule("engine.store.encrypted", ("engine.store", "engine.memory", "cryptography")),
    Rule("engine.store.redis", ("engine.store", "engine.memory", "msgspec", "redis")),
    Rule(
        "engine.cache.tree",
        ("engine.metric", "engine.prompt.types", "engine.store.base", "engine.structures"),
    ),
    Rule(
        "engine.cache.tree.prompt",
        ("engine.cache.tree", "engine.prompt.rendered", *PLANS),
    ),
    Rule(
        "engine.cache.tiers",
        (
            *("engine.cache.tree", "engine.store", "engine.memory", "engine.prompt.types"),
            *("msgspec", "xxhash"),
        ),
    ),
    Rule("engine.cache.lookup", ("engine.cache.tree", *PLANS)),
    Rule("engine.cache.hit", ("engine.cache.tree", *PLANS)),
    Rule("engine.cache.explain", ("engine.cache.hit", "engine.cache.tree", *PLANS)),
    Rule("engine.cache", ("engine.store.base", *PLANS, "engine.prompt.rendered")),
    Rule(
        "engine.schedule",
        ("engine.cache.tree", "engine.errors", *PLANS, "engine.prompt.rendered"),
    ),
    Rule(
        "engine.loop",
        (
            *("engine.cache", "engine.schedule", "engine.output", "engine.prompt", *PLANS),
            *("engine.errors", "engine.inbox", "engine.messages", "engine.stats", "msgspec"),
        ),
    ),
    # Models: the only rooms with torch. Load sees all of them, they do not see it.
    Rule(
        "engine.model",
        ("engine.errors", "engine.memory", "engine.schedule", *PLANS, "torch", "numpy"),
    ),
    Rule("engine.model.sampling", ("engine.schedule", *PLANS, "torch", "numpy")),
    Rule(
        "engine.model.generic",
        ("engine.model", "engine.errors", "engine.schedule", "torch", "transformers"),
        never=("engine.model.load", "engine.model.lean", "engine.model.native"),
    ),
    Rule(
        "engine.model.llama",
        ("engine.model", "engine.errors", "torch", "transformers"),
        never=tuple(
            f"engine.model.{name}" for name in ("load", "generic", "lean", "native", "paged")
        ),
    ),
    Rule(
        "engine.model.lean",
        ("engine.model", "engine.schedule", "torch"),
        never=("engine.model.load", "engine.model.generic", "engine.model.native"),
    ),
    Rule(
        "engine.model.native",
        (
            *("engine.model", "engine.native", "engine.errors", "engine.memory"),
            *("engine.schedule", "torch", "transformers", "numpy"),
        ),
        never=("engine.model.load", "engine.model.generic", "engine.model.lean"),
    ),
    Rule(
        "engine.model.paged",
        (
            *("engine.model", "engine.config", "engine.memory", "engine.schedule"),
            *("torch", "numpy", "msgspec"),
        ),
        never=tuple(f"engine.model.{name}" for name in ("load", "generic", "lean", "native")),
    ),
    Rule(
        "engine.model.load",
        (
            *("engine.model", "engine.native", "engine.config", "engine.errors"),
            *("engine.schedule", "engine.types", "torch", "transformers", "safetensors"),
            *("numpy", "gguf", "accelerate", "huggingface_hub", "msgspec"),
        ),
    ),
    # The gateway, from the bottom of its stairs up
    Rule("gateway", (), never=("gateway",)),
    Rule("gateway.request", (*PLANS, "policies.rules", "msgspec")),
    Rule("gateway.errors", ()),
    Rule("gateway.models", ("engine.messages",)),
    Rule("gateway.ids", ()),
    Rule("gateway.session", ()),
    Rule("gateway.clock", ()),
    Rule("gateway.waits", ()),
    Rule("gateway.offload", ()),
    Rule("gateway.budget", ("gateway.errors",)),
    Rule("gateway.signals", ("structlog",)),
    Rule("gateway.ssd_shares", ("policies",)),
    Rule("gateway.tier_specs", ("engine.store", "gateway.ssd_shares", "policies")),
    Rule(
        "gateway.config",
        (
            *("engine.config", "engine.store.disk.kind", "gateway.clock", "gateway.tier_specs"),
            *("policies", "msgspec"),
        ),
    ),
    Rule("gateway.wire", (*FACTS, "policies", *PLANS, "msgspec", "orjson")),
    Rule("gateway.dialects", (*FACTS, *PLANS, "policies", "msgspec")),
    Rule(
        "gateway.backends",
        (
            *(*FACTS, "gateway.clock", "gateway.offload", "gateway.waits"),
            *("engine.config", "engine.errors"),
            *("engine.messages", *PLANS, "msgspec", "xxhash", "structlog"),
        ),
    ),
    Rule(
        "gateway.calls",
        (
            *FACTS,
            "gateway.wire.base",
            "gateway.backends.base",
            "engine.messages",
            "policies",
            "msgspec",
        ),
    ),
    Rule(
        "gateway.upstream",
        (
            *(*FACTS, "gateway.wire", "gateway.backends.base", "gateway.calls"),
            *("policies", "aiohttp", "msgspec", "orjson"),
        ),
    ),
    Rule(
        "gateway.bill",
        (*FACTS, "gateway.upstream.reported", "engine.types", "policies", "http_sf", "msgspec"),
    ),
    Rule(
        "gateway.state",
        (
            *(*FACTS, "gateway.wire", "gateway.backends.base", "gateway.calls", "gateway.bill"),
            *("gateway.clock", "engine.messages", "engine.prompt.numerals", "policies"),
            *("msgspec", "orjson", "structlog"),
        ),
    ),
    Rule(
        "gateway.serve",
        (
            *(*FACTS, "gateway.wire", "gateway.dialects", "gateway.backends.base"),
            *("gateway.calls", "gateway.upstream", "gateway.bill", "gateway.state"),
            *("gateway.ids", "gateway.session", "gateway.offload", "engine.messages", *PLANS),
            *("policies", "msgspec", "orjson", "structlog"),
        ),
        never=("gateway.upstream.http",),
    ),
    Rule(
        "gateway.http",
        (
            *(*FACTS, "gateway.wire", "gateway.calls", "gateway.state", "gateway.serve"),
            *(
                "gateway.budget",
                "gateway.clock",
                "gateway.ids",
                "engine.prompt.numerals",
                "policies",
            ),
            *("aiohttp", "msgspec", "orjson", "structlog"),
        ),
    ),
    Rule(
        "gateway.operate",
        ("gateway", "engine", "policies", "aiohttp", "msgspec", "prometheus_client", "structlog"),
        never=(LAZY, *COMPOSITION),
    ),
    Rule(
        "gateway.app",
        ("gateway", "engine", "policies", "aiohttp", "structlog"),
        never=(LAZY, "gateway.cli"),
    ),
    Rule(
        "gateway.cli",
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
    may = (*rule.may, rule.module)
    found = []
    for imported in module.imports:
        target = imported.target
        if target.split(".")[0] in sys.stdlib_module_names:
            continue
        if imported.inside is not None and is_within(target, LAZY):
            continue
        allowed = any(is_within(target, prefix) for prefix in may)
        if not allowed or any(is_within(target, prefix) for prefix in rule.never):
            found.append(f"{module.name}:{imported.line} {target}")
    return found


def test_every_import_is_allowed() -> None:
    """No module of the three packages imports what its rule does not list."""
    assert [line for module in MODULES.values() for line in violations(module)] == []


def test_the_stairs_of_the_gateway_go_one_way() -> None:
    """No room of the gateway imports one that stands after it in `STAIRS`."""
    upward = [
        f"{module.name}:{imported.line} {imported.target}"
        for module in MODULES.values()
        for below, room in enumerate(STAIRS)
        if is_within(module.name, room)
        for imported in module.imports
        if any(is_within(imported.target, above) for above in STAIRS[below + 1 :])
    ]
    assert upward == []


def test_rooms_are_small() -> None:
    """No folder of the three packages has more than 20 files side by side."""
    folders = Counter(path.parent for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    assert {str(folder): count for folder, count in folders.items() if count > 20} == {}


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


def c_includes(folder: Path) -> dict[str, set[str]]:
    """Which names of C files, without suffix, each name's files include."""
    including: dict[str, set[str]] = {}
    for path in sorted((*folder.glob("*.c"), *folder.glob("*.h"))):
        found = re.findall(r'^#include "(\w+)\.h"', path.read_text(encoding="utf-8"), re.MULTILINE)
        including.setdefault(path.stem, set()).update(name for name in found if name != path.stem)
    return including


def test_c_files_include_one_way() -> None:
    """The kernels' files can be put in an order in which each includes only earlier ones."""
    sorter = TopologicalSorter(c_includes(ROOT / "engine/native/src"))
    assert {"pcg", "attention", "step"} <= set(sorter.static_order())


def test_c_files_that_include_each_other_are_found(tmp_path: Path) -> None:
    """Control: two files whose names include each other are a cycle."""
    (tmp_path / "a.c").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text('#include "a.h"\n')
    with pytest.raises(CycleError):
        list(TopologicalSorter(c_includes(tmp_path)).static_order())
