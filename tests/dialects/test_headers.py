"""What the headers say:

`Cache-Status` as RFC 9211 has it, counts that add up, money without exponents.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import http_sf
import msgspec
import pytest

from engine.prompt.types import Position
from engine.types import Boundary, CachePlan, CacheReport, Hit, Miss, PlannedEntry
from gateway.bill.headers import Bill, billing_headers, headers_without_counts, ttl_name
from policies.pricing import Charge
from policies.sections import TtlPolicy
from tests.fakes import dialects
from tests.fakes.rules import ANTHROPIC, EARLIER_OPENAI, OPENAI, rules

P0, P1 = Position("system", 0), Position("messages", 0)
PLAN = CachePlan(
    readable=(P1, P0), writable=(PlannedEntry(P0, 3600.0), PlannedEntry(P1, 300.0)), min_tokens=64
)
CHARGE = Charge(
    Decimal("0.001"), Decimal("0.0002"), Decimal("0.00003"), Decimal("0.5"), Decimal("-0.0000075")
)


def boundary(position: Position, offset: int, ttl_s: float, existed: bool = False) -> Boundary:
    return Boundary(position, offset, ttl_s, existed)


def bill(
    report: CacheReport, plan: CachePlan = PLAN, base: Any = ANTHROPIC, *, final: bool = True
) -> Bill:
    usage = dialects.usage(report, base, plan, 5)
    return Bill(plan, report, base, usage, CHARGE, "2026-11-30", final)


def headers(report: CacheReport, plan: CachePlan = PLAN, base: Any = ANTHROPIC) -> dict[str, str]:
    return billing_headers(bill(report, plan, base), timings={})


COLD = CacheReport(
    500, boundaries=(boundary(P0, 300, 3600.0), boundary(P1, 400, 300.0)), miss=Miss("cold")
)
NOTHING = CachePlan()

CASES: list[tuple[str, CacheReport, CachePlan, Any, str, str]] = [
    (
        "cold",
        COLD,
        PLAN,
        ANTHROPIC,
        "miss",
        "pcg-kv; fwd=miss; stored; ttl=300; pcg-read=0; pcg-write=400; pcg-total=500",
    ),
    (
        "full",
        CacheReport(
            500,
            400,
            Hit(P1, 400, 287.9),
            (boundary(P0, 300, 3600.0, True), boundary(P1, 400, 300.0, True)),
            {"device": 400},
        ),
        PLAN,
        ANTHROPIC,
        "hit",
        "pcg-kv; fwd=partial; ttl=287; detail=device; pcg-read=400; pcg-write=0; pcg-total=500",
    ),
    (
        "partial, mostly from disk",
        CacheReport(
            500,
            310,
            Hit(P0, 300, 3599.0),
            (boundary(P0, 300, 3600.0, True), boundary(P1, 400, 300.0)),
            {"device": 54, "ssd": 256},
        ),
        PLAN,
        ANTHROPIC,
        "partial",
        "pcg-kv; fwd=partial; stored; ttl=300; detail=ssd; pcg-read=300; pcg-write=100; "
        "pcg-total=500",
    ),
    (
        "expired",
        CacheReport(500, boundaries=COLD.boundaries, miss=Miss("expired", P0)),
        PLAN,
        ANTHROPIC,
        "expired",
        "pcg-kv; fwd=stale; stored; ttl=300; detail=expired; pcg-read=0; pcg-write=400; "
        "pcg-total=500",
    ),
    (
        "below the minimum",
        CacheReport(60, miss=Miss("below_min")),
        PLAN,
        ANTHROPIC,
        "below-min",
        "pcg-kv; fwd=bypass; detail=below-min; pcg-total=60",
    ),
    (
        "not marked, though its prefix was shared",
        CacheReport(500, 480, tiers={"device": 480}),
        NOTHING,
        ANTHROPIC,
        "bypass",
        "pcg-kv; fwd=bypass; detail=not-marked; pcg-total=500",
    ),
    (
        "no-cache",
        CacheReport(500, boundaries=COLD.boundaries, miss=Miss("no_cache")),
        CachePlan(PLAN.readable, PLAN.writable, read=False),
        ANTHROPIC,
        "bypass",
        "pcg-kv; fwd=request; stored; ttl=300; detail=no-cache; pcg-read=0; pcg-write=400; "
        "pcg-total=500",
    ),
    (
        "no-store",
        CacheReport(500, miss=Miss("no_store")),
        CachePlan(PLAN.readable, PLAN.writable, read=False, store=False),
        ANTHROPIC,
        "bypass",
        "pcg-kv; fwd=bypass; detail=no-store",
    ),
    (
        "automatic, cold",
        CacheReport(5000, miss=Miss("cold")),
        CachePlan(any_prefix=True, min_tokens=1024),
        EARLIER_OPENAI,
        "miss",
        "pcg-kv; fwd=miss; stored; ttl=300; pcg-read=0; pcg-write=0; pcg-total=5000",
    ),
    (
        "automatic, warm",
        CacheReport(5000, 4990, tiers={"device": 4990}),
        CachePlan(any_prefix=True, min_tokens=1024),
        EARLIER_OPENAI,
        "hit",
        "pcg-kv; fwd=partial; stored; ttl=300; detail=device; pcg-read=4864; pcg-write=0; "
        "pcg-total=5000",
    ),
]


@pytest.mark.parametrize(
    ("report", "plan", "base", "word", "status"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_cache_status(
    report: CacheReport, plan: CachePlan, base: Any, word: str, status: str
) -> None:
    """One word for humans, one structured member for machines."""
    found = headers(report, plan, base)
    assert (found["pcg-cache"], found["Cache-Status"]) == (word, status)
    ((name, parameters),) = http_sf.parse(status.encode(), tltype="list")
    assert (str(name), "hit" in parameters) == ("pcg-kv", False)


def test_the_ttl_ends_with_the_greatest_age() -> None:
    """What is written lives no longer than the operator lets anything live."""
    for max_age_s, ttl_s in ((None, 300), (900.0, 300), (120.0, 120)):
        assert (
            f"; ttl={ttl_s}; "
            in headers(COLD, PLAN, rules(ANTHROPIC, ttl=TtlPolicy(max_age=max_age_s)))[
                "Cache-Status"
            ]
        )


def test_a_request_that_waited_for_another_says_so() -> None:
    """`collapsed`, as RFC 9211 calls it, whatever it is billed."""
    report = CacheReport(
        500,
        400,
        Hit(P1, 400, 287.9),
        (boundary(P1, 400, 300.0, True),),
        {"device": 400},
        shared=400,
    )
    assert "; fwd=partial; collapsed; ttl=287; " in headers(report)["Cache-Status"]
    missed = CacheReport(
        500,
        400,
        boundaries=(boundary(P1, 400, 300.0),),
        tiers={"device": 400},
        miss=Miss("cold"),
        shared=400,
    )
    assert (
        "; fwd=miss; stored; collapsed; "
        in headers(missed, msgspec.structs.replace(PLAN, single_flight="write"))["Cache-Status"]
    )


def test_counts() -> None:
    """Read, written in all and by class, zeros included, and the rest: together the prompt."""
    report = CacheReport(
        500,
        310,
        Hit(P0, 300, 1.0),
        (boundary(P1, 400, 300.0),),
        miss=Miss("messages_changed", P1, 310),
    )
    found = headers(report)
    assert {name: value for name, value in found.items() if name.endswith("tokens")} == {
        "pcg-cache-read-tokens": "300",
        "pcg-cache-write-tokens": "100",
        "pcg-cache-write-5m-tokens": "100",
        "pcg-cache-write-1h-tokens": "0",
        "pcg-uncached-tokens": "100",
        "pcg-prefill-skipped-tokens": "310",
    }
    assert found["pcg-miss-reason"] == "messages_changed; at=messages/0/0; token=310"


def test_classes_are_the_dialects() -> None:
    """Each dialect's own classes; none where writes are free."""
    assert {n for n in headers(COLD, base=OPENAI) if n.startswith("pcg-cache-write-")} == {
        "pcg-cache-write-tokens",
        "pcg-cache-write-30m-tokens",
        "pcg-cache-write-12h-tokens",
        "pcg-cache-write-300s-tokens",
        "pcg-cache-write-3600s-tokens",
    }
    assert {n for n in headers(COLD, base=EARLIER_OPENAI) if n.startswith("pcg-cache-write-")} == {
        "pcg-cache-write-tokens"
    }
    assert (ttl_name(43200.0, OPENAI), ttl_name(90.0, OPENAI)) == ("12h", "90s")


