"""One model in several engine workers:
every request goes to the one that is believed to hold most of its prompt.

Knows neither HTTP nor processes. Any worker can answer any request: where it goes decides what it
costs, never what it says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Protocol

from engine.prompt.types import Prompt
from gateway.backends.affinity import Affinity, Holder, choose
from gateway.backends.base import Backend, Event
from gateway.backends.prefixes import PrefixTrace, trace_prefixes
from gateway.errors import EngineLost, Overloaded
from gateway.models import ModelInfo
from gateway.offload import OffloadThread
from gateway.request import Request
from gateway.waits import first_of

READY_S = 30.0
"""A request waits this long while no worker serves, or one is loading for the first time."""


class RoutedWorker(Backend, Protocol):
    """A worker of a model."""

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `Backend.generate`."""
        ...

    @property
    def life(self) -> int:
        """0 until it serves, and one more after every start: what the worker had on its device
        until then is gone."""
        ...

    async def wait_loaded(self) -> None:
        """Returns when the worker is serving."""
        ...


class Router:
    """A `Backend` over the workers of one model. They share nothing but what lies in Redis."""

    def __init__(
        self,
        workers: Sequence[RoutedWorker],
        *,
        ready_s: float = READY_S,
        on_choice: Callable[[str], None] = lambda why: None,
        aside: OffloadThread | None = None,
    ) -> None:
        """`on_choice` is told, for every worker that is asked, why: see `affinity.Why`, or
        `passed`: another one refused. Large prompts are hashed `aside`."""
        if not workers:
            raise ValueError("a model needs a worker")
        self._on_choice = on_choice
        self.workers = tuple(workers)
        self._ready_s = ready_s
        self._affinity = Affinity()
        self._aside = aside or OffloadThread()
        self._loads = [0] * len(workers)

    @property
    def ready(self) -> bool:
        """Whether a worker serves, and all have: until then what a late one has on its SSD would be
        computed elsewhere."""
        return any(worker.ready for worker in self.workers) and all(
            worker.life > 0 for worker in self.workers
        )

    @property
    def model(self) -> ModelInfo | None:
        return next((worker.model for worker in self.workers if worker.model is not None), None)

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """See `Backend.generate`. A worker that refuses before it has begun is as good as none: the
        next one is asked. A request whose worker died goes to no other."""
        traced, passed = (
            await self._aside.run(request.nbytes, partial(trace_prefixes, request)),
            set[int](),
        )
        while True:
            await self._wait_ready()
            holder, begun = self._choose(request, traced, passed), False
            try:
                with self._counted(holder):
                    async with aclosing(self.workers[holder.index].generate(request)) as events:
                        async for event in events:
                            begun = True
                            yield event
                return
            except EngineLost:
                self._affinity.forget(traced.digests, holder)
                raise  # maybe because of this very request
            except Overloaded:
                self._affinity.forget(traced.digests, holder)
                passed.add(holder.index)
                if begun or not self._able(passed):
                    raise

    async def count(self, prompt: Prompt) -> int:
        """See `Backend.count`. Any worker knows; one that refuses is passed over, one that died is
        not."""
        passed = set[int]()
        while True:
            await self._wait_ready()
            holder = min(self._able(passed), key=lambda holder: self._loads[holder.index])
            try:
                with self._counted(holder):
                    return await self.workers[holder.index].count(prompt)
            except EngineLost:
                raise
            except Overloaded:
                passed.add(holder.index)
                if not self._able(passed):
                    raise

    def _choose(self, request: Request, traced: PrefixTrace, passed: set[int]) -> Holder:
        """Who gets the request, and from now on is believed to hold its prompt: those that follow
        at once find it there."""
        loads = {holder: self._loads[holder.index] for holder in self._able(passed)}
        pick = choose(traced, loads, self._affinity, request.started_at_s)
        holder = pick.holder
        self._on_choice("passed" if passed else pick.why)
        if (ttl_s := _kept_s(request)) > 0:
            self._affinity.note(traced.digests, holder, request.started_at_s, ttl_s)
        return holder

    def _able(self, passed: set[int]) -> list[Holder]:
        """The workers that would serve a request now, without those that were asked already."""
        return [
            Holder(i, worker.life)
            for i, worker in enumerate(self.workers)
            if worker.ready and i not in passed
        ]

    async def _wait_ready(self) -> None:
        """Raises `Overloaded` when that takes too long."""
        try:
            async with asyncio.timeout(self._ready_s):
                while not self.ready:
                    await first_of(
                        *(worker.wait_loaded() for worker in self.workers if not worker.ready)
                    )
        except TimeoutError:
            raise Overloaded("the engine is loading; please try again", retry_after_s=5.0) from None

    @contextmanager
    def _counted(self, holder: Holder) -> Iterator[None]:
        self._loads[holder.index] += 1
        try:
            yield
        finally:
            self._loads[holder.index] -= 1


def _kept_s(request: Request) -> float:
    """The longest time that some of the prompt's KV stays, in seconds."""
    plan = request.plan
    return (
        max([plan.unmarked_ttl_s, *(entry.ttl_s for entry in plan.writable)]) if plan.store else 0.0
    )
