"""The step loop: from rendered prompts to events, one model step at a time. Knows no threads,
sockets or rendering.

A request's life: `accept` (it fits the context) → it waits for room and is admitted
(`engine/loop/admission.py`: `Started`) → prefilled in chunks, each committed to the cache → first
token (the plan's entries are promised) → decoded, one token or an accepted draft per step →
`Finished`, and its pages go back. When pages run out it may have to give them up and go on later
(`engine/loop/page_reservations.py`): its answer is the same, only later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Final, TypeAlias

import msgspec

from engine.cache.prefix_cache import PrefixCache
from engine.errors import ContextExceeded, Overloaded
from engine.inbox import RenderedJob
from engine.loop.admission import Admission
from engine.loop.limits import StepLimits
from engine.loop.page_reservations import PageReservations
from engine.loop.postprocess import Postprocessor
from engine.loop.request import EngineRequest, LoopParts
from engine.messages import Finished, FromEngine
from engine.output.parser import OutputParser
from engine.prompt.tokenizer import Tokenizer
from engine.schedule.draft import MAX_DRAFTING, Drafter
from engine.schedule.runner import Runner
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sampled, Sequence, Slice, Status
from engine.types import FinishReason, PinOutcome

_log = logging.getLogger(__name__)

COPY_NBYTES: Final = 8 * 1024**2
"""Bytes copied for the lower tiers between two steps."""

StepResult: TypeAlias = list[tuple[Slice, Sampled | None]]
"""The slices of a step that was computed, each with its sampled tokens; empty where it failed."""


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
        self.scheduler = Scheduler(
            max_sequences=limits.max_sequences,
            max_step_tokens=limits.max_step_tokens,
            max_mixed_tokens=limits.max_mixed_tokens,
            max_queue=limits.max_queue,
        )
        parts = LoopParts(limits, runner, cache, self.scheduler, emit)
        self.stats = parts.stats
        self._requests = parts.requests
        self._pages = PageReservations(parts)
        self.admission = Admission(parts, self._pages)
        self._postprocessor = Postprocessor(parts, self._pages, self.admission)
        self._now_s = 0.0
        self._last_step_failed = False

    # One step -------------------------------------------------------------------------------------

    def step(self) -> None:
        """Admit waiting requests, compute one step, send its events.

        An error of the model fails the sequences of that step and is otherwise survived, unless it
        follows another one or memory ran out: then it is raised and this loop is of no more use. So
        is any error from elsewhere.
        """
        slices = self._schedule()
        result = self._run(slices)
        self._postprocess(result)

    @property
    def has_work(self) -> bool:
        """True if `step` would do anything now."""
        return self.scheduler.has_work or self._cache.has_work

    def _schedule(self) -> list[Slice]:
        """Admit waiting requests; returns the slices to compute, with their pages and drafts."""
        self.admission.settle()
        self.admission.admit()
        # With nothing running all pages can be had, and a request larger than the pool was refused:
        # none waits for ever.
        num_patient = self.admission.num_loading + self.admission.num_following
        assert self.scheduler.num_running or self.scheduler.num_waiting == num_patient
        self.admission.restore()
        with self.stats.timed("engine_cache_seconds_total"):
            slices = self._pages.reserve(self.scheduler.next_step())
        slices = self._with_drafts(slices)
        with self.stats.timed("engine_cache_seconds_total"):
            self._pages.cover(slices)
        return slices

    def _run(self, slices: list[Slice]) -> StepResult:
        """Compute the slices. An error fails their sequences, or is raised; see `step`."""
        if not slices:
            return []
        begin_s = time.perf_counter()
        try:
            with self.stats.timed("engine_step_seconds_total"):
                sampled = self._runner.step(slices)
        except Exception as error:
            self._survive(error, slices)
            return []
        self._measure(slices, time.perf_counter() - begin_s)
        self._last_step_failed = False
        self.stats.add("engine_steps_total")
        return list(zip(slices, sampled, strict=True))

    def _postprocess(self, result: StepResult) -> None:
        """Bring every sequence of the step forward, then copy for the lower tiers."""
        for part, sampled in result:
            self._postprocessor.advance(part, sampled)
        if self._cache.has_work:
            with self.stats.timed("engine_cache_seconds_total"):
                self._cache.write_back.copy(COPY_NBYTES)

    def _with_drafts(self, slices: list[Slice]) -> list[Slice]:
        """The slices, with drafts where few sequences decode and drafts are accepted."""
        decoding = [part for part in slices if part.sequence.status is Status.DECODE]
        if not self.limits.speculation or len(decoding) > MAX_DRAFTING:
            return slices
        return [self._with_draft(part) for part in decoding] + slices[len(decoding) :]

    def _with_draft(self, part: Slice) -> Slice:
        drafter = self._requests[part.sequence.request_id].drafter
        draft = () if drafter is None else drafter.propose(self._pages.num_drafts(part))
        self.stats.add("engine_drafted_tokens_total", len(draft))
        return replace(part, draft=draft) if draft else part

    def _measure(self, slices: Seq[Slice], seconds: float) -> None:
        """Learn the speed of prefill from steps that did little else."""
        num_prefill = sum(
            part.num_tokens for part in slices if part.sequence.status is Status.PREFILL
        )
        if num_prefill >= self.limits.max_step_tokens // 2:
            self._cache.prefilled(num_prefill, seconds)

    def _survive(self, error: Exception, slices: Seq[Slice]) -> None:
        """Fail the sequences of a step that raised. Their tokens before the step are still good and
        stay cached."""
        self.stats.add("engine_failed_steps_total")
        for part in slices:
            self._postprocessor.fail(
                self._requests[part.sequence.request_id],
                "internal",
                f"{type(error).__name__} in a step of the model",
            )
        if self._last_step_failed or is_out_of_memory(error):
            raise error
        self._last_step_failed = True
        _log.error("step failed", exc_info=error)

    # Requests -------------------------------------------------------------------------------------

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
            self._postprocessor.refuse(job, "bad_prompt", "the prompt is empty")
            return
        if room < 1:
            error = ContextExceeded(num_prompt, self.limits.context)
            self._postprocessor.refuse(
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
            self.scheduler.add(sequence)
        except Overloaded as error:
            self._postprocessor.refuse(job, "overloaded", str(error))
            return
        request = EngineRequest(
            job, sequence, OutputParser(self._tokenizer, sampling, at_limit, job.rendered.syntax)
        )
        if self.limits.speculation and job.constraint is None:
            request.drafter = Drafter(sequence.token_ids)
        self._requests[sequence.request_id] = request
        self.admission.enter(request)

    def abort(self, request_id: str) -> None:
        """End a request as `cancelled`, accepted or not yet; its computed KV stays cached."""
        self.stats.add("engine_aborted_total")
        request = self._requests.get(request_id)
        if request is None:
            self._emit(Finished(request_id, "cancelled", 0))
        else:
            self._postprocessor.finish(request, "cancelled")

    def abort_all(self) -> None:
        """End every accepted request as `cancelled`."""
        for request_id in list(self._requests):
            self.abort(request_id)

    def tick(self, now_s: float) -> None:
        """Advance the time; an earlier one changes nothing."""
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
        self.admission.forget(tenant)
        return num_blocks

    def pin(self, key: bytes, *, pinned: bool) -> tuple[PinOutcome, int, int]:
        """See `PrefixCache.pin`."""
        with self.stats.timed("engine_cache_seconds_total"):
            return self._cache.pin(key, pinned=pinned)

    def check(self) -> None:
        """Raise AssertionError unless the queue, the schedule and the cache agree. For tests."""
        self._cache.check()
        self.admission.check()

    def close(self, timeout_s: float) -> None:
        """With nothing in flight any more: write what is due to the lower tiers, for so long at
        most."""
        if not self._cache.close(timeout_s):
            _log.warning("not everything was written to the lower tiers")


def is_out_of_memory(error: BaseException) -> bool:
    """True if a device or the host ran out of memory. Known by name, as this package must not
    import torch."""
    return isinstance(error, MemoryError) or any(
        kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__
    )
