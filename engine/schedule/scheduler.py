"""Continuous batching: the sequences that run, and the slices of them that a step computes.

Knows no tensors or threads.

The rules, in order:

1. Every decoding sequence computes its next token in every step: a long prefill never stops an
answer that is being read.
2. The rest of a step goes to prefills, in chunks: all of it while nothing decodes, else at most
`max_mixed_tokens`, so that no step takes long while an answer is being read. At least a quarter of
a step is left for them in any case.
3. Half of that goes to the oldest prefill, which so never starves, the other half to those with the
least left: a short prompt does not wait for a long one in front of it.
4. Requests are admitted first come, first served. One that doesn't fit yet may be overtaken by a
few that do, and only a bounded number of times: then everyone waits until it fits. One that is
loading or following keeps its place and stops no other.
5. A sequence that had to give up its pages comes before all others, and is not overtaken.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Final

from engine.errors import Overloaded
from engine.schedule.sequence import Sequence, Slice, Status

MAX_OVERTAKES: Final = 8
"""Requests that may be admitted past one that doesn't fit."""

LOOKAHEAD: Final = 4
"""Requests behind one that doesn't fit that are tried in one pass."""


class Scheduler:
    """Sequences waiting for room and sequences running, both oldest first. Not thread-safe: the
    engine thread owns it."""

    def __init__(
        self, *, max_sequences: int, max_step_tokens: int, max_mixed_tokens: int, max_queue: int
    ) -> None:
        self._max_sequences = max_sequences
        self._max_step_tokens = max_step_tokens
        self._max_mixed_tokens = max_mixed_tokens
        self._max_queue = max_queue
        self._arrivals = count(1)
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._num_overtakes = 0
        self._may_admit = False

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue, those that are loading or following included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Those that have pages, oldest first."""
        return tuple(self._running)

    @property
    def has_work(self) -> bool:
        """True if a pass of `admit` and `next_step` could do anything."""
        return bool(self._running) or self._may_admit

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue; raises `Overloaded` when the queue is
        full."""
        if len(self._waiting) >= self._max_queue:
            raise Overloaded(f"{self._max_queue} requests are waiting for the engine")
        sequence.arrival = next(self._arrivals)
        self._waiting.append(sequence)
        self._may_admit = True

    def ready(self, sequence: Sequence) -> None:
        """End the wait of a loading or following sequence: it may be admitted."""
        sequence.move(Status.WAITING)
        self._may_admit = True

    def admit(self, try_admit: Callable[[Sequence], bool]) -> None:
        """Start the waiting sequences that fit. `try_admit` reserves pages for a sequence, or
        returns False and leaves no trace but a new load.

        Does nothing unless a request arrived or ended since the last pass, as nothing else makes
        room.
        """
        if not self._may_admit:
            return
        self._may_admit = False
        self._admit_in_order(try_admit)
        if self._has_slot:
            self._admit_past_the_first(try_admit)

    def next_step(self) -> list[Slice]:
        """The slices of the next step, decoding sequences first; empty when nothing runs.

        A step computes at most `max_step_tokens`, unless decoding alone takes more than three
        quarters of them.
        """
        slices = [
            Slice(s, s.num_computed, 1, sample=True)
            for s in self._running
            if s.status is Status.DECODE
        ]
        budget = self._max_step_tokens
        if slices:
            left = max(budget - len(slices), budget // 4, 1)
            budget = min(self._max_mixed_tokens, left)
        return slices + self._prefills(budget)

    def preempt(self, sequence: Sequence) -> None:
        """Put a decoding sequence that gave up its pages back into the queue, before those that
        never ran."""
        self._running.remove(sequence)
        sequence.move(Status.WAITING)
        insort(self._waiting, sequence, key=lambda other: (other.num_output == 0, other.arrival))
        self._may_admit = True

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, waiting or running, and mark it done. Its room can be given to others
        from here on."""
        if sequence.status is Status.WAITING:
            if next(self._candidates(), None) is sequence:
                self._num_overtakes = 0
            self._waiting.remove(sequence)
        elif sequence.status in (Status.LOADING, Status.FOLLOWING):
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
        sequence.move(Status.DONE)
        self._may_admit = bool(self._waiting)

    @property
    def _has_slot(self) -> bool:
        return len(self._running) < self._max_sequences

    def _candidates(self) -> Iterator[Sequence]:
        """Those that could be admitted, first come first."""
        return (sequence for sequence in self._waiting if sequence.status is Status.WAITING)

    def _admit_in_order(self, try_admit: Callable[[Sequence], bool]) -> None:
        while self._has_slot and (first := next(self._candidates(), None)) is not None:
            if try_admit(first):
                self._start(first)
                self._num_overtakes = 0
            elif first.status is Status.WAITING:  # else it loads once more, and stops no other
                return

    def _admit_past_the_first(self, try_admit: Callable[[Sequence], bool]) -> None:
        candidates = list(islice(self._candidates(), 1 + LOOKAHEAD))
        if not candidates or candidates[0].num_output:
            return
        for sequence in candidates[1:]:
            if self._num_overtakes >= MAX_OVERTAKES or not self._has_slot:
                return
            if try_admit(sequence):
                self._start(sequence)
                self._num_overtakes += 1

    def _start(self, sequence: Sequence) -> None:
        """Move a sequence from the queue to the running ones. `try_admit` has set RESTORING where
        its pages are still being filled."""
        self._waiting.remove(sequence)
        if sequence.status is Status.WAITING:
            sequence.move(Status.PREFILL)
        insort(self._running, sequence, key=lambda other: other.arrival)

    def _prefills(self, budget: int) -> list[Slice]:
        """Chunks of at most `budget` tokens together, oldest sequence first."""
        prefilling = [s for s in self._running if s.status is Status.PREFILL]
        if not prefilling:
            return []
        chunks = dict.fromkeys(prefilling, 0)
        chunks[prefilling[0]] = min(prefilling[0].num_left, -(-budget // 2))
        rest = budget - chunks[prefilling[0]]
        for sequence in sorted(prefilling, key=lambda s: s.num_left):
            num_more = min(sequence.num_left - chunks[sequence], rest)
            chunks[sequence] += num_more
            rest -= num_more
        return [
            _chunk(sequence, num_tokens) for sequence, num_tokens in chunks.items() if num_tokens
        ]


def _chunk(sequence: Sequence, num_tokens: int) -> Slice:
    is_last = num_tokens == sequence.num_left and sequence.sampling.max_tokens > 0
    return Slice(sequence, sequence.num_computed, num_tokens, sample=is_last)
