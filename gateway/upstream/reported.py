"""The usage that an upstream reports of one request, and its price. Sends nothing.

Usage is collected from a copy, while the answer goes on to the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec

from gateway.wire.collected import CollectedUsage
from gateway.wire.reported import ReportedUsage, UsageFormat
from gateway.wire.sse import DONE, EventReader
from policies.pricing import Charge, Prices, Usage, charge
from policies.rules import DialectRules
from policies.ttl import parse_duration

ReportedWord: TypeAlias = Literal["hit", "partial", "miss", "unknown"]
Note: TypeAlias = Literal[
    "usage_unknown", "cache_usage_unknown", "price_estimated", "usage_anomaly"
]
"""A doubt about a bill that rests on an upstream's numbers.

`usage_unknown`: there is no bill. `cache_usage_unknown`: tokens read were not reported, so all of
the prompt is priced as input. `price_estimated`: the TTL class of written tokens was not reported,
the default class is priced. `usage_anomaly`: the numbers did not add up and were made to.
"""


_READ: Final = (
    *(b'"usage"', b'"error"', b'"message_stop"'),
    *(b'"response.completed"', b'"response.incomplete"', b'"response.failed"'),
)
"""An event without any of these words is not looked into."""


@dataclass(frozen=True, slots=True)
class ReportedBill:
    """One request's usage as `upstream` reported it, priced here.

    Where not `cache_known`, `usage` is all input and output.
    """

    upstream: str
    usage: Usage
    cache_known: bool
    rules: DialectRules
    charge: Charge
    price_version: str
    notes: tuple[Note, ...] = ()

    @property
    def word(self) -> ReportedWord:
        """`hit`: something was read and nothing written. `unknown`: the upstream did not report it,
        which is not a miss."""
        if not self.cache_known:
            return "unknown"
        if self.usage.cache_read == 0:
            return "miss"
        return "partial" if self.usage.num_written else "hit"


def reported_bill(
    upstream: str, reported: ReportedUsage, rules: DialectRules, prices: Prices
) -> ReportedBill:
    """Every written token is priced at its own TTL class, and at the default one where that was not
    reported; as input where the rules bill no writes."""
    if not rules.bills_writes:
        reported = reported.as_input(classed=True)
    lifetimes = {name: rules.lifetimes.get(name, parse_duration(name)) for name in reported.writes}
    written = {lifetimes[name]: tokens for name, tokens in reported.writes.items()}
    if reported.unclassed:
        written[rules.default_ttl_s] = written.get(rules.default_ttl_s, 0) + reported.unclassed
    known = reported.cache_read is not None
    usage = Usage(
        input=reported.input,
        cache_read=reported.cache_read or 0,
        cache_write=tuple(sorted(written.items(), reverse=True)),
        output=reported.output,
    )
    notes: list[Note] = [] if known else ["cache_usage_unknown"]
    if (
        reported.unclassed
        and len({prices.write_multiplier(ttl_s) for ttl_s in rules.lifetimes.values()}) > 1
    ):
        notes.append("price_estimated")
    if reported.anomaly:
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
    """The usage of one request, read from an upstream's answer as it passes.

    `model` is the id the client asked for. `billed`: the answer reports usage. `provider`: the
    upstream is known to be a provider, who sells what it writes for a time; an engine keeps blocks
    while it has room, so that written tokens without a TTL class are input. `upstream_id` is the
    upstream's own name for the request. `failed`: the stream holds an error. `ended`: its last
    event has come.
    """

    upstream: str
    model: str
    stream: bool
    billed: bool
    rules: DialectRules
    prices: Prices
    format: UsageFormat
    provider: bool = True
    upstream_id: str | None = None
    failed: bool = False
    ended: bool = False
    _collected: CollectedUsage = field(init=False)
    _events: EventReader = field(default_factory=EventReader)
    _bill: ReportedBill | None = None

    def __post_init__(self) -> None:
        self._collected = CollectedUsage(self.format)

    def take_whole(self, body: bytes) -> None:
        """Read a whole answer."""
        self._read(body)

    def take_piece(self, piece: bytes) -> bytes:
        """Read more of an event stream, beginning and ending anywhere; returns the whole events of
        it, for the client."""
        raw, events = self._events.feed(piece)
        for data in events:
            self._take_event(data)
        return raw

    def rest(self) -> bytes:
        """The bytes that are left for the client when the stream has ended; an event whose end is
        missing is read as well."""
        self._take_event(self._events.rest_data)
        return self._events.rest()

    def broken_off(self) -> bytes:
        """The bytes that are left for the client when the stream has broken off: an event of which
        nothing but its end is missing, with an end. Of half an event the client gets nothing."""
        data = self._events.rest_data
        whole = data == DONE or is_object(data)
        rest = self.rest()
        return rest + b"\n\n" if whole else b""

    def _take_event(self, data: bytes) -> None:
        self.ended = self.ended or data == DONE
        if any(word in data for word in _READ):
            self._read(data)

    @property
    def between_events(self) -> bool:
        """Whether the bytes for the client end with an event so far."""
        return self._events.between

    def final_bill(self) -> ReportedBill | None:
        """The bill of the usage reported so far; None where none was reported of the prompt.

        It is made once: call it when no more of the answer comes.
        """
        if self._bill is None and self.billed:
            reported = self._collected.read()
            if reported is not None and self.format.classed and not self.provider:
                reported = reported.as_input(classed=False)
            if reported is not None:
                self._bill = reported_bill(self.upstream, reported, self.rules, self.prices)
        return self._bill

    def notes(self, bill: ReportedBill | None) -> tuple[Note, ...]:
        """The notes of its bill, or the one that there is none though there should be."""
        if bill is not None:
            return bill.notes
        return ("usage_unknown",) if self.billed else ()

    def _read(self, data: bytes) -> None:
        try:
            message = msgspec.json.decode(data)
            if isinstance(message, Mapping):
                self.ended = self.ended or self.format.ended(message)
                self.failed = self.failed or self.format.failed(message)
                for usage in self.format.usages(message):
                    self._collected.add(usage)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return


def is_object(text: bytes) -> bool:
    """Whether a text is one whole JSON object, which a text that was cut is not."""
    try:
        return isinstance(msgspec.json.decode(text), Mapping)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
