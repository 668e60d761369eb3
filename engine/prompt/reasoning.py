"""The tags that models put around their reasoning. Knows no tokens and no calls."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The tags around reasoning. `begun`: the prompt already ends behind the opening one."""

    open: str
    close: str
    begun: bool = False


THINK: Final = Reasoning("<think>", "</think>")
THINK_BRACKETS: Final = Reasoning("[THINK]", "[/THINK]")
KINDS: Final = (THINK, THINK_BRACKETS)


def reasoning_kind(added_tokens: Container[str], template_source: str) -> Reasoning | None:
    """The tags of a model that reasons, by its vocabulary or its template; None if it does not."""
    return next(
        (kind for kind in KINDS if kind.open in added_tokens or kind.close in template_source), None
    )
