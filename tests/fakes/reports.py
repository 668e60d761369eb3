"""What the tests of public reports share: a gateway over an engine of real parts, one client of it,
and small blocks to send.

In this engine every byte of a prompt is a token and the model is a hash of all it can see, so that
counts can be said by hand and a wrong answer shows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from tests.fakes.engine_backend import EngineBackend
from tests.gateway.serving import ANTHROPIC, Served, serving

MODEL = "smollm2-135m-instruct"
"""Anthropic's rules with a minimum of 64 tokens."""

CC = {"type": "ephemeral"}
CC1H = {"type": "ephemeral", "ttl": "1h"}


def words(num_bytes: int, seed: str = "w") -> str:
    """A text of so many tokens, always the same."""
    return (f"{seed}0 " + " ".join(f"{seed}{i}" for i in range(num_bytes)))[:num_bytes]


def text(value: str, mark: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": value, **({"cache_control": mark} if mark else {})}


def say(role: str, *blocks: Any) -> dict[str, Any]:
    return {
        "role": role,
        "content": [text(block) if isinstance(block, str) else block for block in blocks],
    }


def tool(name: str, mark: Any = None, **more: Any) -> dict[str, Any]:
    fields = {
        "name": name,
        "description": words(40, name),
        "input_schema": {"type": "object"},
        "cache_control": mark,
    }
    return fields | more


def call(name: str = "t1") -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "find", "input": {"q": "x"}}


@dataclass(frozen=True, slots=True)
class Told:
    """An answer as the client gets it."""

    status: int
    body: Any
    headers: Any

    @property
    def u(self) -> tuple[int, int, int, int]:
        """Read, written for five minutes, for an hour, uncached."""
        assert self.status == 200, self.body
        usage = self.body["usage"]
        written = usage["cache_creation"]
        return (
            usage["cache_read_input_tokens"],
            written["ephemeral_5m_input_tokens"],
            written["ephemeral_1h_input_tokens"],
            usage["input_tokens"],
        )

    @property
    def read(self) -> int:
        return self.u[0]

    @property
    def written(self) -> int:
        return self.u[1] + self.u[2]

    @property
    def error(self) -> str:
        assert self.status == 400, self.body
        assert self.body["error"]["type"] == "invalid_request_error"
        return str(self.body["error"]["message"])

    @property
    def text(self) -> str:
        return "".join(block.get("text", "") for block in self.body["content"])


@dataclass(frozen=True, slots=True)
class Desk:
    """A gateway and one client of it."""

    served: Served
    backend: EngineBackend

    async def ask(self, *messages: Any, headers: dict[str, str] | None = None, **body: Any) -> Told:
        """One request of one output token unless told otherwise."""
        fields = {
            "model": MODEL,
            "max_tokens": 1,
            "messages": messages or [say("user", "hi")],
        } | body
        return await self.send(orjson.dumps(fields), headers)

    async def send(self, body: bytes, headers: dict[str, str] | None = None) -> Told:
        async with self.served.http.post(
            "/v1/messages", data=body, headers=ANTHROPIC | (headers or {})
        ) as response:
            return Told(response.status, orjson.loads(await response.read()), response.headers)

    async def count(self, *messages: Any, **body: Any) -> int:
        fields = {"model": MODEL, "messages": messages} | body
        async with self.served.http.post(
            "/v1/messages/count_tokens", json=fields, headers=ANTHROPIC
        ) as response:
            return int((await response.json())["input_tokens"])

    def advance(self, seconds: float) -> None:
        self.served.clock.advance(seconds)


@asynccontextmanager
async def opened(policy: str = "", **options: Any) -> AsyncIterator[Desk]:
    async with EngineBackend(**options) as backend, serving(backend, policy) as served:
        yield Desk(served, backend)


REPAIR = "caching: {marker_errors: repair}"
