"""What one request used and cost, and what all did, in exact totals kept in memory.

Holds no prompt text and no keys.

Owned by the event loop; only ever adds. Totals are bounded because tenants and served models come
from the policy file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal, TypeAlias

from gateway.bill.headers import Bill
from gateway.request import WireName
from gateway.upstream.reported import Note, ReportedBill

Outcome: TypeAlias = Literal["answered", "failed", "cancelled"]
Kind: TypeAlias = Literal["engine", "response_cache", "upstream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request, over. What was never learned is None.

    `model` is the id asked for, `served_by` the policy's model or backend that answers for it.
    `error` is the class name of the `GatewayError`. `bill` is None where nothing is owed: refused,
    failed, or cancelled before the engine started. `phases` are seconds by name: where gateway and
    engine spent time besides computing tokens. `warnings` name what was changed on the client's
    behalf, `notes` what is to be known of a bill that rests on an upstream's numbers. `upstream`
    answered instead of an engine of ours, and calls the request `upstream_id`.
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

    @property
    def kind(self) -> Kind:
        """Where the answer came from."""
        if self.upstream is not None:
            return "upstream"
        return "response_cache" if isinstance(self.bill, Bill) and self.bill.replayed else "engine"


@dataclass(slots=True)
class Totals:
    """Sums over billed requests. Of the `num_replayed` whose answers had been given before, only
    what they saved counts."""

    num_requests: int = 0
    num_replayed: int = 0
    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    cost_usd: Decimal = Decimal(0)
    saved_usd: Decimal = Decimal(0)
    num_noted: int = 0
    """Bills that are not exact, because an upstream did not tell all (`Record.notes`)."""

    def add(self, bill: Bill | ReportedBill) -> None:
        self.num_requests += 1
        self.saved_usd += bill.charge.saved
        if isinstance(bill, Bill) and bill.replayed:
            self.num_replayed += 1
            return
        self.input += bill.usage.input
        self.cache_read += bill.usage.cache_read
        self.cache_write += bill.usage.num_written
        self.output += bill.usage.output
        self.cost_usd += bill.charge.total
        self.num_noted += isinstance(bill, ReportedBill) and bool(bill.notes)


class Ledger:
    """`totals` by (tenant, served model). Records are not kept: the plan of a bill is as long as
    its prompt."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, str], Totals] = {}

    def add(self, record: Record) -> None:
        """Enter one request, once. Requests that owe nothing change nothing."""
        if record.bill is not None:
            assert record.tenant is not None
            assert record.served_by is not None
            self.totals.setdefault((record.tenant, record.served_by), Totals()).add(record.bill)
