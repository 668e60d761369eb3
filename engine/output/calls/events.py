"""The events a call parser finds in an answer. Knows no format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer's text, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of `name` begins; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the call's arguments, as the model wrote them, never empty."""

    text: str


CallEvent: TypeAlias = Text | CallBegin | CallArguments
