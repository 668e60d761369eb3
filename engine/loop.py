"""The step loop: from rendered prompts to events, one model step at a time. Knows no threads, sockets or rendering.

A request's life: `accept` (it fits the context) → what lower tiers have of its prefix is read while it queues → admitted
by pages (`Started`) → what was read is put into its pages → prefilled in chunks, each committed to the cache → first token
(the plan's entries are promised) → decoded → `Finished`, and its pages go back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

import msgspec

from engine.answer import Answer, Piece
from engine.cache.fetch import Fetch
from engine.cache.lease import Lease
from engine.cache.prefix_cache import PrefixCache
from engine.errors import ContextExceeded, Overloaded
from engine.inbox import RenderedJob
from engine.messages import Failed, FailureKind, Finished, FromEngine, Started, TextDelta, ToolCallDelta
from engine.prompt.tokenizer import Tokenizer
from engine.schedule.runner import Runner
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sampled, Sequence, Slice, Status
from engine.stats import Stats
from engine.types import FinishReason

_log = logging.getLogger(__name__)

RESTORE_NBYTES: Final = 16 * 1024**2
"""Bytes put onto the device between two steps, so that answers being read never stop for long."""

COPY_NBYTES: Final = 8 * 1024**2
"""Bytes copied for the lower tiers between two steps."""

MAX_SEEKS: Final = 4
"""How often a request's prefix is read again because the device lost its own part while the request queued."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Sizes of the loop. `context` is the most tokens of prompt and answer together, never more than the pool holds."""

    context: int
    block_size: int
    max_sequences: int
    max_step_tokens: int
    max_queue: int


@dataclass(slots=True, eq=False)
class _Request:
    """One accepted request. `lease` is None until it is admitted; times are on the monotonic clock."""

    job: RenderedJob
    sequence: Sequence
    answer: Answer
    fetch: Fetch | None = None
    num_seeks: int = 0
    lease: Lease | None = None
    started_s: float = 0.0
    first_token_s: float | None = None


