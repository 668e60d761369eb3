"""What an upstream told of one request, collected while its answer passes, and what that costs.
Sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from gateway.wire.reported import ReportedUsage, UsageFormat, merged
from gateway.wire.sse import EventReader
from policies.pricing import Charge, Prices, Usage, charge
from policies.rules import DialectRules
from policies.ttl import parse_duration

Note: TypeAlias = Literal[
    "usage_unknown", "cache_usage_unknown", "price_estimated", "usage_anomaly"
]
"""What is to be known of a bill that rests on somebody else's numbers.

`usage_unknown`: there is no bill. `cache_usage_unknown`: what was read was not told, so all of the
prompt is priced as input. `price_estimated`: the TTL class of written tokens was not told, the
default class is priced. `usage_anomaly`: the numbers did not add up and were made to.
"""


@dataclass(frozen=True, slots=True)
class ReportedBill:
    """One request's usage as `upstream` told it, priced here. Where not `cache_known`, `usage` is
    all input and output."""

    upstream: str
    usage: Usage
    cache_known: bool
    rules: DialectRules
    charge: Charge
    price_version: str
    notes: tuple[Note, ...] = ()


def reported_bill(
    upstream: str, told: ReportedUsage, rules: DialectRules, prices: Prices
) -> ReportedBill:
    """Every written token is priced at its own class, and at the default one where that was not
    told."""
    lifetimes = {name: rules.lifetimes.get(name, parse_duration(name)) for name in told.writes}
    written = {lifetimes[name]: tokens for name, tokens in told.writes.items()}
    if told.unclassed:
        written[rules.default_ttl_s] = written.get(rules.default_ttl_s, 0) + told.unclassed
    known = told.cache_read is not None
    usage = Usage(
        input=told.input,
        cache_read=told.cache_read or 0,
        cache_write=tuple(sorted(written.items(), reverse=True)),
        output=told.output,
    )
    notes: list[Note] = [] if known else ["cache_usage_unknown"]
    if (
        told.unclassed
        and len({prices.write_multiplier(ttl_s) for ttl_s in rules.lifetimes.values()}) > 1
    ):
        notes.append("price_estimated")
    if told.anomaly:
        notes.append("usage_anomaly")
    return ReportedBill(
        upstream=upstream,
        usage=usage,
        cache_known=known,
        rules=rules.model_copy(update={"lifetimes": {**rules.lifetimes, **lifetimes}}),
        charge=charge(usage, prices),
        price_version=prices.version,
        notes=tuple(notes),
    )


@dataclass(slots=True)
class UpstreamUsage:
    """One request on its way through an upstream; `bill` may be asked for at any time.

    `model` is the id the client asked for. `billed`: its answer tells usage. `upstream_id` is the
    upstream's own name for the request. `failed`: the stream holds an error.
    """

    upstream: str
    model: str
    stream: bool
    billed: bool
    rules: DialectRules
    prices: Prices
    format: UsageFormat
    upstream_id: str | None = None
    failed: bool = False
    _fields: dict[str, Any] = field(default_factory=dict)
    _events: EventReader = field(default_factory=EventReader)

    def take_whole(self, body: bytes) -> None:
        """A whole answer has come."""
        self._note(body)

    def take_piece(self, piece: bytes) -> bytes:
        """More of an event stream has come, beginning and ending anywhere: the whole events of it,
        to be passed on."""
        raw, events = self._events.feed(piece)
        for data in events:
            if b'"usage"' in data or b'"error"' in data or b'"response.failed"' in data:
                self._note(data)
        return raw

    def rest(self) -> bytes:
        """What is left to be passed on when the stream has ended."""
        return self._events.rest()

    @property
    def between_events(self) -> bool:
        """Whether what was passed on so far ends with an event."""
        return self._events.between

    def bill(self) -> ReportedBill | None:
        """What is owed as far as it was told; None while nothing was told of the prompt."""
        told = self.format.read(self._fields) if self.billed else None
        return None if told is None else reported_bill(self.upstream, told, self.rules, self.prices)

    def notes(self, bill: ReportedBill | None) -> tuple[Note, ...]:
        """Of its bill, or that there is none though there should be."""
        if bill is not None:
            return bill.notes
        return ("usage_unknown",) if self.billed else ()

    def _note(self, data: bytes) -> None:
        try:
            message = msgspec.json.decode(data)
            if isinstance(message, Mapping):
                self.failed = self.failed or self.format.failed(message)
                for usage in self.format.usages(message):
                    self._fields = merged(self._fields, usage)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
