"""Noticing an engine that hangs, by a clock that can jump:
a machine that slept is no engine that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from engine.messages import EngineStats
from gateway.backends.link import Link
from gateway.backends.mailbox import EventMailbox
from gateway.backends.watch import EngineHangs, watch

EVERY_S, HANG_S = 0.01, 0.5


class JumpingLink:
    """Answers a question after a moment, in which the loop's clock jumps by far more than an engine
    may be silent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._answers = answers
        self._jumped_s = 0.0
        self.asked = asyncio.Semaphore(0)
        real = self._loop.time
        monkeypatch.setattr(self._loop, "time", lambda: real() + self._jumped_s)

    @contextmanager
    def open(self, name: str, *, own: bool) -> Iterator[tuple[str, EventMailbox]]:
        self._mailbox = EventMailbox()
        yield name, self._mailbox

    async def send(self, message: Any) -> None:
        self.asked.release()
        if self._answers:
            self._jumped_s += 100 * HANG_S
            self._loop.call_later(
                3 * EVERY_S, self._mailbox.put, EngineStats(message.request_id, {}, {})
            )


async def test_a_clock_that_jumps_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended for hours again and again, and answered soon after: the watch goes on."""
    link = JumpingLink(monkeypatch, answers=True)
    watching = asyncio.create_task(watch(cast("Link", link), every_s=EVERY_S, hang_s=HANG_S))
    for _ in range(5):
        asked = asyncio.create_task(link.asked.acquire())
        await asyncio.wait((asked, watching), return_when=asyncio.FIRST_COMPLETED)
        assert not watching.done()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


async def test_silence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer at all is an engine that hangs, and only one question is left with it."""
    link = JumpingLink(monkeypatch, answers=False)
    with pytest.raises(EngineHangs):
        await watch(cast("Link", link), every_s=EVERY_S, hang_s=HANG_S)
    await link.asked.acquire()
    assert link.asked.locked()
