"""The record of a request while that has not ended yet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from gateway.bill.record import Record
from gateway.calls.catalog import MAX_MODEL_ID
from gateway.calls.exchange import Call
from gateway.request import Request
from gateway.serve.answering import Answering
from gateway.serve.stages import CANCELLED, Ended
from gateway.serve.timings import Timings
from gateway.serve.trace import trace_of
from gateway.upstream.reported import UpstreamUsage

UPSTREAM_REFUSED: Final = "UpstreamRefused"
"""The error that is recorded where the upstream's own error was passed on."""

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
        traceparent, tracestate = trace_of(self.call.headers)
        record = Record(
            request_id=self.call.id,
            route=self.call.route,
            wire=self.call.wire.provider.name,
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
            traceparent=traceparent,
            tracestate=tracestate,
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
