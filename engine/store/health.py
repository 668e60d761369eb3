"""Reports of a failing tier: a flag in the stats and one log line, however often it fails.

Knows no medium.
"""

from __future__ import annotations

import logging
from typing import Final

from engine.store.base import StoreStats

_log = logging.getLogger("engine.store")

QUIET_S: Final = 60.0
"""The least time between two warnings about one tier, on the clock of `ErrorReporter.now_s`."""


class ErrorReporter:
    """Keeps `stats.problem` and `stats.num_errors` of one tier. Not thread-safe: the store calls it
    under its lock.

    Problems are kept per operation (`put`, `get`, ...), so that a tier that can be read but not
    written keeps saying so. The owner moves `now_s`, on any clock in seconds.
    """

    def __init__(self, name: str, stats: StoreStats) -> None:
        self.now_s = 0.0
        self._name = name
        self.stats = stats
        self._problems: dict[str, str] = {}
        self._logged_at_s: float | None = None
        self._is_logged = False

    def failed(self, operation: str, problem: str | OSError) -> None:
        """Count an error; `stats.problem` names it, and a warning is logged unless one was logged
        less than `QUIET_S` ago."""
        self.stats.num_errors += 1
        self._problems[operation] = (
            problem if isinstance(problem, str) else problem.strerror or type(problem).__name__
        )
        before = self.stats.problem
        self.stats.problem = self._first()
        if self.stats.problem != before and self._may_log():
            self._is_logged = True
            _log.warning("the %s tier does not work: %s", self._name, self.stats.problem)

    def worked(self, operation: str) -> None:
        """The operation's problem is over. Logs so if the problem was logged."""
        if self._problems.pop(operation, None) is None:
            return
        self.stats.problem = self._first()
        if self.stats.problem is None and self._is_logged:
            self._is_logged = False
            _log.info("the %s tier works again", self._name)

    def _first(self) -> str | None:
        return next(
            (f"{operation}: {problem}" for operation, problem in self._problems.items()), None
        )

    def _may_log(self) -> bool:
        if (
            self._logged_at_s is not None
            and self._logged_at_s <= self.now_s < self._logged_at_s + QUIET_S
        ):
            return False
        self._logged_at_s = self.now_s
        return True
