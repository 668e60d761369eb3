"""The step loop: from rendered prompts to events, one model step at a time. Knows no threads,
sockets or rendering.

A request's life: `accept` (it fits the context) → it waits for what it needs and is admitted
(`engine/loop/admission.py`: `Started`) → prefilled in chunks, each committed to the cache → first
token (the plan's entries are promised) → decoded, a token or a rightly guessed few per step →
`Finished`, and its pages go back. When pages run out it may have to give them up and go on later
(`engine/loop/room.py`): nobody can tell but by the time it takes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Final

import msgspec

from engine.cache.prefix_cache import PrefixCache
from engine.errors import ContextExceeded, Overloaded
from engine.inbox import RenderedJob
from engine.loop.admission import Admission
from engine.loop.limits import StepLimits
from engine.loop.request import EngineRequest, LoopParts
from engine.loop.room import PageReservations
from engine.messages import Failed, FailureKind, Finished, FromEngine, TextDelta, ToolCallDelta
from engine.output.parser import OutputParser, OutputPiece
from engine.prompt.tokenizer import Tokenizer
from engine.schedule.draft import MAX_DRAFTING, Drafter
from engine.schedule.runner import Runner
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sampled, Sequence, Slice, Status
from engine.types import FinishReason, PinOutcome

_log = logging.getLogger(__name__)

COPY_NBYTES: Final = 8 * 1024**2
"""Bytes copied for the lower tiers between two steps."""


class StepLoop:
    """Owns scheduler, cache and runner; not thread-safe, the engine thread owns it. Nothing here
    waits.

    Every accepted request gets exactly one `Finished` or `Failed`, after its pages have been given
    back.
    """

    def __init__(
        self,
        limits: StepLimits,
        runner: Runner,
        cache: PrefixCache,
        tokenizer: Tokenizer,
        emit: Callable[[FromEngine], None],
    ) -> None:
        self.limits = limits
        self._runner = runner
        self._cache = cache
        self._tokenizer = tokenizer
        self._emit = emit
        self._scheduler = Scheduler(
            max_sequences=limits.max_sequences,
            max_step_tokens=limits.max_step_tokens,
            max_mixed_tokens=limits.max_mixed_tokens,
            max_queue=limits.max_queue,
        )
        parts = LoopParts(limits, runner, cache, self._scheduler, emit)
        self.stats = parts.stats
        self._requests = parts.requests
        self._room = PageReservations(parts)
        self._admission = Admission(parts, self._room)
        self._now_s = 0.0
        self._last_step_failed = False

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything now."""
        return self._scheduler.has_work or self._cache.has_work

    def wait_s(self) -> float | None:
        """Seconds after which `step` has something to do though nothing arrived; None if it never
        will."""
        return self._cache.wait_s()

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def num_loading(self) -> int:
        """Waiting requests whose prefix is being read."""
        return self._admission.num_loading

    @property
    def num_following(self) -> int:
        """Waiting requests whose prefix another request is computing."""
        return self._admission.num_following

    # What others want -----------------------------------------------------------------------------

    def accept(self, job: RenderedJob) -> None:
        """Start a request or queue it, or answer `Failed` when it can never fit or the queue is
        full.

        `max_tokens` is clamped to the context, and an answer that ends there finishes with
        `context`.
        """
        self.tick(job.submit.started_at_s)
        self.stats.add("engine_requests_total")
        self.stats.add("engine_render_seconds_total", job.render_s)
        num_prompt = len(job.rendered.token_ids)
        room = self.limits.context - num_prompt
        if num_prompt == 0:
            self._refuse(job, "bad_prompt", "the prompt is empty")
            return
        if room < 1:
            error = ContextExceeded(num_prompt, self.limits.context)
            self._refuse(
                job,
                "context_exceeded",
                str(error),
                num_prompt=num_prompt,
                limit=self.limits.context,
            )
            return
        sampling = job.submit.sampling
        at_limit: FinishReason = "context" if sampling.max_tokens > room else "length"
        sampling = msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, room))
        sequence = Sequence(
            job.submit.request_id,
            list(job.rendered.token_ids),
            num_prompt,
            sampling,
            constraint=job.constraint,
        )
        try:
            self._scheduler.add(sequence)
        except Overloaded as error:
            self._refuse(job, "overloaded", str(error))
            return
        request = EngineRequest(
            job, sequence, OutputParser(self._tokenizer, sampling, at_limit, job.rendered.syntax)
        )
        if self.limits.speculation and job.constraint is None:
            request.drafter = Drafter(sequence.token_ids)
        self._requests[sequence.request_id] = request
        self._admission.enter(request)

    def abort(self, request_id: str) -> None:
        """End a request as `cancelled`, accepted or not yet; what was computed of it stays
        cached."""
        self.stats.add("engine_aborted_total")
        request = self._requests.get(request_id)
        if request is None:
            self._emit(Finished(request_id, "cancelled", 0))
        else:
            self._finish(request, "cancelled")

    def abort_all(self) -> None:
        """End every accepted request as `cancelled`."""
        for request_id in list(self._requests):
            self.abort(request_id)

    def tick(self, now_s: float) -> None:
        """Tell the time; the cache's time is the largest ever told."""
        if now_s > self._now_s:
            self._now_s = now_s
            with self.stats.timed("engine_cache_seconds_total"):
                self._cache.tick(now_s)

    def flush(
        self, tenant: str | None, then: Callable[[int | None], None] = lambda num: None
    ) -> int:
        """See `PrefixCache.flush`."""
        with self.stats.timed("engine_cache_seconds_total"):
            num_blocks = self._cache.flush(tenant, then)
        self._admission.forget(tenant)
        return num_blocks

    def pin(self, key: bytes, *, pinned: bool) -> tuple[PinOutcome, int, int]:
        """See `PrefixCache.pin`."""
        with self.stats.timed("engine_cache_seconds_total"):
            return self._cache.pin(key, pinned=pinned)

    def check(self) -> None:
        """Raise AssertionError unless what is waiting, running and cached fits together. For
        tests."""
        self._cache.check()
        self._admission.check()

    def close(self, timeout_s: float) -> None:
        """With nothing in flight any more: write what the lower tiers should have, for so long at
        most."""
        if not self._cache.close(timeout_s):
            _log.warning("not everything was written to the lower tiers")

    # One step -------------------------------------------------------------------------------------

    def step(self) -> None:
        """Admit what fits, compute one step, send what came of it.

        An error of the model fails the sequences of that step and is otherwise survived, unless it
        follows another one or memory ran out: then it is raised and this loop is of no more use. So
        is any error from elsewhere.
        """
        self._admission.settle()
        self._admission.admit()
        # With nothing running all pages can be had, and what is larger than the pool was refused:
        # nobody waits for ever.
        num_patient = self._admission.num_loading + self._admission.num_following
        assert self._scheduler.num_running or self._scheduler.num_waiting == num_patient
        self._admission.restore()
        with self.stats.timed("engine_cache_seconds_total"):
            slices = self._room.reserve(self._scheduler.next_step())
        slices = self._draft(slices)
        with self.stats.timed("engine_cache_seconds_total"):
            self._room.cover(slices)
        if slices:
            self._compute(slices)
        if self._cache.has_work:
            with self.stats.timed("engine_cache_seconds_total"):
                self._cache.copy_out(COPY_NBYTES)

    def _draft(self, slices: list[Slice]) -> list[Slice]:
        """The slices, with guesses of what comes next where few sequences decode and guessing
        pays."""
        decoding = [part for part in slices if part.sequence.status is Status.DECODE]
        if not self.limits.speculation or len(decoding) > MAX_DRAFTING:
            return slices
        return [self._guess(part) for part in decoding] + slices[len(decoding) :]

    def _guess(self, part: Slice) -> Slice:
        drafter = self._requests[part.sequence.request_id].drafter
        draft = () if drafter is None else drafter.guess(self._room.num_drafts(part))
        self.stats.add("engine_drafted_tokens_total", len(draft))
        return replace(part, draft=draft) if draft else part

    def _compute(self, slices: list[Slice]) -> None:
        begin_s = time.perf_counter()
        try:
            with self.stats.timed("engine_step_seconds_total"):
                sampled = self._runner.step(slices)
        except Exception as error:
            self._survive(error, slices)
            return
        self._measure(slices, time.perf_counter() - begin_s)
        self._last_step_failed = False
        self.stats.add("engine_steps_total")
        for part, one in zip(slices, sampled, strict=True):
            self._advance(self._requests[part.sequence.request_id], part, one)

    def _measure(self, slices: Seq[Slice], seconds: float) -> None:
        """Learn the speed of prefill from steps that did little else."""
        num_prefill = sum(
            part.num_tokens for part in slices if part.sequence.status is Status.PREFILL
        )
        if num_prefill >= self.limits.max_step_tokens // 2:
            self._cache.prefilled(num_prefill, seconds)

    def _advance(self, request: EngineRequest, part: Slice, sampled: Sampled | None) -> None:
        """Take in what the step computed of one sequence."""
        sequence = request.sequence
        if sequence.status is Status.PREFILL:
            self._count_prefill(part)
            sequence.num_computed += part.num_tokens
            with self.stats.timed("engine_cache_seconds_total"):
                self._cache.commit(
                    request.pages,
                    sequence.token_ids,
                    self._room.num_reusable(sequence, sequence.num_computed),
                )
            self._admission.computed(request)
            if sequence.num_left:
                return
            self._end_prefill(request)
            if sampled is None:
                self._finish(request, "length")
            else:
                self._take(request, sampled)
            return
        assert sampled is not None
        self.stats.add("engine_decode_tokens_total", len(sampled.token_ids))
        if part.draft and request.drafter is not None:
            request.drafter.learn(len(part.draft), len(sampled.token_ids) - 1)
            self.stats.add("engine_accepted_tokens_total", len(sampled.token_ids) - 1)
        if self._take(request, sampled) and self._runner.reuse_decode_kv:
            with self.stats.timed("engine_cache_seconds_total"):
                self._cache.commit(request.pages, sequence.token_ids, sequence.num_computed)

    def _count_prefill(self, part: Slice) -> None:
        sequence, end = part.sequence, part.start + part.num_tokens
        num_new = max(0, end - max(part.start, sequence.num_known))
        # The last token of an answer that goes on is the only new one that is no prompt.
        is_decode = num_new > 0 and end > sequence.num_prompt
        self.stats.add("engine_prefill_tokens_total", num_new - is_decode)
        self.stats.add("engine_decode_tokens_total", is_decode)
        self.stats.add("engine_recomputed_tokens_total", part.num_tokens - num_new)
        sequence.num_known = max(sequence.num_known, end)

    def _end_prefill(self, request: EngineRequest) -> None:
        """All the sequence has is computed: for the first time, or again after a preemption."""
        if request.first_token_s is None:
            request.first_token_s = time.perf_counter()
        with self.stats.timed("engine_cache_seconds_total"):
            self._cache.promise(request.pages)
        request.sequence.move(Status.DECODE)
        self._admission.leave(request)

    def _take(self, request: EngineRequest, sampled: Sampled) -> bool:
        """Append what was sampled, up to where the answer ends; whether it goes on."""
        sequence = request.sequence
        for i, token_id in enumerate(sampled.token_ids):
            sequence.token_ids.append(token_id)
            sequence.num_computed = sequence.num_known = len(sequence.token_ids) - 1
            if sequence.constraint is not None:
                sequence.constraint.advance(token_id)
                if sequence.constraint.failure is not None:
                    self._give_back(request)
                    self._refuse(request.job, "bad_format", sequence.constraint.failure)
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
            self._finish(request, piece.finish, piece.stop)

    # Ends -----------------------------------------------------------------------------------------

    def _finish(
        self, request: EngineRequest, reason: FinishReason, stop: str | None = None
    ) -> None:
        now_s = time.perf_counter()
        first_s = request.first_token_s
        started_s = request.started_s or now_s
        self._give_back(request)
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

    def _refuse(
        self,
        job: RenderedJob,
        kind: FailureKind,
        message: str,
        *,
        num_prompt: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.stats.add("engine_failed_total")
        self._emit(Failed(job.submit.request_id, kind, message, num_prompt, limit))

    def _give_back(self, request: EngineRequest) -> None:
        """Leave the schedule and return the pages, keeping the KV that is surely computed."""
        sequence = request.sequence
        del self._requests[sequence.request_id]
        self._scheduler.remove(sequence)
        self.stats.add("engine_output_tokens_total", request.answer.num_tokens)
        with self.stats.timed("engine_cache_seconds_total"):
            if request.fetch is not None:
                self._cache.abandon(request.fetch)
            if request.lease is not None:
                num_reusable = self._room.num_reusable(sequence, sequence.num_computed)
                self._cache.release(request.lease, sequence.token_ids, num_reusable)
        self._admission.leave(request)

    def _survive(self, error: Exception, slices: Seq[Slice]) -> None:
        """Fail the sequences of a step that raised. Their tokens before the step are still good and
        stay cached."""
        self.stats.add("engine_failed_steps_total")
        for part in slices:
            request = self._requests[part.sequence.request_id]
            self._give_back(request)
            self._refuse(request.job, "internal", f"{type(error).__name__} in a step of the model")
        if self._last_step_failed or is_out_of_memory(error):
            raise error
        self._last_step_failed = True
        _log.error("step failed", exc_info=error)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host ran out of memory. Known by name, as this package must not
    import torch."""
    return isinstance(error, MemoryError) or any(
        kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__
    )
