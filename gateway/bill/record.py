"""The record of one request: its outcome, usage and cost. Holds no prompt text and no keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gateway.bill.headers import Bill
from gateway.request import WireName
from gateway.upstream.reported import Note, ReportedBill

Outcome: TypeAlias = Literal["answered", "failed", "cancelled"]
Kind: TypeAlias = Literal["engine", "response_cache", "upstream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request that has ended. None: it was never known.

    `model` is the id asked for, `served_by` the policy's model or backend that answers for it.
    `error` is the class name of the `GatewayError`. `bill` is None where nothing is owed: refused,
    failed, or cancelled before the engine started. `phases` are the seconds, by name, that gateway
    and engine spent besides computing tokens. `warnings` name changes made on the client's behalf,
    `notes` doubts about a bill that rests on an upstream's numbers. `upstream` is the one that
    answered instead of an engine of this gateway, `upstream_id` its id of the request.
    `traceparent` and `tracestate` are the client's, of W3C Trace Context.
    """

    request_id: str
    route: str
    wire: WireName
    outcome: Outcome
    status: int
    at_s: float
    total_s: float
    stream: bool = False
    tenant: str | None = None
    model: str | None = None
    served_by: str | None = None
    error: str | None = None
    bill: Bill | ReportedBill | None = None
    ttft_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    upstream: str | None = None
    upstream_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None

    @property
    def kind(self) -> Kind:
        """The kind of place the answer came from."""
        if self.upstream is not None:
            return "upstream"
        return "response_cache" if isinstance(self.bill, Bill) and self.bill.replayed else "engine"
