"""A backend over an engine of real parts in this process: template,
cache and scheduler as they are, and a model of hashes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Any

from engine.core import PromptRenderer
from engine.messages import (
    Abort,
    Capabilities,
    Count,
    Counted,
    EngineStats,
    Failed,
    Finished,
    FromEngine,
    Snapshot,
    Started,
    Submit,
    TextDelta,
    ToolCallDelta,
)
from engine.prompt.types import Prompt
from gateway.backends.base import Event
from gateway.backends.mailbox import as_gateway_error
from gateway.models import ModelInfo
from gateway.request import Request
from tests.fakes.harness import Harness, Wiring
from tests.fakes.runner import FakeRunner

CONTEXT = 8000


class EngineBackend:
    """A `Backend`. Every byte of a prompt is a token; `runner` can be told what to say. Use as a
    context manager."""

    def __init__(
        self,
        name: str = "smollm2-135m-instruct",
        runner: FakeRunner | None = None,
        renderer: PromptRenderer | None = None,
        **options: Any,
    ) -> None:
        self.runner = runner or FakeRunner(num_pages=4000)
        wiring = Wiring(renderer=renderer, emit=self._emit)
        self.harness = Harness(
            self.runner, wiring, {"context": CONTEXT, "max_step_tokens": 4096, **options}
        )
        able = Capabilities(
            tools_first=True, exact=True, runner="fake", dtype="none", device="none"
        )
        self.model: ModelInfo | None = ModelInfo(name, CONTEXT, "f" * 8, able, 1_700_000_000.0)
        self.ready = True
        self.life = 1
        self._names = itertools.count()
        self._queues: dict[str, asyncio.Queue[FromEngine]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> EngineBackend:
        self._loop = asyncio.get_running_loop()
        self.harness.engine.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.harness.stop)

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        name, queue = self._open()
        over = False
        try:
            self.harness.engine.submit(
                Submit(
                    name,
                    request.tenant,
                    request.prompt,
                    request.plan,
                    request.sampling,
                    request.started_at_s,
                )
            )
            while not over:
                event = await queue.get()
                if isinstance(event, Failed):
                    over = True
                    raise as_gateway_error(event)
                assert isinstance(event, Started | TextDelta | ToolCallDelta | Finished)
                over = isinstance(event, Finished)
                yield event
        finally:
            del self._queues[name]
            if not over:
                self.harness.engine.abort(Abort(name))

    async def count(self, prompt: Prompt) -> int:
        name, queue = self._open()
        self.harness.engine.count(Count(name, prompt))
        event = await queue.get()
        if isinstance(event, Failed):
            raise as_gateway_error(event)
        assert isinstance(event, Counted)
        return event.num_prompt

    async def stats(self) -> EngineStats | None:
        name, queue = self._open()
        self.harness.engine.ask(Snapshot(name))
        event = await queue.get()
        assert isinstance(event, EngineStats)
        return event

    async def wait_loaded(self) -> None:
        """It is from the start."""

    def _open(self) -> tuple[str, asyncio.Queue[FromEngine]]:
        name = f"r{next(self._names)}"
        self._queues[name] = asyncio.Queue()
        return name, self._queues[name]

    def _emit(self, event: FromEngine) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._deliver, event)

    def _deliver(self, event: FromEngine) -> None:
        queue = self._queues.get(getattr(event, "request_id", ""))
        if queue is not None:
            queue.put_nowait(event)
