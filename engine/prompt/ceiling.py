"""A bound on the length of a text that can fit, for any tokens it may have.

Knows no template and tokenizes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ContextExceeded


@dataclass(frozen=True, slots=True)
class Ceiling:
    """No token stands for more than `token_nbytes` bytes, and no more than `max_tokens` tokens
    fit."""

    max_tokens: int
    token_nbytes: int

    def check(self, text: str, breaker: str = "") -> None:
        """Raises `ContextExceeded`, with the least number of tokens that the text can be. What of
        it is `breaker` does not count. Raises `UnicodeEncodeError` for a long text with a lone
        surrogate."""
        if 4 * len(text) <= self.max_tokens * self.token_nbytes:
            return
        nbytes = len(text.encode()) - (
            text.count(breaker) * len(breaker.encode()) if breaker else 0
        )
        num_tokens = -(-nbytes // self.token_nbytes)
        if num_tokens > self.max_tokens:
            raise ContextExceeded(num_tokens, self.max_tokens)
