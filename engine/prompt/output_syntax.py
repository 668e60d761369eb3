"""The syntax of the answer to one prompt: calls of its tools, and reasoning.

Knows no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.prompt.call_format import CallFormat
from engine.prompt.reasoning import Reasoning


@dataclass(frozen=True, slots=True)
class OutputSyntax:
    """The formats of calls of `tools` and of `reasoning` in an answer; None where there is none."""

    calls: CallFormat | None = None
    tools: frozenset[str] = frozenset()
    reasoning: Reasoning | None = None


PLAIN: Final = OutputSyntax()
"""Nothing but text."""
