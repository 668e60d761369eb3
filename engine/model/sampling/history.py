"""Counts of a sequence's tokens, kept between steps.

Knows no penalties.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.schedule.sequence import Sequence

Ids: TypeAlias = NDArray[np.int64]
Counts: TypeAlias = NDArray[np.float32]

_CAPACITY: Final = 256


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Every token of prompt and output once, `ids [n]`, and how often the output has it, `counts
    [n]`."""

    ids: Ids
    counts: Counts


class TokenHistory:
    """The running counts of one sequence, which only grows: a token costs the same however long the
    sequence is."""

    __slots__ = ("_counts", "_ids", "_num_counted", "_places")

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids: Ids = np.empty(_CAPACITY, dtype=np.int64)
        self._counts: Counts = np.zeros(_CAPACITY, dtype=np.float32)
        self._num_counted = 0

    def update(self, token_ids: Seq[int], num_prompt: int) -> None:
        """Count the tokens that came since the last call."""
        for i in range(self._num_counted, num_prompt):
            self._place(token_ids[i])
        for i in range(max(self._num_counted, num_prompt), len(token_ids)):
            place = self._place(token_ids[i])  # which may move the counts
            self._counts[place] += 1.0
        self._num_counted = len(token_ids)

    def after(self, draft: Iterable[int]) -> TokenCounts:
        """The counts as they would be after these tokens too; to be read before the next
        `update`."""
        num = len(self._places)
        counted = TokenCounts(self._ids[:num], self._counts[:num])
        draft = tuple(draft)
        if not draft:
            return counted
        fresh = [token for token in dict.fromkeys(draft) if token not in self._places]
        places = {token: num + i for i, token in enumerate(fresh)}
        counts = np.concatenate((counted.counts, np.zeros(len(fresh), dtype=np.float32)))
        for token in draft:
            counts[places[token] if token in places else self._places[token]] += 1.0
        return TokenCounts(np.concatenate((counted.ids, np.array(fresh, dtype=np.int64))), counts)

    def _place(self, token_id: int) -> int:
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = len(self._places)
            if place == len(self._ids):
                self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[place] = token_id
        return place


def history_of(sequence: Sequence) -> TokenHistory:
    """The history of a sequence up to now; made by the first call and released with the
    sequence."""
    history: Any = sequence.history
    if history is None:
        history = sequence.history = TokenHistory()
    assert isinstance(history, TokenHistory)
    history.update(sequence.token_ids, sequence.num_prompt)
    return history
