"""The stage in which a request's answer is generated: its events so far, its bills, its headers.

Sends nothing and asks no policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from engine.messages import Finished, Started, TextDelta, ToolCallDelta
from engine.types import CacheReport, FinishReason
from gateway.backends.base import Event
from gateway.bill.headers import Bill, billing_headers, headers_without_counts
from gateway.bill.lookup import CachedAnswer, ResponseLookup
from gateway.bill.merged import merged
from gateway.errors import NotCached
from gateway.request import REST_OF_CONTEXT
from gateway.serve.answer_builder import AnswerBuilder
from gateway.serve.stages import Admitted
from gateway.serve.timings import Timings
from gateway.state.response_cache import RecordedEvents, ResponseCache
from gateway.wire.base import Answer
from policies.pricing import NOTHING, Usage, charge, sum_usage

CLAMPED: Final = "max_tokens-clamped-to-context"
"""The answer may end earlier than the client allowed, because prompt and answer share the
context."""


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
            usage = admitted.dialect.usage(event.report, admitted.rules, request.plan, 0)
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
        if request.directives.only_if_cached and not bill.usage.cache_read and self.cached is None:
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
