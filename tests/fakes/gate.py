"""Holds another thread at a place of the test's choosing, without sleeping."""

from __future__ import annotations

import threading

from tests.fakes.events import PATIENCE_S


class Gate:
    """A place where another thread can be held: it reports its arrival and waits until it is let
    through."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._may_pass = threading.Semaphore(0)
        self._is_open = False

    def __call__(self, *_: object) -> None:
        """Stop here, unless the gate is open for good."""
        if not self._is_open:
            self._arrived.release()
            assert self._may_pass.acquire(timeout=PATIENCE_S)

    def wait_arrival(self) -> None:
        """Until a thread stands at the gate."""
        assert self._arrived.acquire(timeout=PATIENCE_S)

    def let_one_pass(self) -> None:
        """The thread at the gate goes on; the next one stops again."""
        self._may_pass.release()

    def open(self) -> None:
        """Nobody stops here any more."""
        self._is_open = True
        self._may_pass.release()
