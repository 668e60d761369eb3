"""A backend that plays scripts: exact reports and texts, errors where told, gates to hold it.

No engine, no process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from engine.messages import Capabilities, EngineStats, Finished, Started, TextDelta, ToolCallDelta
from engine.prompt.types import Prompt
from engine.types import Boundary, CacheReport, FinishReason, Hit
from gateway.backends.base import Event
from gateway.errors import GatewayError
from gateway.models import ModelInfo
from gateway.request import Request


@dataclass(frozen=True, slots=True)
class Script:
    """One answer: `texts` of one token each, then `deltas` as they are.

    `before_started` and `before_text` hold it until set; `error` comes after `error_after` texts,
    and instead of `Started` when that is None.
    """

    report: CacheReport = field(default_factory=lambda: CacheReport(num_prompt=10))
    texts: tuple[str, ...] = ("Hello", " world")
    deltas: tuple[TextDelta | ToolCallDelta, ...] = ()
    reason: FinishReason = "stop"
    stop: str | None = None
    error: Exception | None = None
    error_after: int | None = None
    before_started: asyncio.Event | None = None
    before_text: dict[int, asyncio.Event] = field(default_factory=dict)


def report_for(request: Request, num_prompt: int, offset: int, *, warm: bool) -> CacheReport:
    """A report in which every planned boundary ends at `offset`: all new when cold, all read when
    `warm`."""
    boundaries = tuple(Boundary(p.position, offset, p.ttl_s, warm) for p in request.plan.writable)
    if not warm:
        return CacheReport(num_prompt=num_prompt, boundaries=boundaries)
    hit = Hit(request.plan.readable[0], offset, request.plan.writable[0].ttl_s)
    return CacheReport(
        num_prompt=num_prompt,
        skipped=offset,
        hit=hit,
        boundaries=boundaries,
        tiers={"device": offset},
    )


class ScriptedBackend:
    """A `Backend`. `script` is asked once per request; `requests` are what arrived, `held` is set
    when one reaches a closed gate, `aborted` when one was closed before its end, and `num_open`
    says how many are being played."""

    def __init__(self, script: Callable[[Request], Script] | Script | None = None) -> None:
        chosen = Script() if script is None else script
        self._script = (lambda request: chosen) if isinstance(chosen, Script) else chosen
        self.requests: list[Request] = []
        self.held = asyncio.Event()
        self.aborted = asyncio.Event()
        self.num_open = 0
        self.num_tokens = 7
        self.ready = True
        self.life = 1
        self.loaded = asyncio.Event()
        self.counters: dict[str, float] = {}
        able = Capabilities(
            tools_first=True, exact=True, runner="scripted", dtype="float32", device="cpu"
        )
        self.model: ModelInfo | None = ModelInfo(
            "smollm2-135m-instruct", 8192, "f" * 8, able, 1_700_000_000.0
        )

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self.num_open += 1
        over = False
        try:
            async for event in self._play(self._script(request), request.id):
                over = isinstance(event, Finished)
                yield event
        except GatewayError:
            over = True
            raise
        finally:
            self.num_open -= 1
            if not over:
                self.aborted.set()

    async def _play(self, script: Script, name: str) -> AsyncGenerator[Event, None]:
        await self._pass(script.before_started)
        if script.error is not None and script.error_after is None:
            raise script.error
        yield Started(name, script.report, 0.001, 0.002, 0.003)
        for i, text in enumerate(script.texts):
            if script.error is not None and script.error_after == i:
                raise script.error
            await self._pass(script.before_text.get(i))
            yield TextDelta(name, text, (i,))
        for delta in script.deltas:
            yield delta
        if script.error is not None:
            raise script.error
        num_output = len(script.texts) + sum(len(delta.token_ids) for delta in script.deltas)
        yield Finished(name, script.reason, num_output, script.stop, 0.25, 0.5)

    async def _pass(self, gate: asyncio.Event | None) -> None:
        if gate is not None:
            self.held.set()
            await gate.wait()

    async def count(self, prompt: Prompt) -> int:
        return self.num_tokens

    async def wait_loaded(self) -> None:
        await self.loaded.wait()

    def die(self) -> None:
        """Not ready until `start`; what is being played goes on."""
        self.ready = False
        self.loaded.clear()

    def start(self) -> None:
        """Ready again, with nothing on its device."""
        self.ready = True
        self.life += 1
        self.loaded.set()

    async def stats(self) -> EngineStats | None:
        return EngineStats("s", self.counters, {}) if self.ready else None
