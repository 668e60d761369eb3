"""What one request has come to so far, from arrival to its record.

Decides nothing and sends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from engine.messages import Finished, Started, TextDelta, ToolCallDelta
from engine.types import FinishReason, TokenLogprobs
from gateway.bill.headers import Bill
from gateway.bill.lookup import ResponseLookup
from gateway.bill.merged import merged
from gateway.bill.record import Outcome, Record
from gateway.calls.catalog import MAX_MODEL_ID
from gateway.calls.exchange import Call
from gateway.dialects.dialect import Dialect
from gateway.errors import GatewayError
from gateway.request import REST_OF_CONTEXT, Request
from gateway.state.response_cache import RecordedEvents
from gateway.upstream.reported import Note, ReportedBill, UpstreamUsage
from gateway.wire.base import Answer, AnswerRun, ToolCall
from policies.pricing import NOTHING, Prices, Usage, charge, sum_usage
from policies.rules import DialectRules

CLIENT_GONE = 499
"""The status recorded, never sent, when the client left before its answer."""


UPSTREAM_REFUSED = "UpstreamRefused"
"""The error recorded where the upstream's own error was passed on."""

CLAMPED = "max_tokens-clamped-to-context"
"""The answer may end earlier than the client allowed, because prompt and answer share the
context."""


@dataclass(slots=True)
class RunBuilder:
    """What was said of one kind without a break, in pieces."""

    kind: Literal["thinking", "text", "call"]
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class ChoiceBuilder:
    """One of a request's answers, in the making. `num_output` counts its tokens, `num_thinking`
    those of reasoning."""

    runs: list[RunBuilder] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_output: int = 0
    num_thinking: int = 0
    finished: Finished | None = None

    def add(self, event: TextDelta | ToolCallDelta) -> None:
        self.num_output += len(event.token_ids)
        self.logprobs += event.logprobs
        if isinstance(event, TextDelta):
            self.num_thinking += len(event.token_ids) if event.thinking else 0
            self._say(event)
        elif event.name is not None:
            self.runs.append(RunBuilder("call"))
            self.calls.append(ToolCall(event.name, event.arguments))
        else:
            call = self.calls[event.index]
            self.calls[event.index] = ToolCall(call.name, call.arguments + event.arguments)

    def _say(self, event: TextDelta) -> None:
        """Goes on with the last run, or begins another."""
        kind: Literal["thinking", "text"] = "thinking" if event.thinking else "text"
        if not (event.text or event.logprobs):
            return
        if not self.runs or self.runs[-1].kind != kind:
            self.runs.append(RunBuilder(kind))
        self.runs[-1].pieces.append(event.text)
        self.runs[-1].logprobs += event.logprobs

    def answer(self, usage: Usage, *, reason: FinishReason | None = None) -> Answer:
        """The whole answer; only once it is finished. `reason` is told instead of the engine's."""
        assert self.finished is not None
        runs = tuple(
            AnswerRun(run.kind, "".join(run.pieces), tuple(run.logprobs)) for run in self.runs
        )
        return Answer(
            text="".join(run.text for run in runs if run.kind == "text"),
            reason=reason or self.finished.reason,
            stop=self.finished.stop,
            usage=usage,
            thinking="".join(run.text for run in runs if run.kind == "thinking"),
            calls=tuple(self.calls),
            logprobs=tuple(self.logprobs),
            num_thinking=self.num_thinking,
            runs=runs,
        )


