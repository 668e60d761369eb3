"""Several answers to one prompt (`n`): one engine request each, merged into one stream. Knows no wire format and no bill.

The first request prefills. The others are submitted once its first token exists, so that they find its prefix cached and
compute their answers only; a few at a time, so that one client's many answers leave room for others. The prompt is
one, and so is its bill: `Started` of the first request stands for all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

import msgspec

from engine.messages import Finished, Started
from gateway.backends.base import Backend, Event
from gateway.feed import EventFeed
from gateway.request import Request

MAX_AT_ONCE: Final = 8
"""Answers to one prompt that are in the engine at a time."""

SEED_MASK: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Chosen:
    """An event of answer number `index`; `Started` of the first answer is everyone's."""

    index: int
    event: Event


async def chosen(backend: Backend, request: Request) -> AsyncGenerator[Chosen, None]:
    """The events of every answer as they come, `Started` once and first. Raises as `Backend.generate` does.

    What one answer fails with ends them all, and closing the generator aborts them all.
    """
    feeds = {0: EventFeed(backend.generate(variant(request, 0)))}
    steps: dict[asyncio.Task[Event | None], int] = {_step(feeds[0]): 0}
    waiting, begun = deque(range(1, request.num_choices)), False
    try:
        while steps:
            done, _ = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
            for step in sorted(done, key=lambda step: steps[step]):
                index, event = steps.pop(step), step.result()
                assert event is not None
                begun = begun or not isinstance(event, Started)
                if isinstance(event, Finished):
                    await feeds.pop(index).close()
                else:
                    steps[_step(feeds[index])] = index
                while begun and waiting and len(feeds) < MAX_AT_ONCE:
                    other = waiting.popleft()
                    feeds[other] = EventFeed(backend.generate(variant(request, other)))
                    steps[_step(feeds[other])] = other
                if index == 0 or not isinstance(event, Started):
                    yield Chosen(index, event)
    finally:
        for step in steps:
            step.cancel()
        await asyncio.gather(*steps, return_exceptions=True)  # seen: nobody is left to tell
        for reader in feeds.values():
            await reader.close()


def variant(request: Request, index: int) -> Request:
    """The engine's request for answer number `index`: the same prompt under a seed of its own."""
    seed = request.sampling.seed
    if index == 0:
        return request
    sampling = request.sampling if seed is None else msgspec.structs.replace(request.sampling, seed=_seed(seed, index))
    return msgspec.structs.replace(request, id=f"{request.id}.{index}", sampling=sampling)


def _seed(seed: int, index: int) -> int:
    """Another 64-bit seed for every answer, the same each time."""
    moved = seed + index
    return moved if moved <= SEED_MASK else moved - 2**64


def _step(reader: EventFeed[Event]) -> asyncio.Task[Event | None]:
    return asyncio.create_task(reader.next())