def test_money() -> None:
    """The total only where the output is known; a saving may be negative, a cost never is."""
    whole, stream = (
        billing_headers(bill(COLD, final=final), timings={}) for final in (True, False)
    )
    assert whole["pcg-cost-usd"] == "0.50123000"
    assert "pcg-cost-usd" not in stream
    for found in (whole, stream):
        assert found["pcg-prompt-cost-usd"] == "0.00123000"
        assert found["pcg-cost-saved-usd"] == "-0.00000750"
        assert found["pcg-price-version"] == "2026-11-30"


def test_no_reason_without_a_miss() -> None:
    """What did not happen has no header."""
    report = CacheReport(500, 400, Hit(P1, 400, 10.0), (boundary(P1, 400, 300.0, True),))
    assert "pcg-miss-reason" not in headers(report)


def test_timings_and_warnings() -> None:
    """Milliseconds in the order given; these two are also all there is before counts are known."""
    found = headers_without_counts(
        timings={"parse": 0.0019, "match": 0.0003, "prefill": 0.0412}, warnings=["a", "b"]
    )
    assert found == {
        "pcg-warning": "a, b",
        "Server-Timing": "parse;dur=1.9, match;dur=0.3, prefill;dur=41.2",
    }
    assert headers_without_counts(timings={}) == {}
    both = billing_headers(bill(COLD), timings={"parse": 0.001}, warnings=["a"])
    assert (both["Server-Timing"], both["pcg-warning"]) == ("parse;dur=1.0", "a")


def test_values_are_safe_in_a_header() -> None:
    """Printable ASCII only."""
    for _, report, plan, base, _, _ in CASES:
        for name, value in headers(report, plan, base).items():
            assert value.isascii(), name
            assert value.isprintable(), name
