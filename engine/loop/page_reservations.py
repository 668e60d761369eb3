"""Pages for the tokens of a step: reserved when needed, freed by preemption.

Knows no model.

A request reserves its prompt and a part of its answer when it is admitted, and more of the answer
as it grows. When there is no more, the youngest decoding sequence gives up its pages and waits
until it can go on. The oldest running sequence is never the youngest of several, so it always gets
on, and everybody becomes the oldest.

Only decoding sequences are preempted: after the prefill, so that the report's count of skipped
tokens stays true.
"""

from __future__ import annotations

from engine.loop.request import EngineRequest, LoopParts
from engine.schedule.sequence import Sequence, Slice, Status


class PageReservations:
    """Reserves and preempts, for the engine thread."""

    def __init__(self, parts: LoopParts) -> None:
        self._limits = parts.limits
        self._runner = parts.runner
        self._cache = parts.cache
        self._scheduler = parts.scheduler
        self._requests = parts.requests
        self._stats = parts.stats

    def num_first(self, sequence: Sequence) -> int:
        """Tokens to reserve pages for when a sequence is admitted, for the first time or again."""
        return min(sequence.max_kv_tokens, len(sequence.token_ids) + self._limits.answer_tokens)

    def spare_pages(self) -> int:
        """Pages that running sequences are about to ask for: a request that is admitted leaves as
        many, or would be preempted."""
        size, ahead = self._limits.block_size, self._limits.answer_tokens
        running = [(s, self._requests[s.request_id].pages) for s in self._scheduler.running]
        return sum(
            min(-(-sequence.max_kv_tokens // size) - lease.num_pages, -(-ahead // size))
            for sequence, lease in running
        )

    def num_reusable(self, sequence: Sequence, num_tokens: int) -> int:
        """The number of a sequence's first `num_tokens` tokens whose KV prompts may share."""
        return num_tokens if self._runner.reuse_decode_kv else min(num_tokens, sequence.num_prompt)

    def resume(self, request: EngineRequest) -> bool:
        """Let a preempted request go on, if there is room: its next token is sampled once all it
        had is computed again."""
        sequence = request.sequence
        assert request.last_lease is not None
        with self._stats.timed("engine_cache_seconds_total"):
            lease = self._cache.resume(
                request.last_lease,
                sequence.token_ids,
                num_reserve=self.num_first(sequence),
                num_reusable=self.num_reusable(sequence, len(sequence.token_ids)),
                spare_pages=self.spare_pages(),
            )
        if lease is None:
            return False
        request.lease, request.last_lease = lease, None
        sequence.num_computed = lease.num_cached
        return True

    def reserve(self, slices: list[Slice]) -> list[Slice]:
        """The slices that can be computed now, with pages set aside for them."""
        oldest_first = sorted(slices, key=lambda part: part.sequence.arrival)
        can = {part.sequence.arrival for part in oldest_first if self._reserve(part)}
        return [part for part in slices if part.sequence.arrival in can]

    def num_drafts(self, part: Slice) -> int:
        """The number of tokens beyond the slice that could be written without asking for pages."""
        lease = self._requests[part.sequence.request_id].pages
        return (
            min(lease.num_pages * self._limits.block_size, part.sequence.max_kv_tokens) - part.end
        )

    def cover(self, slices: list[Slice]) -> None:
        """Afterwards the block tables reach over everything the slices write."""
        for part in slices:
            lease = self._requests[part.sequence.request_id].pages
            self._cache.grow(lease, part.end)
            part.sequence.block_table = lease.block_table

    def _reserve(self, part: Slice) -> bool:
        """Whether the slice can be computed in this step; younger sequences may have lost their
        pages for it."""
        sequence = part.sequence
        request = self._requests[sequence.request_id]
        if request.lease is None:  # preempted for an older one in this very step
            return False
        ahead = min(sequence.max_kv_tokens, part.end + self._limits.answer_tokens)
        if part.end <= request.lease.num_pages * self._limits.block_size or self._cache.reserve(
            request.lease, ahead
        ):
            return True
        while not self._cache.reserve(request.lease, part.end):
            decoding = [other for other in self._scheduler.running if other.status is Status.DECODE]
            if decoding == [
                sequence
            ]:  # prefills have the rest; they get on, and can be preempted then
                return False
            self._preempt(self._requests[decoding[-1].request_id])
            if decoding[-1] is sequence:
                return False
        return True

    def _preempt(self, request: EngineRequest) -> None:
        """Give a decoding request's pages back and queue it again. Its KV stays cached, as long as
        there is room."""
        sequence, lease = request.sequence, request.pages
        self._cache.release(
            lease, sequence.token_ids, self.num_reusable(sequence, sequence.num_computed)
        )
        request.lease, request.last_lease = None, lease
        sequence.num_computed = 0
        sequence.block_table = []
        self._scheduler.preempt(sequence)
        self._stats.add("engine_preempted_total")
