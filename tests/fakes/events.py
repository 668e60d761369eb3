"""Collects an engine's events from any thread and lets a test wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from engine.messages import (
    Counted,
    EngineStats,
    Failed,
    Finished,
    Flushed,
    FromEngine,
    Hello,
    Pinned,
    Started,
    TextDelta,
    ToolCallDelta,
)

PATIENCE_S: Final = 30.0
LAST = (Finished, Failed, Counted, Flushed, Pinned, EngineStats)


class EventLog:
    """Pass it as `emit`. Waiting fails the test after `PATIENCE_S` instead of hanging."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # reentrant: conditions look at the log
        self._events: list[FromEngine] = []

    def __call__(self, event: FromEngine) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def of(self, request_id: str) -> list[FromEngine]:
        """What one request was told so far."""
        with self._changed:
            return [
                event
                for event in self._events
                if not isinstance(event, Hello) and event.request_id == request_id
            ]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Look again after every event until `condition` holds."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_S), self._events[-5:]

    def wait_started(self, request_id: str) -> Started:
        """The request's `Started`, as soon as it is there; fails when the request ended without
        one."""
        self.wait_until(
            lambda: any(isinstance(event, (Started, *LAST)) for event in self.of(request_id))
        )
        first = self.of(request_id)[0]
        assert isinstance(first, Started), first
        return first

    def wait_last(self, request_id: str) -> FromEngine:
        """The event that ends the request."""
        self.wait_until(lambda: any(isinstance(event, LAST) for event in self.of(request_id)))
        events = self.of(request_id)
        assert [event for event in events if isinstance(event, LAST)] == events[-1:], events
        return events[-1]

    def text(self, request_id: str) -> str:
        """The answer so far."""
        return "".join(event.text for event in self.of(request_id) if isinstance(event, TextDelta))

    def token_ids(self, request_id: str) -> list[int]:
        """The answer's tokens so far."""
        deltas = [
            event for event in self.of(request_id) if isinstance(event, TextDelta | ToolCallDelta)
        ]
        return [token for event in deltas for token in event.token_ids]
