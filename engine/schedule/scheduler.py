"""Continuous batching: who is admitted, and which tokens the next step computes. Knows no pages, tensors or threads.

The rules, in order:

1. Every decoding sequence computes one token in every step: a long prefill never stops an answer that is being read.
2. What is left of the step's tokens goes to prefills, oldest first, in chunks. At least a quarter of a step is left for
   them, so a full house of decoding sequences never stops a prefill.
3. Requests are admitted first come, first served. One that doesn't fit yet may be overtaken by a few that do, and only
   a bounded number of times: then everyone waits until it fits. One that is loading keeps its place and stops nobody.

Whoever admits reserves the worst case, so a running sequence always gets the pages it needs and nothing is preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from engine.errors import Overloaded
from engine.schedule.sequence import Sequence, Slice, Status

MAX_OVERTAKES: Final = 8
"""How many requests may be admitted past one that doesn't fit."""

LOOKAHEAD: Final = 4
"""How many requests behind one that doesn't fit are tried in one pass."""


class Scheduler:
    """Sequences waiting for room and sequences running. Not thread-safe: the engine thread owns it."""

    def __init__(self, *, max_sequences: int, max_step_tokens: int, max_queue: int) -> None:
        self._max_sequences = max_sequences
        self._max_step_tokens = max_step_tokens
        self._max_queue = max_queue
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._num_overtakes = 0
        self._may_admit = False

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue, those that are loading included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        """Whether a pass of `admit` and `next_step` could do anything."""
        return bool(self._running) or self._may_admit

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence, loading or not, at the end of the queue; raises `Overloaded` when the queue is full."""
        if len(self._waiting) >= self._max_queue:
            raise Overloaded(f"{self._max_queue} requests are waiting for the engine")
        self._waiting.append(sequence)
        self._may_admit = True

    def ready(self, sequence: Sequence) -> None:
        """What a loading sequence waited for is settled: it may be admitted."""
        sequence.move(Status.WAITING)
        self._may_admit = True

    def admit(self, try_admit: Callable[[Sequence], bool]) -> None:
        """Start what fits. `try_admit` reserves room for a sequence, or returns False and leaves no trace.

        Does nothing unless something arrived or ended since the last pass, as nothing else makes room.
        """
        if not self._may_admit:
            return
        self._may_admit = False
        self._admit_in_order(try_admit)
        if self._has_seat:
            self._admit_past_the_first(try_admit)

    def next_step(self) -> list[Slice]:
        """The slices of the next step, decoding sequences first; empty when nothing runs.

        A step computes at most `max_step_tokens`, unless decoding alone takes more than three quarters of them.
        """
        decoding = [s for s in self._running if s.status is Status.DECODE]
        slices = [Slice(s, s.num_computed, 1, sample=True) for s in decoding]
        budget = max(self._max_step_tokens - len(slices), self._max_step_tokens // 4, 1)
        for sequence in self._running:
            if sequence.status is not Status.PREFILL or budget == 0:
                continue
            chunk = self._chunk(sequence, budget)
            slices.append(chunk)
            budget -= chunk.num_tokens
        return slices

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, waiting or running, and mark it done. Its room can be given to others from here on."""
        if sequence.status is Status.WAITING:
            if next(self._candidates(), None) is sequence:
                self._num_overtakes = 0
            self._waiting.remove(sequence)
        elif sequence.status is Status.LOADING:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
        sequence.move(Status.DONE)
        self._may_admit = bool(self._waiting)

    @property
    def _has_seat(self) -> bool:
        return len(self._running) < self._max_sequences

    def _candidates(self) -> Iterator[Sequence]:
        """Those that could be admitted, first come first."""
        return (sequence for sequence in self._waiting if sequence.status is Status.WAITING)

    def _admit_in_order(self, try_admit: Callable[[Sequence], bool]) -> None:
        while self._has_seat and (first := next(self._candidates(), None)) is not None and try_admit(first):
            self._start(first)
            self._num_overtakes = 0

    def _admit_past_the_first(self, try_admit: Callable[[Sequence], bool]) -> None:
        for sequence in list(islice(self._candidates(), 1, 1 + LOOKAHEAD)):
            if self._num_overtakes >= MAX_OVERTAKES or not self._has_seat:
                return
            if try_admit(sequence):
                self._start(sequence)
                self._num_overtakes += 1

    def _start(self, sequence: Sequence) -> None:
        """A sequence whose pages are still being filled is set to RESTORING by whoever admits it."""
        self._waiting.remove(sequence)
        if sequence.status is Status.WAITING:
            sequence.move(Status.PREFILL)
        self._running.append(sequence)

    @staticmethod
    def _chunk(sequence: Sequence, budget: int) -> Slice:
        num_left = len(sequence.token_ids) - sequence.num_computed
        num_tokens = min(num_left, budget)
        is_last = num_tokens == num_left and sequence.sampling.max_tokens > 0
        return Slice(sequence, sequence.num_computed, num_tokens, sample=is_last)
