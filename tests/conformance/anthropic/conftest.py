"""The gateway under test:

`pcg serve` on the default model and a clock the tests move, or what `PCG_CONFORMANCE_URL` names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.anthropic.asking import ALIASES, Asker
from tests.fakes.clocked import Clocked, start_clocked

POLICY: Final = f"""
models: [{{aliases: ["claude-*", "gpt-*", {", ".join(ALIASES)}], engine: {{kv_bytes: 1GiB}}}}]
server: {{drain: {{delay: 0s, timeout: 5s}}, sse: {{early_headers_after: none}}}}
tiers: {{ssd: {{bytes: 0}}}}
tenants: [{{name: one, keys: [key-one]}}, {{name: two, keys: [key-two]}}]
"""


@pytest.fixture(scope="session")
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clocked]:
    """One gateway for all conformance tests."""
    given = os.environ.get("PCG_CONFORMANCE_URL")
    if given is not None:
        moved = os.environ.get("PCG_CONFORMANCE_CLOCK")
        yield (
            Clocked(given, None)
            if moved is None
            else Clocked(given, Path(moved), float(Path(moved).read_text()))
        )
        return
    request.getfixturevalue("default_model")
    with start_clocked(tmp_path_factory.mktemp("conformance"), POLICY) as (server, clock):
        yield Clocked(server.base_url, clock)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["whole", "stream"])
def ask(request: pytest.FixtureRequest, served: Clocked) -> Asker:
    """Asks whole answers and streams in turn."""
    return Asker(served, request.param)


@pytest.fixture
def ask_whole(served: Clocked) -> Asker:
    """Asks whole answers only, where the form of the answer does not matter."""
    return Asker(served, False)
