"""Words in which a request's own wire format reports errors that a dialect finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.prompt.types import Position
from gateway.errors import InvalidRequest


class ErrorWords(Protocol):
    """The part of a wire format that a dialect needs."""

    def path_of(self, position: Position, /) -> str:
        """The position in the body's own coordinates, as far as they are known."""
        ...

    def unsupported_effort(
        self, model: str, effort: str, supported: Sequence[str], /
    ) -> InvalidRequest:
        """The error for a level of effort that the model does not have."""
        ...
