"""What to look for in the answer to one prompt: calls of its tools, and reasoning.

Knows no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.prompt.call_format import CallFormat
from engine.prompt.reasoning import Reasoning


@dataclass(frozen=True, slots=True)
class OutputSyntax:
    """`calls` is how the model writes calls of `tools`; None where the prompt offers none.
    `reasoning`: if it reasons."""

    calls: CallFormat | None = None
    tools: frozenset[str] = frozenset()
    reasoning: Reasoning | None = None


PLAIN: Final = OutputSyntax()
"""Nothing but text."""
