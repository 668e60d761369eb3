"""Sums over records, exact: what tenants have used and owe. For tests only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from gateway.bill.headers import Bill
from gateway.bill.record import Record
from gateway.upstream.reported import ReportedBill


@dataclass(slots=True)
class Totals:
    """Sums over billed requests. Of the `num_replayed` whose answers had been given before, only
    what they saved counts. `num_noted` bills rest on numbers that an upstream did not report."""

    num_requests: int = 0
    num_replayed: int = 0
    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    cost_usd: Decimal = Decimal(0)
    saved_usd: Decimal = Decimal(0)
    num_noted: int = 0

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


def totals_of(records: Iterable[Record]) -> dict[tuple[str, str], Totals]:
    """Sums by (tenant, served model)."""
    totals: dict[tuple[str, str], Totals] = {}
    for record in records:
        if record.bill is not None:
            assert record.tenant is not None
            assert record.served_by is not None
            totals.setdefault((record.tenant, record.served_by), Totals()).add(record.bill)
    return totals