@dataclass(slots=True)
class Progress:
    """Filled in step by step by the handler; `bill` and `record` may be asked for at any time.

    A request that is passed to an upstream has `passing` and no `request`. `lookup` is what became
    of the request in the cache of whole answers, `tape` its events where they may be kept there,
    and `kept_s` for how long they were.
    """

    call: Call
    tenant: str | None = None
    request: Request | None = None
    passing: UpstreamUsage | None = None
    dialect: Dialect | None = None
    rules: DialectRules | None = None
    prices: Prices | None = None
    served_by: str | None = None
    context: int | None = None
    lookup: ResponseLookup | None = None
    tape: RecordedEvents | None = None
    kept_s: float | None = None
    started: dict[int, Started] = field(default_factory=dict)
    choices: list[ChoiceBuilder] = field(default_factory=lambda: [ChoiceBuilder()])
    ttft_s: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    outcome: Outcome = "cancelled"
    status: int = CLIENT_GONE
    failure: GatewayError | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a step that is not computing tokens."""
        begin_s = _now_s()
        yield
        self.phases[name] = _now_s() - begin_s

    @property
    def replays(self) -> bool:
        """An answer that was given before is given again."""
        return self.lookup is not None and self.lookup.given is not None

    def on_started(self, event: Started, choice: int = 0) -> None:
        """`choice` is the first answer to the prompt that has started."""
        self.started[choice] = event
        if choice == 0 and not self.replays:
            self.phases |= {
                "render": event.render_s,
                "match": event.match_s,
                "queue": event.queue_s,
            }

    def on_delta(self, event: TextDelta | ToolCallDelta, choice: int = 0) -> None:
        self.began()
        if not self._prewarms:
            self.choices[choice].add(event)

    def on_finished(self, event: Finished, choice: int = 0) -> None:
        done = self.choices[choice]
        done.finished = event
        done.num_output = 0 if self._prewarms else event.num_output

    @property
    def finished(self) -> bool:
        """Whether every answer is whole."""
        return all(choice.finished is not None for choice in self.choices)

    @property
    def all_started(self) -> bool:
        """Every prompt's bill is known."""
        return self.request is not None and len(self.started) == self.request.num_prompts

    @property
    def _prewarms(self) -> bool:
        """The request wants its prompt cached and no answer: the one token that is always sampled
        is nobody's."""
        return self.request is not None and self.request.prewarm

    def answered(self) -> None:
        """The client has its whole answer."""
        self.outcome, self.status = "answered", 200

    def passed(self, status: int) -> None:
        """The client has the upstream's answer, or its refusal: whole, as it came."""
        assert self.passing is not None
        self.status = status
        self.outcome = "failed" if status >= 400 or self.passing.failed else "answered"

    def began(self) -> None:
        """The first of the answer has come."""
        if self.ttft_s is None:
            self.ttft_s = _now_s() - self.call.arrived_s

    def failed(self, error: GatewayError, status: int) -> None:
        """The client was told of `error`, with `status` (200 where a stream had already begun)."""
        self.outcome, self.status, self.failure = "failed", status, error

    def bill(self) -> Bill | None:
        """What is owed for the prompts that have started and the output so far; None before the
        engine started."""
        if not self.started:
            return None
        assert self.request is not None
        assert self.dialect is not None
        assert self.rules is not None
        assert self.prices is not None
        plan, rules, reports = (
            self.request.plan,
            self.rules,
            [self.started[i].report for i in sorted(self.started)],
        )
        if self.lookup is not None and self.lookup.given is not None:
            usage = self.lookup.given.usage
            owed = replace(NOTHING, saved=self.lookup.given.cost_usd)
        else:
            parts = [self.dialect.usage(report, rules, plan, 0) for report in reports]
            usage = replace(
                sum_usage(parts), output=sum(choice.num_output for choice in self.choices)
            )
            owed = charge(usage, self.prices)
        return Bill(
            plan=plan,
            report=merged(reports),
            rules=rules,
            usage=usage,
            charge=owed,
            price_version=self.prices.version,
            final=self.finished or self.replays,
            lookup=self.lookup,
            kept_s=self.kept_s,
        )

    def answer(self) -> Answer:
        """The whole answer; only when `finished`."""
        bill = self.bill()
        assert bill is not None
        reason: FinishReason | None = "length" if self._prewarms else None
        first, *others = (choice.answer(bill.usage, reason=reason) for choice in self.choices)
        return replace(first, others=tuple(others)) if others else first

    def warnings(self) -> tuple[str, ...]:
        """What was changed on the client's behalf, as `pcg-warning` names it."""
        assert self.request is not None
        wanted = self.request.sampling.max_tokens
        if not self.started or self.context is None or wanted == REST_OF_CONTEXT:
            return self.request.warnings
        clamped = wanted > self.context - max(
            started.report.num_prompt for started in self.started.values()
        )
        return (*self.request.warnings, CLAMPED) if clamped else self.request.warnings

    def timings(self) -> dict[str, float]:
        """Seconds by the short names of `Server-Timing`."""
        timings = dict(self.phases)
        first = self.choices[0].finished
        if first is not None and not self.replays:
            timings |= {"prefill": first.prefill_s, "decode": first.decode_s}
        if self.ttft_s is not None:
            timings["ttft"] = self.ttft_s
        return timings

    def record(self) -> Record:
        """The request as it is remembered. A failed request owes nothing, but what an upstream told
        of it."""
        passing = self.passing
        bill: Bill | ReportedBill | None = None if self.outcome == "failed" else self.bill()
        model, stream = (
            (self.request.model, self.request.stream) if self.request is not None else (None, False)
        )
        notes: tuple[Note, ...] = ()
        if passing is not None:
            told, model, stream = passing.bill(), passing.model, passing.stream
            bill, notes = (
                told,
                () if told is None and self.outcome == "failed" else passing.notes(told),
            )
        return Record(
            request_id=self.call.id,
            route=self.call.route,
            wire=self.call.wire.provider.name,
            outcome=self.outcome,
            status=self.status,
            at_s=self.call.started_at_s,
            total_s=_now_s() - self.call.arrived_s,
            stream=stream,
            tenant=self.tenant,
            model=None if model is None else model[:MAX_MODEL_ID],
            served_by=self.served_by,
            error=self._error(),
            bill=bill,
            ttft_s=self.ttft_s,
            phases=self.phases,
            warnings=self.warnings() if self.request is not None else (),
            notes=notes,
            upstream=None if passing is None else passing.upstream,
            upstream_id=None if passing is None else passing.upstream_id,
        )

    def _error(self) -> str | None:
        """The name of what went wrong."""
        if self.failure is not None:
            return type(self.failure).__name__
        return UPSTREAM_REFUSED if self.outcome == "failed" else None


def _now_s() -> float:
    return asyncio.get_running_loop().time()
