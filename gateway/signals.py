"""The operator's wish to end, as events of the loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


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
    """SIGTERM and SIGINT set events inside the block, and do what they did before after it."""
    loop = asyncio.get_running_loop()
    stop = Stop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.on_signal, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
