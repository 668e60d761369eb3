"""The backend that generates with an engine in a worker process of its own, and keeps one running.

Knows nothing of HTTP and of models. A worker that dies or hangs costs its requests an `EngineLost`,
or `Poisonous` where it died of them (`poison.py`), and is replaced.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.messages import (
    Abort,
    Count,
    Counted,
    EngineStats,
    Finished,
    Flush,
    Flushed,
    Pin,
    Pinned,
    Snapshot,
    Started,
    Submit,
    TextDelta,
    Tick,
    ToolCallDelta,
)
from engine.prompt.types import Prompt
from engine.types import Sampling
from gateway.backends.base import Event
from gateway.backends.link import Link, ProtocolError
from gateway.backends.mailbox import RETRY_AFTER_S
from gateway.backends.poison import Poison
from gateway.backends.process import ProcessTimeouts, WorkerProcess, run_worker
from gateway.backends.watch import EngineHangs, watch
from gateway.clock import Clock
from gateway.errors import EngineFailed, EngineLost, Overloaded
from gateway.models import ModelInfo
from gateway.request import Request

A = TypeVar("A", Flushed, Pinned, EngineStats)

WORKER: Final[tuple[str, ...]] = (sys.executable, "-m", "engine.worker")


@dataclass(frozen=True, slots=True)
class WorkerTimeouts:
    """The time limits of a worker's life, in seconds."""

    ready_s: float = 30.0
    """A request waits this long for a worker that is loading."""
    tick_s: float = 1.0
    healthy_s: float = 60.0
    """A worker that lived this long is restarted at once, whatever happened before it."""
    watch_s: float = 5.0
    """From one question whether the worker still gets on to the next."""
    hang_s: float = 600.0
    """A worker that has not answered for so long hangs, and is replaced. A step of 512 tokens takes
    minutes where a large model runs on few cores."""
    backoff_s: tuple[float, ...] = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
    """Waits before the first, second, ... restart in a row; the last repeats."""


