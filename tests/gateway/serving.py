"""A gateway as production runs it, on a free port of this machine,
over whatever backend a test gives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from gateway.app import Gateway, Listener, build_app, listening
from gateway.backends.base import Backend
from gateway.bill.record import Record
from gateway.dialects.dialect import Dialect
from gateway.dialects.registry import DIALECTS
from gateway.operate.inventory import Inventory
from gateway.wire.base import Wire
from gateway.wire.registry import WIRES
from policies.load import parse_policy
from policies.rules import PresetName
from policies.schema import Policy
from tests.fakes.clock import FakeClock
from tests.gateway.totals import Totals, totals_of

ANTHROPIC = {"anthropic-version": "2023-06-01", "content-type": "application/json"}
OPENAI = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Served:
    """A running gateway and an HTTP client pointed at it. `records` are those of all requests that
    are over, newest last."""

    gateway: Gateway
    listener: Listener
    http: aiohttp.ClientSession
    clock: FakeClock
    records: list[Record]

    @property
    def url(self) -> str:
        return self.listener.url

    @property
    def totals(self) -> dict[tuple[str, str], Totals]:
        """What the records add up to, by (tenant, served model)."""
        return totals_of(self.records)


def make_policy(text: str = "") -> Policy:
    """The shipped policy with `text` on top, listening on a free port."""
    return parse_policy(
        text, file="test.yaml", environ={}, folder=Path(), overrides={"server": {"port": 0}}
    )


@asynccontextmanager
async def serving(
    backend: Backend,
    policy: str | Policy = "",
    *,
    inventory: Inventory | None = None,
    root_secret: bytes | None = None,
    batches: Path | None = None,
    wires: Mapping[str, Wire] = WIRES,
    dialects: Mapping[PresetName, Dialect] = DIALECTS,
) -> AsyncIterator[Served]:
    """`backend` behind a real socket for the length of the block. `batches` is a folder for message
    batches, worked through."""
    clock, records = FakeClock(), list[Record]()
    effective = make_policy(policy) if isinstance(policy, str) else policy
    backends = {model.name: backend for model in effective.models}
    gateway = build_app(
        effective,
        backends,
        clock,
        on_record=records.append,
        inventory=inventory,
        root_secret=root_secret,
        batches=batches,
        wires=wires,
        dialects=dialects,
    )
    async with (
        listening(gateway) as listener,
        aiohttp.ClientSession(listener.url) as http,
        asyncio.TaskGroup() as group,
    ):
        working = [group.create_task(gateway.background.run())]
        if gateway.batches is not None:
            working.append(group.create_task(gateway.batches.run()))
        yield Served(gateway, listener, http, clock, records)
        for task in working:
            task.cancel()


def anthropic_body(**more: object) -> dict[str, object]:
    """A minimal body of Anthropic's format."""
    return {
        "model": "claude-sonnet-5",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "Hi"}],
    } | more


def openai_body(**more: object) -> dict[str, object]:
    """A minimal body of OpenAI's format."""
    return {"model": "gpt-5.6", "messages": [{"role": "user", "content": "Hi"}]} | more
