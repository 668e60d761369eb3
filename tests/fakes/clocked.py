"""A real gateway on the default model whose clock the tests move. Knows no SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.serving import Server, make_home, start

NOW_S: Final = 1_800_000_000.0


def set_clock(clock: Path, now_s: float) -> None:
    """What `PCG_TEST_CLOCK` names tells this time from now on; no reader ever sees half of it."""
    draft = clock.with_suffix(".new")
    draft.write_text(str(now_s))
    draft.replace(clock)


@dataclass(slots=True)
class Clocked:
    """A gateway and the file its time stands in, None where it is not ours to move."""

    url: str
    clock: Path | None
    now_s: float = NOW_S

    def advance(self, seconds: float) -> None:
        """Move the gateway's clock."""
        self.now_s += seconds
        if self.clock is not None:
            set_clock(self.clock, self.now_s)


@contextmanager
def start_clocked(folder: Path, policy: str) -> Iterator[tuple[Server, Path]]:
    """`pcg serve` under this policy at `NOW_S`, and its clock; ended afterwards."""
    clock = folder / "now"
    clock.write_text(str(NOW_S))
    server = start(make_home(folder / "home"), policy, {"PCG_TEST_CLOCK": str(clock)})
    try:
        yield server, clock
    finally:
        server.stop()
