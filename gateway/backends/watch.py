"""Notices an engine that hangs: alive, connected, and getting nowhere. Knows no processes."""

from __future__ import annotations

import asyncio

from engine.messages import EngineStats, Snapshot
from gateway.backends.link import Link
from gateway.errors import GatewayError


class EngineHangs(Exception):
    """The engine has not answered a question for longer than any step takes."""


async def watch(link: Link, *, every_s: float, hang_s: float) -> None:
    """Ask the engine for its counters again and again: it answers between any two steps. Runs until cancelled, or raises
    `EngineHangs` when no answer has come for `hang_s`."""
    loop = asyncio.get_running_loop()
    answered_s = loop.time()
    while True:
        try:
            async with asyncio.timeout_at(answered_s + hang_s):
                if await _answers(link):
                    answered_s = loop.time()
        except TimeoutError:
            raise EngineHangs(f"no answer for {hang_s:g} s") from None
        await asyncio.sleep(every_s)


async def _answers(link: Link) -> bool:
    """Whether the engine thread itself has answered: a refusal comes from the thread that reads the socket."""
    with link.open("watch", own=True) as (frame_id, mailbox):
        await link.send(Snapshot(frame_id))
        try:
            return isinstance(await mailbox.get(), EngineStats)
        except GatewayError:
            return False
