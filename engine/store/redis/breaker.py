"""A circuit breaker: pauses between the calls of a server that does not answer. Knows no server."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Breaker:
    """Closed: every call may go. After `num_failures` failures in a row it is open and no call may.
    `open_s` later, one call at a time may go: its success closes the breaker, its failure opens it
    for another `open_s`.

    Thread-safe. Each `allow()` that returned True is followed by one `succeeded()` or `failed()`.
    """

    def __init__(self, *, num_failures: int, open_s: float, clock: Callable[[], float]) -> None:
        if num_failures < 1 or open_s < 0:
            raise ValueError("num_failures must be at least 1, and open_s not negative")
        self._limit = num_failures
        self._open_s = open_s
        self._clock = clock
        self._lock = threading.Lock()
        self._num_failures = 0
        self._opened_at_s: float | None = None
        self._probing = False

    def allow(self) -> bool:
        """Whether a call may go now."""
        with self._lock:
            if self._opened_at_s is None:
                return True
            if self._probing or self._clock() < self._opened_at_s + self._open_s:
                return False
            self._probing = True
            return True

    def succeeded(self) -> None:
        """A call that was allowed has been answered."""
        with self._lock:
            self._num_failures = 0
            self._opened_at_s = None
            self._probing = False

    def failed(self) -> None:
        """A call that was allowed has not been answered."""
        with self._lock:
            self._num_failures += 1
            self._probing = False
            if self._opened_at_s is not None or self._num_failures >= self._limit:
                self._opened_at_s = self._clock()