class LocalBackend:
    """A `Backend`. `run` keeps the worker alive and must be running while requests are made."""

    def __init__(
        self,
        config: EngineConfig,
        clock: Clock,
        *,
        command: Sequence[str] = WORKER,
        limits: ProcessTimeouts | None = None,
        patience: WorkerTimeouts | None = None,
        on_restart: Callable[[], None] = lambda: None,
        number: int = 0,
        poison: Poison | None = None,
    ) -> None:
        """`number` tells this worker from the others of its model, in the log; `poison` is what
        they all have died of."""
        self._config = config
        self._clock = clock
        self._command = command
        self._limits = limits or ProcessTimeouts()
        self._patience = patience or WorkerTimeouts()
        self._on_restart = on_restart
        self._poison = Poison() if poison is None else poison
        self._present: dict[str, tuple[Prompt, Sampling | None]] = {}
        self._worker: WorkerProcess | None = None
        self._loaded = asyncio.Event()
        self._model: ModelInfo | None = None
        self._life = 0
        self._log = structlog.get_logger("pcg.engine").bind(model=config.model, worker=number)

    @property
    def ready(self) -> bool:
        return self._worker is not None

    @property
    def model(self) -> ModelInfo | None:
        return self._model

    @property
    def life(self) -> int:
        """The number of workers that have served so far; each begins with an empty device."""
        return self._life

    @property
    def pid(self) -> int | None:
        """Of the worker serving now."""
        return self._worker.pid if self._worker else None

    @property
    def num_open(self) -> int:
        """Requests and questions in flight at the worker serving now."""
        return self._worker.link.num_open if self._worker else 0

    async def wait_loaded(self) -> None:
        """Returns when a worker is serving."""
        await self._loaded.wait()

    # Keeping a worker alive -----------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled: one worker after the other. Raises `ModelError` if the very first cannot
        load its model, OSError if it cannot be started."""
        num_failures = 0
        while True:
            began_s = asyncio.get_running_loop().time()
            try:
                await self._live()
                self._log.warning("engine ended: starting another")
            except ModelError as error:
                if self._model is None:
                    raise
                self._log.error("engine did not load", reason=str(error))
            except OSError as error:  # no memory for a process, no room for its socket
                if self._model is None:
                    raise
                self._log.error(
                    "engine did not start", reason=error.strerror or type(error).__name__
                )
            if asyncio.get_running_loop().time() - began_s > self._patience.healthy_s:
                num_failures = 0
            waits = self._patience.backoff_s
            await asyncio.sleep(waits[min(num_failures, len(waits) - 1)])
            num_failures += 1
            self._on_restart()

    async def _live(self) -> None:
        """One worker from start to end."""
        async with run_worker(self._command, self._config, self._limits) as worker:
            self._serve(worker)
            try:
                async with asyncio.TaskGroup() as group:
                    ticking = group.create_task(self._tick(worker.link))
                    watching = group.create_task(self._watch(worker.link))
                    await worker.link.run()
                    self._note_death()
                    ticking.cancel()
                    watching.cancel()
            except* ProtocolError as errors:
                self._note_death()
                self._log.error("engine broke the protocol", reason=str(errors.exceptions[0]))
            except* EngineHangs as errors:
                self._note_death()
                self._log.error("engine hangs", reason=str(errors.exceptions[0]))
            finally:
                self._present.clear()  # a worker that was told to end has died of nothing
                self._worker = None
                self._loaded.clear()

    def _serve(self, worker: WorkerProcess) -> None:
        hello = worker.hello
        self._model = ModelInfo(
            name=self._config.model,
            context=hello.context,
            fingerprint=hello.fingerprint,
            capabilities=hello.capabilities,
            created_at_s=self._model.created_at_s if self._model else self._clock(),
        )
        worker.link.post(Tick(self._clock()))
        self._worker = worker
        self._life += 1
        self._loaded.set()
        self._log.info(
            "engine ready",
            pid=worker.pid,
            load_s=round(hello.load_s, 3),
            fingerprint=hello.fingerprint,
        )

    async def _tick(self, link: Link) -> None:
        while True:
            await asyncio.sleep(self._patience.tick_s)
            link.post(Tick(self._clock()))

    async def _watch(self, link: Link) -> None:
        await watch(link, every_s=self._patience.watch_s, hang_s=self._patience.hang_s)

    def _note_death(self) -> None:
        """The worker has ended unasked: what it was serving is suspect. What was present is noted
        once."""
        if self._present:
            self._poison.died(list(self._present.values()))
            self._present.clear()

    @contextmanager
    def _served(self, frame_id: str, prompt: Prompt, sampling: Sampling | None) -> Iterator[None]:
        """For as long as the worker has a request. Raises `Poisonous` where it, or one like it, is
        not to have it again."""
        self._poison.check(prompt, sampling)
        self._present[frame_id] = (prompt, sampling)
        try:
            yield
        except EngineLost:
            self._note_death()
            self._poison.check(prompt, sampling)
            raise
        finally:
            self._present.pop(frame_id, None)

    async def _link(self) -> Link:
        """The connection to a loaded worker, waited for within bounds; `Overloaded` beyond them."""
        try:
            async with asyncio.timeout(self._patience.ready_s):
                while self._worker is None:
                    await self._loaded.wait()
                return self._worker.link
        except TimeoutError:
            raise Overloaded("the engine is loading; please try again", retry_after_s=5.0) from None

    # Serving --------------------------------------------------------------------------------------

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `Backend.generate`."""
        link = await self._link()
        with (
            link.open(request.id) as (frame_id, mailbox),
            self._served(frame_id, request.prompt, request.sampling),
        ):
            submit = Submit(
                request_id=frame_id,
                tenant=request.tenant,
                prompt=request.prompt,
                plan=request.plan,
                sampling=request.sampling,
                started_at_s=request.started_at_s,
            )
            over = False
            try:
                await link.send(submit)
                while not over:
                    event = await mailbox.get()
                    if not isinstance(event, Started | TextDelta | ToolCallDelta | Finished):
                        raise EngineFailed(f"the engine answered with {type(event).__name__}")
                    over = isinstance(event, Finished)
                    if isinstance(event, Finished) and event.reason == "cancelled":
                        raise Overloaded(
                            "the engine is stopping; please try again", retry_after_s=RETRY_AFTER_S
                        )
                    yield event
            finally:
                if not over:
                    link.post(
                        Abort(frame_id)
                    )  # of a request the engine has failed itself, this is ignored there

    async def count(self, prompt: Prompt) -> int:
        """See `Backend.count`. Raises as `generate` does."""
        link = await self._link()
        with link.open("ask") as (frame_id, mailbox), self._served(frame_id, prompt, None):
            await link.send(Count(frame_id, prompt, self._clock()))
            reply = await mailbox.get()
        if not isinstance(reply, Counted):
            raise EngineFailed(f"the engine answered with {type(reply).__name__}")
        return reply.num_prompt

    async def flush(self, tenant: str | None = None) -> int:
        """Forget what is cached for `tenant`, or for everyone; the number of blocks dropped."""
        reply = await self._ask(lambda frame_id: Flush(frame_id, tenant), Flushed)
        return reply.num_blocks

    async def pin(self, key: bytes, *, pinned: bool) -> Pinned:
        """Pin the entry whose stored object has this key, or unpin it; what became of it."""
        return await self._ask(lambda frame_id: Pin(frame_id, key, pinned), Pinned)

    async def stats(self) -> EngineStats | None:
        """The engine's counters and gauges; None while no worker serves."""
        return await self._ask(Snapshot, EngineStats) if self.ready else None

    async def _ask(self, question: Callable[[str], Flush | Pin | Snapshot], kind: type[A]) -> A:
        link = await self._link()
        with link.open("ask") as (frame_id, mailbox):
            await link.send(question(frame_id))
            reply = await mailbox.get()
        if not isinstance(reply, kind):
            raise EngineFailed(f"the engine answered with {type(reply).__name__}")
        return reply
