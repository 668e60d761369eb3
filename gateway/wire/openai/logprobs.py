"""Probabilities of tokens in OpenAI's shapes.

Source: openai 3.57 `types/chat/chat_completion_token_logprob.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine.types import TokenLogprob, TokenLogprobs

VERY_UNLIKELY: Final = -9999.0
"""OpenAI's number for minus infinity, which JSON does not have."""


def token_logprobs(found: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    """One object per token: itself, and the most probable ones in its place."""
    return [_one(each.chosen) | {"top_logprobs": [_one(top) for top in each.top]} for each in found]


def logprob(found: TokenLogprob) -> float:
    """The natural logarithm, never infinite."""
    return max(found.logprob, VERY_UNLIKELY)


def token_text(found: TokenLogprob) -> str:
    """The token as text; half a character shows as U+FFFD, and its bytes stand beside it."""
    return found.text.decode("utf-8", "replace")


def _one(found: TokenLogprob) -> dict[str, Any]:
    return {"token": token_text(found), "bytes": list(found.text), "logprob": logprob(found)}
