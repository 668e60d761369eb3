"""Seconds that one request spends in named phases, and until its first token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timings:
    """`arrived_s` and every measurement are on the event loop's monotonic clock.

    `phases` are seconds by the short names of `Server-Timing`, in the order to show. `ttft_s` is
    None before the first token.
    """

    arrived_s: float
    phases: dict[str, float] = field(default_factory=dict)
    ttft_s: float | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a step in which no tokens are computed.

        A phase that is entered again adds up, and one that raises has its time too.
        """
        begin_s = self.elapsed_s()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + self.elapsed_s() - begin_s

    def first_token(self) -> None:
        """Note the time to the first token; later calls change nothing."""
        if self.ttft_s is None:
            self.ttft_s = self.elapsed_s()

    def elapsed_s(self) -> float:
        """Seconds since the request arrived."""
        return asyncio.get_running_loop().time() - self.arrived_s

    def shown(self, **engine_s: float) -> dict[str, float]:
        """All measurements, and those of the engine, as `Server-Timing` shows them."""
        timings = self.phases | engine_s
        if self.ttft_s is not None:
            timings["ttft"] = self.ttft_s
        return timings
