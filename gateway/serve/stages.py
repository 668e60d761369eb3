"""The stages of one request, each a value with all that is known by then.

Sends nothing and asks no policy.

    Received    who asks, and the body
    Admitted    parsed, normalized and planned, with the backend that is to answer
    Answering   the events so far; the prompt's bill, and at the end the final one
    Ended       how the request ended
    Record      the facts of it that are logged and counted

A request may end at any stage. `RecordDraft` collects the facts that its record then has.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from engine.messages import Finished, Started, TextDelta, ToolCallDelta
from engine.types import CacheReport, FinishReason
from gateway import dialects
from gateway.backends.base import Backend, Event
from gateway.bill.headers import Bill, billing_headers, headers_without_counts
from gateway.bill.lookup import CachedAnswer, ResponseLookup
from gateway.bill.merged import merged
from gateway.bill.record import Outcome, Record
from gateway.calls.catalog import MAX_MODEL_ID
from gateway.calls.exchange import Call
from gateway.errors import GatewayError, NotCached
from gateway.request import REST_OF_CONTEXT, Request
from gateway.serve.answer_builder import AnswerBuilder
from gateway.serve.timings import Timings
from gateway.state.response_cache import RecordedEvents, ResponseCache
from gateway.upstream.reported import UpstreamUsage
from gateway.wire.base import Answer, RememberingWire
from policies.pricing import NOTHING, Prices, Usage, charge, sum_usage
from policies.rules import DialectRules

CLIENT_GONE: Final = 499
"""The status that is recorded, and never sent, when the client left before its answer."""

UPSTREAM_REFUSED: Final = "UpstreamRefused"
"""The error that is recorded where the upstream's own error was passed on."""

