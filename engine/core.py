"""The engine as its users see it: requests in from any thread, events out.

Knows no sockets, HTTP or money.

Three threads. The *render thread* turns prompts into tokens and answers counts; the *forms thread*
compiles what answers have to look like; the *engine thread* owns cache, schedule and device and
runs the step loop. None ever waits for another, and an idle engine sleeps.

    def receive(event: FromEngine) -> None:
        if isinstance(event, TextDelta):
            print(event.text, end="")
        elif isinstance(event, Finished | Failed):
            done.set()

    done = threading.Event()
    with worker.build_engine(config, receive) as engine:
        sampling = Sampling(max_tokens=64)
        engine.submit(Submit("1", "me", prompt, CachePlan(), sampling, started_at_s=time.time()))
        done.wait()
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self

from engine.cache.prefix_cache import PrefixCache
from engine.config import EngineConfig
from engine.errors import BadFormat, BadPrompt, BadTools, ContextExceeded, Overloaded
from engine.forms import FairQueue, Form, Forms
from engine.inbox import Inbox, Job, Mail
from engine.loop.limits import StepLimits
from engine.loop.step_loop import StepLoop
from engine.messages import (
    PROTOCOL_VERSION,
    Abort,
    Capabilities,
    Count,
    Counted,
    EngineStats,
    Failed,
    Finished,
    Flush,
    Flushed,
    FromEngine,
    Hello,
    Pin,
    Pinned,
    Snapshot,
    Submit,
    Tick,
)
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.tokenizer import Tokenizer
from engine.prompt.types import Prompt
from engine.schedule.runner import Runner
from engine.schedule.warmup import warm_up
from engine.stats import cache_values

_log = logging.getLogger(__name__)

WARM_UP_TOKENS: Final = 64
"""Tokens of the prefill that warms the model up."""

UNFLUSHED: Final = (
    "a tier below does not answer; it is told again until it has forgotten, and "
    "is not read for this before"
)
"""Error text of a flush that did not reach every tier."""

STACK_NBYTES: Final = 16 * 1024**2
"""Of each thread: several times what a grammar had when it was tried out
(`engine/constrain/trial.py`)."""

FLUSH_S: Final = 1.5
"""Seconds for which an ending engine goes on writing to the lower tiers."""


class PromptRenderer(Protocol):
    """Turns a prompt into tokens.

    Raises `BadPrompt` where the prompt is at fault, `ContextExceeded` where it is so long that its
    tokens need not be counted.
    """

    def render(self, prompt: Prompt, now_s: float) -> RenderedPrompt: ...


@dataclass(frozen=True, slots=True)
class FormedJob:
    """A job whose prompt has become tokens, in `render_s` seconds, and whose answer's form is yet
    to be compiled."""

    job: Job
    rendered: RenderedPrompt
    render_s: float
    form: Form


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of an engine.

    `fingerprint` names everything cached KV depends on. `resources` is open while the engine runs,
    and closed after the runner.
    """

    runner: Runner
    cache: PrefixCache
    tokenizer: Tokenizer
    renderer: PromptRenderer
    forms: Forms
    fingerprint: str
    capabilities: Capabilities
    resources: AbstractContextManager[Any] = field(default_factory=nullcontext)


