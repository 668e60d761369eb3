"""The results of a step: tokens become events, and requests go on or end.

Knows no model and no schedule.
"""

from __future__ import annotations

import time

from engine.inbox import RenderedJob
from engine.loop.admission import Admission
from engine.loop.page_reservations import PageReservations
from engine.loop.request import EngineRequest, LoopParts
from engine.messages import Failed, FailureKind, Finished, TextDelta, ToolCallDelta
from engine.output.parser import OutputPiece
from engine.schedule.sequence import Sampled, Slice, Status
from engine.types import FinishReason


class Postprocessor:
    """Brings requests forward by what a step computed, and ends them. Owned by the step loop."""

    def __init__(self, parts: LoopParts, pages: PageReservations, admission: Admission) -> None:
        self._pages = pages
        self._admission = admission
        self._runner = parts.runner
        self._cache = parts.cache
        self._scheduler = parts.scheduler
        self._requests = parts.requests
        self._stats = parts.stats
        self._emit = parts.emit

    def advance(self, part: Slice, sampled: Sampled | None) -> None:
        """Take in the step's result for one sequence."""
        request, sequence = self._requests[part.sequence.request_id], part.sequence
        if sequence.status is Status.PREFILL:
            self._advance_prefill(request, part, sampled)
            return
        assert sampled is not None
        self._stats.add("engine_decode_tokens_total", len(sampled.token_ids))
        if part.draft and request.drafter is not None:
            request.drafter.update(len(part.draft), len(sampled.token_ids) - 1)
            self._stats.add("engine_accepted_tokens_total", len(sampled.token_ids) - 1)
        if self._append(request, sampled) and self._runner.reuse_decode_kv:
            with self._stats.timed("engine_cache_seconds_total"):
                self._cache.insert(request.pages, sequence.token_ids, sequence.num_computed)

    def finish(self, request: EngineRequest, reason: FinishReason, stop: str | None = None) -> None:
        """End a request with `Finished`."""
        now_s = time.perf_counter()
        first_s = request.first_token_s
        started_s = request.started_s or now_s
        self._release(request)
        self._emit(
            Finished(
                request.sequence.request_id,
                reason,
                request.answer.num_tokens,
                stop,
                prefill_s=(now_s if first_s is None else first_s) - started_s,
                decode_s=0.0 if first_s is None else now_s - first_s,
            )
        )

    def fail(self, request: EngineRequest, kind: FailureKind, message: str) -> None:
        """End an accepted request with `Failed`."""
        self._release(request)
        self.refuse(request.job, kind, message)

    def refuse(
        self,
        job: RenderedJob,
        kind: FailureKind,
        message: str,
        *,
        num_prompt: int | None = None,
        limit: int | None = None,
    ) -> None:
        """Answer a request that is not accepted, or not any more, with `Failed`."""
        self._stats.add("engine_failed_total")
        self._emit(Failed(job.submit.request_id, kind, message, num_prompt, limit))

    def _advance_prefill(
        self, request: EngineRequest, part: Slice, sampled: Sampled | None
    ) -> None:
        sequence = request.sequence
        self._count_prefill(part)
        sequence.num_computed += part.num_tokens
        with self._stats.timed("engine_cache_seconds_total"):
            self._cache.insert(
                request.pages,
                sequence.token_ids,
                self._pages.num_reusable(sequence, sequence.num_computed),
            )
        self._admission.computed(request)
        if sequence.num_left:
            return
        self._end_prefill(request)
        if sampled is None:
            self.finish(request, "length")
        else:
            self._append(request, sampled)

    def _count_prefill(self, part: Slice) -> None:
        sequence, end = part.sequence, part.start + part.num_tokens
        num_new = max(0, end - max(part.start, sequence.num_known))
        # The last token of an answer that goes on is the only new one that is no prompt.
        is_decode = num_new > 0 and end > sequence.num_prompt
        self._stats.add("engine_prefill_tokens_total", num_new - is_decode)
        self._stats.add("engine_decode_tokens_total", is_decode)
        self._stats.add("engine_recomputed_tokens_total", part.num_tokens - num_new)
        sequence.num_known = max(sequence.num_known, end)

    def _end_prefill(self, request: EngineRequest) -> None:
        """All the sequence has is computed: for the first time, or again after a preemption."""
        if request.first_token_s is None:
            request.first_token_s = time.perf_counter()
        with self._stats.timed("engine_cache_seconds_total"):
            self._cache.write_entries(request.pages)
        request.sequence.move(Status.DECODE)
        self._admission.leave(request)

    def _append(self, request: EngineRequest, sampled: Sampled) -> bool:
        """Append the sampled tokens, up to the end of the answer; True if the answer goes on."""
        sequence = request.sequence
        for i, token_id in enumerate(sampled.token_ids):
            sequence.token_ids.append(token_id)
            sequence.num_computed = sequence.num_known = len(sequence.token_ids) - 1
            if sequence.constraint is not None:
                sequence.constraint.advance(token_id)
                if sequence.constraint.failure is not None:
                    self.fail(request, "bad_format", sequence.constraint.failure)
                    return False
            for piece in request.answer.push(token_id, *sampled.logprobs[i : i + 1]):
                self._send(request, piece)
            if sequence.status is Status.DONE:
                return False
        return True

    def _send(self, request: EngineRequest, piece: OutputPiece) -> None:
        request_id, call = request.sequence.request_id, piece.call
        if call is not None and (call.name is not None or call.arguments or piece.token_ids):
            self._emit(
                ToolCallDelta(
                    request_id,
                    call.index,
                    call.name,
                    call.arguments,
                    piece.token_ids,
                    piece.logprobs,
                )
            )
        elif piece.text or piece.token_ids:
            self._emit(
                TextDelta(request_id, piece.text, piece.token_ids, piece.thinking, piece.logprobs)
            )
        if piece.finish is not None:
            self.finish(request, piece.finish, piece.stop)

    def _release(self, request: EngineRequest) -> None:
        """Leave the schedule and return the pages, keeping the KV that is surely computed."""
        sequence = request.sequence
        del self._requests[sequence.request_id]
        self._scheduler.remove(sequence)
        self._stats.add("engine_output_tokens_total", request.answer.num_tokens)
        with self._stats.timed("engine_cache_seconds_total"):
            if request.fetch is not None:
                self._cache.abandon(request.fetch)
            if request.lease is not None:
                num_reusable = self._pages.num_reusable(sequence, sequence.num_computed)
                self._cache.release(request.lease, sequence.token_ids, num_reusable)
        self._admission.leave(request)