class StepLoop:
    """Owns scheduler, cache and runner; not thread-safe, the engine thread owns it. Nothing here waits.

    Every accepted request gets exactly one `Finished` or `Failed`, after its pages have been given back.
    """

    def __init__(
        self, limits: StepLimits, runner: Runner, cache: PrefixCache, tokenizer: Tokenizer, emit: Callable[[FromEngine], None]
    ) -> None:
        self.limits = limits
        self.stats = Stats()
        self._runner = runner
        self._cache = cache
        self._tokenizer = tokenizer
        self._emit = emit
        self._requests: dict[str, _Request] = {}
        self._loading: dict[str, _Request] = {}
        self._restoring: dict[str, _Request] = {}
        self._now_s = 0.0
        self._last_step_failed = False
        self._scheduler = Scheduler(
            max_sequences=limits.max_sequences, max_step_tokens=limits.max_step_tokens, max_queue=limits.max_queue
        )

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything now."""
        return self._scheduler.has_work or self._cache.has_work

    def wait_s(self) -> float | None:
        """Seconds after which `step` has something to do though nothing arrived; None if it never will."""
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
        return len(self._loading)

    # What others want ---------------------------------------------------------------------------------------------------

    def accept(self, job: RenderedJob) -> None:
        """Start a request or queue it, or answer `Failed` when it can never fit or the queue is full.

        `max_tokens` is clamped to the context, and an answer that ends there finishes with `context`.
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
            self._refuse(job, "context_exceeded", str(error), num_prompt=num_prompt, limit=self.limits.context)
            return
        sampling = job.submit.sampling
        at_limit: FinishReason = "context" if sampling.max_tokens > room else "length"
        sampling = msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, room))
        sequence = Sequence(job.submit.request_id, list(job.rendered.token_ids), num_prompt, sampling)
        try:
            self._scheduler.add(sequence)
        except Overloaded as error:
            self._refuse(job, "overloaded", str(error))
            return
        request = _Request(job, sequence, Answer(self._tokenizer, sampling, at_limit, job.rendered.speech))
        self._requests[sequence.request_id] = request
        self._seek(request)
        self._scheduler.admit(self._try_admit)

    def abort(self, request_id: str) -> None:
        """End a request as `cancelled`, accepted or not yet; what was computed of it stays cached."""
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

    def flush(self, tenant: str | None, then: Callable[[int], None] = lambda num: None) -> int:
        """Forget what is cached for `tenant`, or for everyone; the number of blocks forgotten at once. `then` is called
        when all tiers have forgotten, with the number of blocks and objects."""
        with self.stats.timed("engine_cache_seconds_total"):
            return self._cache.flush(tenant, then)

    def close(self, timeout_s: float) -> None:
        """With nothing in flight any more: write what the lower tiers should have, for so long at most."""
        if not self._cache.close(timeout_s):
            _log.warning("not everything was written to the lower tiers")

    # One step -----------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Admit what fits, compute one step, send what came of it.

        An error of the model fails the sequences of that step and is otherwise survived, unless it follows another one
        or memory ran out: then it is raised and this loop is of no more use. So is any error from elsewhere.
        """
        self._settle_loads()
        self._scheduler.admit(self._try_admit)
        # With nothing running all pages can be had, and what is larger than the pool was refused: nobody waits for ever.
        assert self._scheduler.num_running or self._scheduler.num_waiting == len(self._loading)
        self._restore()
        slices = self._scheduler.next_step()
        if slices:
            self._compute(slices)
        if self._cache.has_work:
            with self.stats.timed("engine_cache_seconds_total"):
                self._cache.copy_out(COPY_NBYTES)

    def _compute(self, slices: list[Slice]) -> None:
        with self.stats.timed("engine_cache_seconds_total"):
            for part in slices:
                self._cover(part)
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
        num_prefill = sum(part.num_tokens for part in slices if part.sequence.status is Status.PREFILL)
        if num_prefill >= self.limits.max_step_tokens // 2:
            self._cache.prefilled(num_prefill, seconds)

    # Lower tiers --------------------------------------------------------------------------------------------------------

    def _seek(self, request: _Request) -> None:
        """Start reading what lower tiers have of the prompt; the sequence is LOADING unless that is settled at once."""
        job, sequence = request.job, request.sequence
        request.num_seeks += 1
        with self.stats.timed("engine_cache_seconds_total"):
            request.fetch = self._cache.seek(job.submit.tenant, job.rendered, job.submit.plan, job.submit.started_at_s)
        if request.fetch is not None and not request.fetch.is_over:
            sequence.move(Status.LOADING)
            self._loading[sequence.request_id] = request

    def _settle_loads(self) -> None:
        """Take in what the tiers have done; who waits for nothing more may be admitted."""
        with self.stats.timed("engine_cache_seconds_total"):
            self._cache.poll()
        for request_id, request in list(self._loading.items()):
            if request.fetch is None or request.fetch.is_over:
                del self._loading[request_id]
                self._scheduler.ready(request.sequence)

    def _restore(self) -> None:
        """Put what was read onto the device, oldest request first, a slice at a time."""
        left = RESTORE_NBYTES
        for request_id, request in list(self._restoring.items()):
            lease = self._lease(request.sequence)
            with self.stats.timed("engine_cache_seconds_total"):
                left -= self._cache.restore(lease, left)
            if not lease.arrivals:
                del self._restoring[request_id]
                request.sequence.move(Status.PREFILL)
            if left <= 0:
                return

    def _try_admit(self, sequence: Sequence) -> bool:
        request = self._requests[sequence.request_id]
        while request.fetch is not None and request.fetch.is_outrun and request.num_seeks < MAX_SEEKS:
            self._cache.abandon(request.fetch)
            self._seek(request)
            if sequence.status is Status.LOADING:
                return False
        job = request.job
        # The last sampled token is never fed back, so it needs no room.
        num_reserve = sequence.num_prompt + max(sequence.sampling.max_tokens - 1, 0)
        begin_s = time.perf_counter()
        with self.stats.timed("engine_cache_seconds_total"):
            lease = self._cache.admit(
                job.submit.tenant,
                job.rendered,
                job.submit.plan,
                job.submit.started_at_s,
                num_reserve=num_reserve,
                fetch=request.fetch,
            )
        if lease is None:
            return False
        request.lease, request.fetch = lease, None
        if lease.arrivals:
            sequence.move(Status.RESTORING)
            self._restoring[sequence.request_id] = request
        request.started_s = time.perf_counter()
        sequence.num_cached = sequence.num_computed = lease.num_cached
        self.stats.add("engine_prompt_tokens_total", sequence.num_prompt)
        self.stats.add("engine_skipped_tokens_total", lease.num_cached)
        match_s = request.started_s - begin_s
        queue_s = max(0.0, begin_s - job.submitted_s - job.render_s)
        self._emit(Started(sequence.request_id, lease.report, job.render_s, match_s, queue_s))
        return True

    def _cover(self, part: Slice) -> None:
        """Make the block table reach over everything the slice writes."""
        lease = self._lease(part.sequence)
        self._cache.grow(lease, part.start + part.num_tokens)
        part.sequence.block_table = lease.block_table

    def _advance(self, request: _Request, part: Slice, sampled: Sampled | None) -> None:
        """Take in what the step computed of one sequence."""
        sequence = request.sequence
        is_prefill = sequence.status is Status.PREFILL
        sequence.num_computed += part.num_tokens
        self.stats.add("engine_prefill_tokens_total" if is_prefill else "engine_decode_tokens_total", part.num_tokens)
        if is_prefill or self._runner.reuse_decode_kv:
            with self.stats.timed("engine_cache_seconds_total"):
                self._cache.commit(self._lease(sequence), sequence.token_ids, sequence.num_computed)
        if is_prefill:
            if sequence.num_computed < sequence.num_prompt:
                return
            self._end_prefill(request)
        if sampled is None:
            self._finish(request, "length")
            return
        (token_id,) = sampled.token_ids
        sequence.token_ids.append(token_id)
        for piece in request.answer.push(token_id, *sampled.logprobs):
            self._send(request, piece)

    def _end_prefill(self, request: _Request) -> None:
        request.first_token_s = time.perf_counter()
        with self.stats.timed("engine_cache_seconds_total"):
            self._cache.promise(self._lease(request.sequence))
        request.sequence.move(Status.DECODE)

    def _send(self, request: _Request, piece: Piece) -> None:
        request_id, call = request.sequence.request_id, piece.call
        if call is not None and (call.name is not None or call.arguments or piece.token_ids):
            self._emit(ToolCallDelta(request_id, call.index, call.name, call.arguments, piece.token_ids, piece.logprobs))
        elif piece.text or piece.token_ids:
            self._emit(TextDelta(request_id, piece.text, piece.token_ids, piece.thinking, piece.logprobs))
        if piece.finish is not None:
            self._finish(request, piece.finish, piece.stop)

    # Ends ---------------------------------------------------------------------------------------------------------------

    def _finish(self, request: _Request, reason: FinishReason, stop: str | None = None) -> None:
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
        self, job: RenderedJob, kind: FailureKind, message: str, *, num_prompt: int | None = None, limit: int | None = None
    ) -> None:
        self.stats.add("engine_failed_total")
        self._emit(Failed(job.submit.request_id, kind, message, num_prompt, limit))

    def _give_back(self, request: _Request) -> None:
        """Leave the schedule and return the pages, keeping the KV that is surely computed."""
        sequence = request.sequence
        del self._requests[sequence.request_id]
        self._loading.pop(sequence.request_id, None)
        self._restoring.pop(sequence.request_id, None)
        self._scheduler.remove(sequence)
        self.stats.add("engine_output_tokens_total", request.answer.num_tokens)
        if request.fetch is not None:
            self._cache.abandon(request.fetch)
        if request.lease is not None:
            num_reusable = (
                sequence.num_computed if self._runner.reuse_decode_kv else min(sequence.num_computed, sequence.num_prompt)
            )
            with self.stats.timed("engine_cache_seconds_total"):
                self._cache.release(request.lease, sequence.token_ids, num_reusable)

    def _survive(self, error: Exception, slices: Seq[Slice]) -> None:
        """Fail the sequences of a step that raised. Their tokens before the step are still good and stay cached."""
        self.stats.add("engine_failed_steps_total")
        for part in slices:
            request = self._requests[part.sequence.request_id]
            self._give_back(request)
            self._refuse(request.job, "internal", f"{type(error).__name__} in a step of the model")
        if self._last_step_failed or is_out_of_memory(error):
            raise error
        self._last_step_failed = True
        _log.error("step failed", exc_info=error)

    def _lease(self, sequence: Sequence) -> Lease:
        lease = self._requests[sequence.request_id].lease
        assert lease is not None, "not admitted"
        return lease


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host ran out of memory. Known by name, as this package must not import torch."""
    return isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
