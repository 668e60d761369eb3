"""The gateway under test: `pcg serve` on the default model, and a clock the tests move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import openai
import pytest

from tests.conformance.openai.asking import Asker, Served
from tests.fakes.clocked import start_clocked

POLICY: Final = """
models: [{engine: {kv_bytes: 1GiB, exact: "on"}}]
server: {drain: {delay: 0s, timeout: 5s}, sse: {early_headers_after: none}}
tiers: {ssd: {bytes: 0}}
tenants: [{name: one, keys: [key-one]}, {name: two, keys: [key-two]}]
"""
FORMS: Final = {
    "chat": ("chat", False),
    "responses": ("responses", False),
    "chat-stream": ("chat", True),
    "responses-stream": ("responses", True),
}


@pytest.fixture(scope="session")
def served(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One gateway for all conformance tests of this API."""
    with start_clocked(tmp_path_factory.mktemp("conformance"), POLICY) as (server, clock):
        yield Served(server.base_url, clock)


@pytest.fixture(params=FORMS)
def ask(request: pytest.FixtureRequest, served: Served) -> Asker:
    """Asks by either API, whole and streamed in turn."""
    return Asker(served, *FORMS[request.param])


@pytest.fixture
def chat(served: Served) -> Asker:
    return Asker(served, "chat", False)


@pytest.fixture
def responses(served: Served) -> Asker:
    return Asker(served, "responses", False)


@pytest.fixture
def gpt(served: Served) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client
