"""Notices an engine that hangs: alive, connected, and getting nowhere. Knows no processes."""

from __future__ import annotations

import asyncio

from engine.messages import EngineStats, Snapshot
from gateway.backends.link import Link
from gateway.errors import GatewayError


class EngineHangs(Exception):
    """The engine has not answered a question for longer than any step takes."""


async def watch(link: Link, *, every_s: float, hang_s: float) -> None:
    """Ask the engine for its counters again and again: it answers between any two steps. Runs until
    cancelled, or raises `EngineHangs` when no answer has come for `hang_s`.

    Time is counted in looks, `every_s` apart: while this process itself was stopped (a suspended
    machine, a debugger) the engine may have been too, and had no chance to answer.
    """
    num_silent = 0
    asking = asyncio.create_task(_answers(link))
    try:
        while num_silent * every_s < hang_s:
            done, _ = await asyncio.wait((asking,), timeout=every_s)
            num_silent = 0 if done and asking.result() else num_silent + 1
            if done:
                await asyncio.sleep(every_s)
                asking = asyncio.create_task(_answers(link))
    finally:
        asking.cancel()
        await asyncio.wait((asking,))
    raise EngineHangs(f"no answer for {hang_s:g} s")


async def _answers(link: Link) -> bool:
    """Whether the engine thread itself has answered: a refusal comes from the thread that reads the
    socket."""
    with link.open("watch", own=True) as (frame_id, mailbox):
        await link.send(Snapshot(frame_id))
        try:
            return isinstance(await mailbox.get(), EngineStats)
        except GatewayError:
            return False
