"""A gateway with nothing but upstreams behind it, as production runs it, and requests to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from tests.fakes.backend import ScriptedBackend
from tests.fakes.upstream import FakeUpstream, Say, Script
from tests.gateway.serving import Served, serving

CLAUDE = "claude-sonnet-5"
GPT = "gpt-5.6"


@dataclass(frozen=True, slots=True)
class Proxied:
    """A running gateway and its upstreams: one of Anthropic's format, one of OpenAI's."""

    served: Served
    anthropic: FakeUpstream
    openai: FakeUpstream

    async def post(self, path: str, body: bytes | dict[str, Any], **headers: str) -> Answer:
        """One request, answered whole."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        sent = {"content-type": "application/json"} | {
            name.replace("_", "-"): text for name, text in headers.items()
        }
        async with self.served.http.post(path, data=data, headers=sent) as response:
            return Answer(response.status, await response.read(), response.headers)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client got."""

    status: int
    body: bytes
    headers: Any

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@asynccontextmanager
async def proxying(
    anthropic: Script | Say | None = None,
    openai: Script | Say | None = None,
    *,
    policy: str = "",
    claude: str = "",
    gpt: str = "",
) -> AsyncIterator[Proxied]:
    """Model ids `claude-*` go to one upstream and `gpt-*` to the other. `claude` and `gpt` are more
    lines of their entries."""
    first, second = FakeUpstream(anthropic or Say()), FakeUpstream(openai or Say())
    async with AsyncExitStack() as stack:
        for upstream in (first, second):
            await stack.enter_async_context(upstream.listening())
        backends = (
            f"models: []\nbackends:\n"
            f"  - {{name: claudes, api: anthropic, base_url: '{first.url}', models: [{{match: "
            f"'claude-*'}}]{claude}}}\n"
            f"  - {{name: gpts, api: openai, base_url: '{second.url}/v1', models: [{{match: "
            f"'gpt-*'}}]{gpt}}}\n"
        )
        served = await stack.enter_async_context(serving(ScriptedBackend(), backends + policy))
        yield Proxied(served, first, second)
