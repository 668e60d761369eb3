"""The one clock every TTL is measured by, in epoch seconds. Knows nothing of what it times."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Called for the time in epoch seconds. Durations are measured with the event loop's monotonic
    clock instead."""

    def __call__(self) -> float: ...


class SystemClock:
    """The wall clock that never steps back: after a backwards correction it stands still until real
    time catches up."""

    def __init__(self) -> None:
        self._latest_s = 0.0

    def __call__(self) -> float:
        self._latest_s = max(self._latest_s, time.time())
        return self._latest_s


class FileClock:
    """The time another process wrote to a file as epoch seconds; for black-box tests only.

    A file that is missing or half-written leaves the time where it was: the first read must succeed
    (`ValueError`, `OSError`), later ones never raise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._latest_s = float(path.read_text())

    def __call__(self) -> float:
        try:
            self._latest_s = float(self._path.read_text())
        except (OSError, ValueError):
            return self._latest_s
        return self._latest_s
