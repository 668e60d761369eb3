"""docs/compatibility.md names every field, block and item that a parser refuses by name,
and every route there is.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from gateway.app import build_app
from gateway.wire.anthropic import media
from gateway.wire.anthropic.parse import CHANGES_THE_ANSWER as NOT_OF_MESSAGES
from gateway.wire.openai.parse import CHANGES_THE_ANSWER as NOT_OF_CHAT
from gateway.wire.openai.responses.parse import NEEDS_MORE
from tests.fakes.backend import ScriptedBackend
from tests.fakes.clock import FakeClock
from tests.gateway.serving import make_policy

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*NOT_OF_MESSAGES, *NOT_OF_CHAT, *NEEDS_MORE])
def test_refused_fields_are_named(name: str) -> None:
    """As code, in the table of what is refused."""
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", sorted(media.UNSEEN))
def test_refused_blocks_are_named(name: str) -> None:
    """One by one, or as one of the results of tools that are not the client's."""
    assert f"`{name}`" in PAGE or name.endswith("_tool_result")


def test_every_route_is_named(tmp_path: Path) -> None:
    """Whatever a client can ask for, below /v1."""
    policy = make_policy()
    gateway = build_app(
        policy,
        {model.name: ScriptedBackend() for model in policy.models},
        FakeClock(),
        batches=tmp_path,
    )
    routes = {
        route.resource.canonical
        for route in gateway.app.router.routes()
        if isinstance(route.resource, web.Resource)
    }
    served = {path for path in routes if path.startswith("/v1/")}
    assert len(served) > 10
    below = {
        path: (path, f"/{path.rpartition('/')[2]}", path.removesuffix("/{id}")) for path in served
    }
    assert [
        path for path, names in below.items() if not any(f"{name}`" in PAGE for name in names)
    ] == []
