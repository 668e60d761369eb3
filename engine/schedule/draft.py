"""Guessing what a sequence will say from what it has seen: prompt lookup.

Knows no model, and promises nothing.

Answers often repeat their prompt or themselves. The last few tokens are looked up in everything
before them, and what followed there is the guess; the model checks a guess of several tokens in one
step, for less than as many steps. (The method is public as "prompt lookup decoding", Saxena 2023;
how many tokens to guess is learned per sequence here.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NGRAM: Final = 3
"""Tokens that are looked up. Fewer find more and guess worse."""

MAX_DRAFT: Final = 8
"""Most tokens guessed for one sequence in one step."""

MAX_DRAFTING: Final = 4
"""Decoding sequences up to which guesses pay: beyond, a step has rows enough to be worth its
weights' reading."""

RETRY_TOKENS: Final = 32
"""Tokens of an answer after which a sequence whose guesses were wrong tries again; twice as many
each time."""


class Drafter:
    """Guesses for one sequence, whose `token_ids` it watches grow. Costs O(1) per token, and once
    O(prompt).

    `size` is how many tokens it guesses now: all of a guess right doubles it, a guess all wrong
    halves it, down to none for a while.
    """

    __slots__ = ("_after", "_num_indexed", "_pause", "_resume_at", "_token_ids", "size")

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = token_ids
        self._after: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0
        self._pause = RETRY_TOKENS
        self._resume_at = 0
        self.size = 2

    def guess(self, most: int) -> tuple[int, ...]:
        """Up to `most` tokens that may come after the sequence's last one; empty where nothing like
        it was seen."""
        ids = self._token_ids
        if len(ids) < self._resume_at or most < 1:
            return ()
        self._index()
        begin = self._after.get(tuple(ids[-NGRAM:]))
        return () if begin is None else tuple(ids[begin : begin + min(most, self.size)])

    def learn(self, num_guessed: int, num_right: int) -> None:
        """Of the last guess so many tokens were right: go on as it pays."""
        if num_right == num_guessed:
            self.size = min(self.size * 2, MAX_DRAFT)
            self._pause = RETRY_TOKENS
        elif 2 * num_right < num_guessed:
            self.size //= 2
        if not self.size:
            self.size = 1
            self._resume_at = len(self._token_ids) + self._pause
            self._pause *= 2

    def _index(self) -> None:
        """Know where each run of `NGRAM` tokens was followed last; the last run of all is followed
        by nothing yet."""
        ids, first = self._token_ids, max(self._num_indexed, NGRAM)
        if len(ids) <= first:
            return
        runs = zip(
            *(ids[first - NGRAM + i : len(ids) - NGRAM + i] for i in range(NGRAM)), strict=True
        )
        self._after.update(zip(runs, range(first, len(ids)), strict=True))
        self._num_indexed = len(ids)
