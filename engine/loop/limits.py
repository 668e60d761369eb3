"""Sizes of the step loop. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANSWER_TOKENS: Final = 256
"""Tokens of answer for which pages are set aside at a time: most answers are shorter."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """`context` is the most tokens of prompt and answer together, never more than the pool holds.

    A step has `max_step_tokens`, of which prefills get `max_mixed_tokens` while something decodes.
    `answer_tokens` of an answer get their pages at once, the others when they are needed.
    """

    context: int
    block_size: int
    max_sequences: int
    max_step_tokens: int
    max_mixed_tokens: int
    max_queue: int
    answer_tokens: int = ANSWER_TOKENS
    speculation: bool = True
