"""Drafts the next tokens of a sequence from its earlier ones: prompt lookup decoding.

Knows no model; a draft may be wrong.

Answers often repeat their prompt or themselves. The last few tokens are looked up in everything
before them, and the tokens that followed there are the draft; the model verifies a draft of several
tokens in one step, for less than as many steps. (The method is public as "prompt lookup decoding",
Saxena 2023; the size of a draft is learned per sequence here.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NGRAM: Final = 3
"""Tokens that are looked up. Fewer are found more often and make worse drafts."""

MAX_DRAFT: Final = 8
"""Most tokens drafted for one sequence in one step."""

MAX_DRAFTING: Final = 4
"""Decoding sequences up to which drafts pay: beyond, a step has rows enough to be worth its
weights' reading."""

RETRY_TOKENS: Final = 32
"""Tokens of an answer after which a sequence whose drafts were wrong tries again; twice as many
each time."""


class Drafter:
    """Drafts for one sequence, whose `token_ids` it sees grow. Costs O(1) per token, and once
    O(prompt).

    `size` is the number of tokens of a draft: a draft accepted whole doubles it, one accepted less
    than half halves it, down to none for a while.
    """

    __slots__ = ("_after", "_num_indexed", "_pause", "_resume_at", "_token_ids", "size")

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = token_ids
        self._after: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0
        self._pause = RETRY_TOKENS
        self._resume_at = 0
        self.size = 2

    def propose(self, most: int) -> tuple[int, ...]:
        """A draft of up to `most` tokens after the sequence's last one; empty where its last tokens
        occur nowhere before."""
        ids = self._token_ids
        if len(ids) < self._resume_at or most < 1:
            return ()
        self._index()
        begin = self._after.get(tuple(ids[-NGRAM:]))
        return () if begin is None else tuple(ids[begin : begin + min(most, self.size)])

    def update(self, num_drafted: int, num_accepted: int) -> None:
        """Adapt `size` to the number of accepted tokens of the last draft."""
        if num_accepted == num_drafted:
            self.size = min(self.size * 2, MAX_DRAFT)
            self._pause = RETRY_TOKENS
        elif 2 * num_accepted < num_drafted:
            self.size //= 2
        if not self.size:
            self.size = 1
            self._resume_at = len(self._token_ids) + self._pause
            self._pause *= 2

    def _index(self) -> None:
        """Index the end of each run of `NGRAM` tokens, the latest of equal ones; nothing follows
        the last run yet."""
        ids, first = self._token_ids, max(self._num_indexed, NGRAM)
        if len(ids) <= first:
            return
        runs = zip(
            *(ids[first - NGRAM + i : len(ids) - NGRAM + i] for i in range(NGRAM)), strict=True
        )
        self._after.update(zip(runs, range(first, len(ids)), strict=True))
        self._num_indexed = len(ids)
