"""Finds stop strings in text as it streams. Knows no tokens, calls or reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.output.partial import num_partial


class Matched(NamedTuple):
    """Text that is certain to be part of the answer, and the stop string that ended it."""

    text: str
    stop: str | None


class StopMatcher:
    """Finds stop strings in text that arrives in pieces, holding back what may be the start of one.

    The stop string that is complete first wins; of those complete at the same character, the
    longest. So the outcome doesn't depend on how the text is cut into pieces. After a stop nothing
    may be pushed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> Matched:
        """The text that is certain now. `stop` is set when a stop string is complete; its own text
        is left out."""
        text = self._held + text
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if found:
            _, start, stop = min(found)
            self._held = ""
            return Matched(text[:start], stop)
        border = len(text) - num_partial(text, self._stops)
        self._held = text[border:]
        return Matched(text[:border], None)

    def flush(self) -> str:
        """The text held back, now that no more comes."""
        held, self._held = self._held, ""
        return held
