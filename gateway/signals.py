"""Signals to end, as events of the loop. A hangup is none."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

_log = structlog.get_logger("pcg")


@dataclass(slots=True)
class Stop:
    """`asked` at the first signal, `insisted` at the second. `interrupted`: one was SIGINT,
    somebody sits and waits."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    insisted: asyncio.Event = field(default_factory=asyncio.Event)
    interrupted: bool = False

    def on_signal(self, number: signal.Signals) -> None:
        if self.asked.is_set():
            self.insisted.set()
        self.interrupted |= number is signal.SIGINT
        self.asked.set()


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """SIGTERM and SIGINT set events inside the block, and do what they did before after it; SIGHUP
    is only logged."""
    loop = asyncio.get_running_loop()
    stop = Stop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.on_signal, number)
    before = signal.getsignal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, _log_hangup)
    try:
        yield stop
    finally:
        for number in (*numbers, signal.SIGHUP):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGHUP, before)


def ignore_hangup() -> None:
    """SIGHUP has no effect any more, in this process and, unless it says otherwise, in those that
    it starts."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _log_hangup() -> None:
    _log.warning("SIGHUP is ignored: the policy is read at start only")
