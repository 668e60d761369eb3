"""Several answers to one request (`n`, several prompts): an engine request each, one stream.

Knows no format and no bill.

The first request of a prompt prefills. The others are submitted once its first token exists, so
that they find its prefix cached and compute their answers only; a few at a time, so that one
client's many answers leave room for others. A prompt is computed once, and so is its bill:
`Started` of its first answer stands for all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from engine.messages import Finished, Started
from gateway.backends.base import Backend, Event
from gateway.calls.feed import EventFeed
from gateway.request import Request

MAX_AT_ONCE: Final = 8
"""Answers to one request that are in the engine at a time."""

SEED_MASK: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ChoiceEvent:
    """An event of answer number `index`; `Started` is that of prompt number `index //
    num_choices`."""

    index: int
    event: Event


@dataclass(slots=True)
class _Merged:
    """The engine requests of one request: those that run, and those that wait. Owned by
    `merge_choices`."""

    backend: Backend
    request: Request
    ready: deque[int] = field(default_factory=deque)
    feeds: dict[int, EventFeed[Event]] = field(default_factory=dict)
    steps: dict[asyncio.Task[Event | None], int] = field(default_factory=dict)

    def begin(self) -> None:
        """Start as many of the ready ones as there is room for."""
        while self.ready and len(self.feeds) < MAX_AT_ONCE:
            index = self.ready.popleft()
            self.feeds[index] = EventFeed(self.backend.generate(variant(self.request, index)))
            self.await_next(index)

    def await_next(self, index: int) -> None:
        self.steps[asyncio.create_task(self.feeds[index].next())] = index

    async def close(self) -> None:
        for step in self.steps:
            step.cancel()
        # Nothing else reads their exceptions.
        await asyncio.gather(*self.steps, return_exceptions=True)
        for reader in self.feeds.values():
            await reader.aclose()


async def merge_choices(backend: Backend, request: Request) -> AsyncGenerator[ChoiceEvent, None]:
    """The events of every answer as they come, `Started` once per prompt, and that of the first
    prompt first of all.

    Raises as `Backend.generate` does: the error of one answer ends all of them. Closing the
    generator aborts all of them.
    """
    size, begun = request.num_choices, set[int]()
    merged = _Merged(backend, request, deque([0]))
    merged.begin()
    try:
        while merged.steps:
            done, _ = await asyncio.wait(merged.steps, return_when=asyncio.FIRST_COMPLETED)
            for step in sorted(done, key=lambda step: merged.steps[step]):
                index, event = merged.steps.pop(step), step.result()
                assert event is not None
                first = index - index % size
                if isinstance(event, Started):
                    if index == 0:
                        merged.ready.extend(range(size, request.num_answers, size))
                elif first not in begun:
                    begun.add(first)
                    merged.ready.extendleft(reversed(range(first + 1, first + size)))
                if isinstance(event, Finished):
                    await merged.feeds.pop(index).aclose()
                else:
                    merged.await_next(index)
                merged.begin()
                if index == first or not isinstance(event, Started):
                    yield ChoiceEvent(index, event)
    finally:
        await merged.close()


def variant(request: Request, index: int) -> Request:
    """The engine's request for answer number `index`: its prompt, under a seed of its own among
    those to that prompt."""
    if index == 0:
        return msgspec.structs.replace(request, other_prompts=())
    place, number = divmod(index, request.num_choices)
    sampling, prompt = (
        request.sampling,
        request.prompt if place == 0 else request.other_prompts[place - 1],
    )
    if sampling.seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=_seed(sampling.seed, number))
    return msgspec.structs.replace(
        request, id=f"{request.id}.{index}", sampling=sampling, prompt=prompt, other_prompts=()
    )


def _seed(seed: int, index: int) -> int:
    """Another 64-bit seed for every answer, the same each time."""
    moved = seed + index
    return moved if moved <= SEED_MASK else moved - 2**64