class Engine:
    """Continuous batching over a prefix cache.

    Every method may be called from any thread and none waits, except `start` and `join`. `emit` is
    called from every thread of the engine: it must be thread-safe, and when it blocks the engine
    waits. Each request gets, in this order: `Started`, any number of `TextDelta`, then exactly one
    `Finished` or `Failed`; a refused or early aborted one only the last; a count one `Counted`.

    `on_fatal` is called from the engine thread when an error made the engine useless: everything in
    flight has been answered with `Failed`, and nothing is accepted any more.
    """

    def __init__(
        self,
        config: EngineConfig,
        parts: EngineParts,
        emit: Callable[[FromEngine], None],
        on_fatal: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._config = config
        self._parts = parts
        self._send = emit
        self._on_fatal = on_fatal
        self.context = min(config.context, parts.runner.num_pages * config.block_size)
        """The most tokens of prompt and answer together: what the model allows or the pool
        holds."""
        self.failure: BaseException | None = None
        """The error that made the engine useless."""
        limits = StepLimits(
            context=self.context,
            block_size=config.block_size,
            max_sequences=config.max_sequences,
            max_step_tokens=config.max_step_tokens,
            max_mixed_tokens=config.mixed_tokens,
            max_queue=config.max_queue,
            speculation=config.speculation == "auto",
        )
        self._loop = StepLoop(limits, parts.runner, parts.cache, parts.tokenizer, self._emit)
        capacity = config.max_queue + config.max_sequences
        self._inbox = Inbox(capacity)
        parts.cache.tiers.wake_by(self._inbox.wake)
        self._to_render: queue.Queue[Job | None] = queue.Queue(capacity)
        self._to_compile: FairQueue[FormedJob] = FairQueue()
        self._ready: Future[None] = Future()
        self._seed_ids = parts.tokenizer.encode("The quick brown fox jumps over the lazy dog.")
        self._threads = (
            threading.Thread(target=self._run, name="engine", daemon=True),
            threading.Thread(target=self._render, name="render", daemon=True),
            threading.Thread(target=self._compile, name="forms", daemon=True),
        )

    # For any thread -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads and wait until the model is warm. Raises what the first steps
        raised."""
        before = threading.stack_size(STACK_NBYTES)
        try:
            for thread in self._threads:
                thread.start()
        finally:
            threading.stack_size(before)
        self._ready.result()

    def hello(self, load_s: float) -> Hello:
        """The engine's own description, the first message to a new peer."""
        return Hello(
            PROTOCOL_VERSION,
            self._config.model,
            self._parts.fingerprint,
            self.context,
            self._parts.capabilities,
            load_s,
        )

    def submit(self, request: Submit) -> None:
        """Generate one answer. Raises `Overloaded` when too many are in flight, `EngineError` for
        an id that is in flight or after `close`; then no event follows."""
        self._open(Job(request))

    def count(self, request: Count) -> None:
        """Count the tokens of a prompt; answered by `Counted` or `Failed`. Raises as `submit`
        does."""
        self._open(Job(request))

    def abort(self, message: Abort) -> None:
        """End a request within a step; answered by `Finished` with reason `cancelled`. Unknown ids
        are ignored."""
        self._inbox.abort(message.request_id)

    def tick(self, message: Tick) -> None:
        """Advance the time; the engine's TTL time is the largest of these and of every
        `Submit.started_at_s`."""
        self._inbox.tick(message.now_s)

    def ask(self, message: Flush | Pin | Snapshot) -> None:
        """Run a command of an operator.

        A flush of cached blocks is answered by `Flushed`, or by `Failed` if a tier does not answer;
        a pin or unpin of an entry by `Pinned`; a request for statistics by `EngineStats` (names in
        `engine/stats.py`). Raises `Overloaded` or `EngineError`.
        """
        self._inbox.ask(message)

    def close(self) -> None:
        """Take nothing more; everything in flight ends as `cancelled` within a step. Idempotent."""
        self._inbox.close()
        self._to_compile.close()
        with suppress(queue.Full):
            self._to_render.put_nowait(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until all threads have ended and the device is released; False when they haven't in
        time."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self.join()

    def _open(self, job: Job) -> None:
        self._inbox.open(job)
        try:
            self._to_render.put_nowait(job)
        except queue.Full:
            self._inbox.settle(job.request_id)
            raise Overloaded("too many prompts are waiting to be rendered") from None

    def _emit(self, event: FromEngine) -> None:
        """Send an event; the last event of a request only if no other thread has sent one."""
        if not isinstance(event, Finished | Failed | Counted) or self._inbox.settle(
            event.request_id
        ):
            self._send(event)

    # The render thread ----------------------------------------------------------------------------

    def _render(self) -> None:
        while (job := self._to_render.get()) is not None and not self._inbox.is_closed:
            if self._inbox.is_open(job):
                self._render_one(job)

    def _render_one(self, job: Job) -> None:
        begin_s, request = time.perf_counter(), job.request
        with self._reporting_failures(job.request_id):
            rendered = self._parts.renderer.render(request.prompt, request.started_at_s)
            if isinstance(request, Count):
                self._emit(Counted(job.request_id, len(rendered.token_ids)))
                return
            form = self._parts.forms.form(request.sampling, request.prompt.tools, rendered.syntax)
            render_s = time.perf_counter() - begin_s
            if form is None:
                self._inbox.deliver(job, rendered, render_s)
                return
            formed = FormedJob(job, rendered, render_s, form)
            if form.is_at_hand:
                self._compile_one(formed)
            else:
                self._to_compile.put(request.tenant, formed)

    @contextmanager
    def _reporting_failures(self, request_id: str) -> Iterator[None]:
        """Sends an error in the block to the request as its last event."""
        try:
            yield
        except BadPrompt as error:
            self._emit(Failed(request_id, "bad_prompt", str(error)))
        except ContextExceeded as error:
            self._emit(
                Failed(
                    request_id,
                    "context_exceeded",
                    str(error),
                    num_prompt=error.num_prompt,
                    limit=error.limit,
                )
            )
        except BadFormat as error:
            self._emit(
                Failed(
                    request_id,
                    "bad_tools" if isinstance(error, BadTools) else "bad_format",
                    str(error),
                )
            )
        except Overloaded as error:
            self._emit(Failed(request_id, "overloaded", str(error)))
        except (
            BaseException
        ) as error:  # a panic in a library's Rust is no `Exception`; the next prompt may be fine
            # By kind and place only: a message may quote the prompt.
            fields = {"error": type(error).__name__, "at": traceback.format_tb(error.__traceback__)}
            _log.error("rendering failed", extra={"fields": fields})
            self._emit(
                Failed(request_id, "internal", f"{type(error).__name__} while rendering the prompt")
            )

    # The forms thread -----------------------------------------------------------------------------

    def _compile(self) -> None:
        while (formed := self._to_compile.take()) is not None:
            if self._inbox.is_open(formed.job):
                with self._reporting_failures(formed.job.request_id):
                    self._compile_one(formed)

    def _compile_one(self, formed: FormedJob) -> None:
        begin_s = time.perf_counter()
        constraint = formed.form.constraint()
        render_s = formed.render_s + time.perf_counter() - begin_s
        self._inbox.deliver(formed.job, formed.rendered, render_s, constraint)

    # The engine thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._parts.resources)
                stack.callback(self._parts.runner.close)
                stack.callback(self._parts.forms.close)
                num_tokens = max(1, min(WARM_UP_TOKENS, self.context - 1))
                warm_up(self._parts.runner, self._seed_ids, num_tokens, self._config.block_size)
            except Exception as error:
                self.close()
                self._ready.set_exception(error)
                return
            self._ready.set_result(None)
            stack.callback(self._loop.close, FLUSH_S)
            try:
                self._serve()
            except (
                BaseException
            ) as error:  # a panic, too, must not leave requests waiting for a thread that is gone
                self._die(error)

    def _serve(self) -> None:
        while not (
            mail := self._inbox.take(
                0.0 if self._loop.has_work else self._parts.cache.tiers.wait_s()
            )
        ).closed:
            self._handle(mail)
            self._loop.step()
        self._loop.abort_all()
        for request_id in self._inbox.settle_all():
            self._send(Finished(request_id, "cancelled", 0))

    def _handle(self, mail: Mail) -> None:
        if mail.now_s is not None:
            self._loop.tick(mail.now_s)
        for job in mail.rendered:
            if job.submit.request_id not in mail.aborted:
                self._loop.accept(job)
        for request_id in mail.aborted:
            self._loop.abort(request_id)
        for question in mail.questions:
            match question:
                case Flush():
                    self._flush(question)
                case Pin():
                    outcome, *nbytes = self._loop.pin(question.key, pinned=question.pinned)
                    self._send(Pinned(question.request_id, outcome, *nbytes))
                case Snapshot():
                    self._send(self._stats(question.request_id))

    def _flush(self, question: Flush) -> None:
        """Answered once every tier has forgotten, or failed to; what closes meanwhile is never
        answered."""

        def answer(num: int | None) -> None:
            self._send(
                Failed(question.request_id, "overloaded", UNFLUSHED)
                if num is None
                else Flushed(question.request_id, num)
            )

        self._loop.flush(question.tenant, answer)

    def _stats(self, request_id: str) -> EngineStats:
        counters, gauges = cache_values(self._parts.cache.stats())
        of_loop = {
            "engine_running": float(self._loop.scheduler.num_running),
            "engine_waiting": float(self._loop.scheduler.num_waiting),
            "engine_loading": float(self._loop.admission.num_loading),
            "engine_following": float(self._loop.admission.num_following),
            "engine_open": float(self._inbox.num_open),
        }
        counters = self._loop.stats.counters | counters
        return EngineStats(request_id, counters, of_loop | gauges)

    def _die(self, error: BaseException) -> None:
        _log.critical("the engine cannot go on", exc_info=error)
        self.failure = error
        self.close()
        for request_id in self._inbox.settle_all():
            self._send(Failed(request_id, "fatal", f"{type(error).__name__} ended the engine"))
        self._on_fatal(error)