CLAMPED: Final = "max_tokens-clamped-to-context"
"""The answer may end earlier than the client allowed, because prompt and answer share the
context."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request whose tenant is known and whose body has been read."""

    call: Call
    tenant: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request as the backend is to serve it: no later stage asks the policy.

    `served_by` is the policy's name of the model that answers, `context` the length of that model's
    context, None while it is not loaded. `memory` is the format of the call, where its requests may
    refer to earlier ones.
    """

    call: Call
    request: Request
    rules: DialectRules
    prices: Prices
    served_by: str
    backend: Backend
    context: int | None
    memory: RememberingWire | None

    @property
    def model_identity(self) -> str:
        """The name of the model and the fingerprint of its weights, once they are loaded."""
        model = self.backend.model
        return f"{self.served_by} {model.fingerprint if model is not None else ''}"


@dataclass(slots=True)
class Answering:
    """A request while its answer is generated; only `note` adds to it.

    `lookup` is the result of the look-up among whole answers, None where that cache is off.
    `recorded` are the events so far where the answer may be kept there. `prompt_bill` is None until
    every prompt has started, and is then the exact bill of all prompts without output. `usage` are
    the tokens of the prompts that have started; of a cached answer, those it had used. `num_open`
    answers are not whole yet.
    """

    admitted: Admitted
    timings: Timings
    lookup: ResponseLookup | None
    cached: CachedAnswer | None
    recorded: RecordedEvents | None
    answers: list[AnswerBuilder]
    usage: Usage
    num_open: int
    prompt_bill: Bill | None = None
    _reports: dict[int, CacheReport] = field(default_factory=dict)
    _final_bill: Bill | None = None

    @classmethod
    def begin(
        cls, admitted: Admitted, lookup: ResponseLookup | None, timings: Timings
    ) -> Answering:
        """The stage before the first event."""
        cached = None if lookup is None else lookup.cached
        kept = lookup is not None and lookup.key is not None and cached is None
        answers = [AnswerBuilder() for _ in range(admitted.request.num_answers)]
        usage = Usage(0) if cached is None else cached.usage
        recorded: RecordedEvents | None = [] if kept else None
        return cls(
            admitted, timings, lookup, cached, recorded, answers, usage, num_open=len(answers)
        )

    def note(self, event: Event, choice: int) -> None:
        """Take in an event of answer number `choice`.

        Raises `NotCached` where the last prompt has started, nothing of any is cached, and the
        request says only-if-cached.
        """
        if self.recorded is not None:
            self.recorded.append((choice, event))
        prewarms = self.admitted.request.prewarm  # its one sampled token is not the client's
        match event:
            case Started():
                self._start(event, choice)
            case TextDelta() | ToolCallDelta():
                self.timings.first_token()
                if not prewarms:
                    self.answers[choice].add(event)
            case Finished():
                answer = self.answers[choice]
                answer.finished = event
                answer.num_output = 0 if prewarms else event.num_output
                self.num_open -= 1

    def final_bill(self) -> Bill | None:
        """The bill of the prompts that have started and of the output so far; None before that.

        It is made at the first call and stays: call it once no more events come.
        """
        if self._final_bill is None and self._reports:
            bill = self.prompt_bill or self._bill_prompts()
            if self.cached is None:
                num_output = sum([answer.num_output for answer in self.answers])
                usage = replace(bill.usage, output=num_output)
                owed = charge(usage, self.admitted.prices)
                bill = replace(bill, usage=usage, charge=owed, final=not self.num_open)
            self._final_bill = bill
        return self._final_bill

    def answer(self) -> Answer:
        """All answers, whole, with the tokens of the final bill; once none is open."""
        bill = self.final_bill()
        if bill is None:
            raise RuntimeError("the answer ended before its prompt started")
        reason: FinishReason | None = "length" if self.admitted.request.prewarm else None
        first, *others = [answer.build(bill.usage, reason=reason) for answer in self.answers]
        return replace(first, others=tuple(others)) if others else first

    def keep(self, responses: ResponseCache) -> None:
        """Keep the whole answer for requests that ask the same, where it may be kept; the final
        bill then says for how long."""
        bill = self.final_bill()
        if self.recorded is not None and self.lookup is not None and bill is not None:
            kept_s = responses.keep(
                self.lookup, self.admitted.request, self.recorded, bill.usage, bill.charge.total
            )
            self._final_bill = replace(bill, kept_s=kept_s)

    def warnings(self) -> tuple[str, ...]:
        """Names of the changes made on the client's behalf, as `pcg-warning` shows them."""
        request, context = self.admitted.request, self.admitted.context
        wanted = request.sampling.max_tokens
        if not self._reports or context is None or wanted == REST_OF_CONTEXT:
            return request.warnings
        longest = max(report.num_prompt for report in self._reports.values())
        return (*request.warnings, CLAMPED) if wanted > context - longest else request.warnings

    def headers(self) -> dict[str, str]:
        """Headers about cache and cost: exact once every prompt has started, before without
        counts."""
        last = None if self.cached is not None else self.answers[0].finished
        engine_s = {} if last is None else {"prefill": last.prefill_s, "decode": last.decode_s}
        timings = self.timings.shown(**engine_s)
        bill = self._final_bill or self.prompt_bill
        if bill is None:
            return headers_without_counts(timings=timings, warnings=self.warnings())
        return billing_headers(bill, timings=timings, warnings=self.warnings())

    def _start(self, event: Started, choice: int) -> None:
        """The prompt whose first answer has number `choice` has started."""
        admitted = self.admitted
        request = admitted.request
        self._reports[choice] = event.report
        if self.cached is None:
            usage = dialects.usage(event.report, admitted.rules, request.plan, 0)
            self.usage = sum_usage([self.usage, usage])
            if choice == 0:
                self.timings.phases |= {
                    "render": event.render_s,
                    "match": event.match_s,
                    "queue": event.queue_s,
                }
        if len(self._reports) < request.num_prompts:
            return
        self.prompt_bill = bill = self._bill_prompts()
        if request.only_if_cached and not bill.usage.cache_read and self.cached is None:
            raise NotCached("nothing of this prompt is cached, and the request says only-if-cached")

    def _bill_prompts(self) -> Bill:
        """The bill of the prompts that have started."""
        admitted = self.admitted
        if self.cached is None:
            owed = charge(self.usage, admitted.prices)
        else:
            owed = replace(NOTHING, saved=self.cached.cost_usd)
        return Bill(
            plan=admitted.request.plan,
            report=merged([self._reports[choice] for choice in sorted(self._reports)]),
            rules=admitted.rules,
            usage=self.usage,
            charge=owed,
            price_version=admitted.prices.version,
            final=self.cached is not None,
            lookup=self.lookup,
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """How a request ended. `status` is 200 for a stream that had begun, whatever came then.

    `error` is the one of this gateway that its client was sent.
    """

    outcome: Outcome
    status: int
    error: GatewayError | None = None


ANSWERED: Final = Ended("answered", 200)
CANCELLED: Final = Ended("cancelled", CLIENT_GONE)

Work: TypeAlias = Answering | UpstreamUsage
"""The part of a request that costs money, on an engine or on an upstream."""


@dataclass(slots=True)
class RecordDraft:
    """The facts that the record of a request has, whenever it ends; None: not known yet.

    Owned by `Handler.recorded`. `ended` is set as soon as the client has its whole answer: a client
    that leaves later has been answered.
    """

    call: Call
    timings: Timings
    tenant: str | None = None
    request: Request | None = None
    served_by: str | None = None
    work: Work | None = None
    ended: Ended | None = None

    def record(self) -> Record:
        """The record of the request. One that failed owes nothing, except for usage that an
        upstream reported."""
        ended, request = self.ended or CANCELLED, self.request
        failed = ended.outcome == "failed"
        refused = UPSTREAM_REFUSED if failed else None
        record = Record(
            request_id=self.call.id,
            route=self.call.route,
            wire=self.call.wire.name,
            outcome=ended.outcome,
            status=ended.status,
            at_s=self.call.started_at_s,
            total_s=self.timings.elapsed_s(),
            stream=request is not None and request.stream,
            tenant=self.tenant,
            model=None if request is None else request.model[:MAX_MODEL_ID],
            served_by=self.served_by,
            error=refused if ended.error is None else type(ended.error).__name__,
            ttft_s=self.timings.ttft_s,
            phases=self.timings.phases,
            warnings=() if request is None else request.warnings,
        )
        match self.work:
            case Answering() as answering:
                bill = None if failed else answering.final_bill()
                return replace(record, bill=bill, warnings=answering.warnings())
            case UpstreamUsage() as usage:
                reported = usage.final_bill()
                unbilled = failed and reported is None
                return replace(
                    record,
                    stream=usage.stream,
                    model=usage.model[:MAX_MODEL_ID],
                    bill=reported,
                    notes=() if unbilled else usage.notes(reported),
                    upstream=usage.upstream,
                    upstream_id=usage.upstream_id,
                )
        return record
