"""The headers of an answer about cache and cost.

Knows the bill, not the body, and no HTTP server.

`Cache-Status` is RFC 9211, `Server-Timing` the W3C draft of 2026-03; `pcg-*` is ours and stable. A
prefix hit is never `hit` in RFC 9211's sense, because the answer is still generated: reuse is
`fwd=partial`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import http_sf
from http_sf import Token
from http_sf.types import BareItemType

from engine.types import CachePlan, CacheReport, Miss
from gateway.bill.lookup import Outcome, ResponseLookup
from gateway.upstream.reported import ReportedBill, ReportedWord
from policies.pricing import Charge, Usage, format_usd
from policies.rules import DialectRules

CacheWord: TypeAlias = Literal[
    "hit", "partial", "miss", "expired", "bypass", "below-min", "response"
]

CACHE_NAME: Final = "pcg-kv"
RESPONSE_CACHE_NAME: Final = "pcg-resp"

_FORWARD: Final[Mapping[CacheWord, str]] = {
    "hit": "partial",
    "partial": "partial",
    "miss": "miss",
    "expired": "stale",
    "bypass": "bypass",
    "below-min": "bypass",
    "response": "bypass",
}

_RESPONSE_FORWARD: Final[Mapping[Outcome, str]] = {
    "miss": "uri-miss",
    "stale": "stale",
    "request": "request",
    "bypass": "bypass",
}


@dataclass(frozen=True, slots=True)
class Bill:
    """One request's cache report, tokens and price. `final`: the answer is whole, so
    `charge.output` is known.

    `lookup` is its result in the cache of whole answers, None where that is off; its answer is kept
    there for `kept_s`, None where it is not.
    """

    plan: CachePlan
    report: CacheReport
    rules: DialectRules
    usage: Usage
    charge: Charge
    price_version: str
    final: bool
    lookup: ResponseLookup | None = None
    kept_s: float | None = None

    @property
    def replayed(self) -> bool:
        """A cached answer was given again: nothing was computed, and it costs nothing. `usage` is
        that of the request it was generated for."""
        return self.lookup is not None and self.lookup.cached is not None

    @property
    def word(self) -> CacheWord:
        """One word for humans and metrics.

        `bypass`: nothing was looked up, because the client forbade it or nothing was marked.
        `below-min`: marked, but shorter than the model's minimum. `hit`: every planned boundary was
        read. `partial`: some boundary had to be written. `response`: a cached answer was given
        again.
        """
        if self.replayed:
            return "response"
        plan, report, usage = self.plan, self.report, self.usage
        if not plan.read:
            return "bypass"
        if usage.cache_read > 0:
            new = any(boundary.offset > usage.cache_read for boundary in report.boundaries)
            return "partial" if new else "hit"
        if not (plan.readable or plan.writable or plan.any_prefix):
            return "bypass"
        cause = None if report.miss is None else report.miss.cause
        if usage.num_written == 0 and (cause == "below_min" or report.num_prompt < plan.min_tokens):
            return "below-min"
        return "expired" if cause == "expired" else "miss"


def billing_headers(
    bill: Bill, *, timings: Mapping[str, float], warnings: Iterable[str] = ()
) -> dict[str, str]:
    """Every header of a request whose counts are known. `timings` maps short names to seconds, in
    the order to show.

    On a stream (`final` false) the total cost is unknown and `pcg-cost-usd` is absent;
    `pcg-prompt-cost-usd` never is. Costs are fixed-point decimals and never negative;
    `pcg-cost-saved-usd` is negative where writing cost more than reading saved.
    """
    usage, charge = bill.usage, bill.charge
    # The cache nearest to the model comes first (RFC 9211); one that was not asked has no member.
    caches = [] if bill.replayed else [cache_status(bill)]
    if bill.lookup is not None:
        caches.append(response_status(bill, bill.lookup))
    headers = {
        "Cache-Status": ", ".join(caches),
        "pcg-cache": bill.word,
        "pcg-cache-read-tokens": str(usage.cache_read),
        "pcg-cache-write-tokens": str(usage.num_written),
    }
    for name, tokens in _writes_by_class(bill).items():
        headers[f"pcg-cache-write-{name}-tokens"] = str(tokens)
    headers["pcg-uncached-tokens"] = str(usage.input)
    headers["pcg-prefill-skipped-tokens"] = str(
        bill.report.num_prompt if bill.replayed else bill.report.skipped
    )
    if bill.final:
        headers["pcg-cost-usd"] = format_usd(charge.total)
    headers["pcg-prompt-cost-usd"] = format_usd(charge.prompt)
    headers["pcg-cost-saved-usd"] = format_usd(charge.saved)
    headers["pcg-price-version"] = bill.price_version
    if bill.report.miss is not None and not bill.replayed:
        headers["pcg-miss-reason"] = _miss_reason(bill.report.miss)
    return headers | headers_without_counts(timings=timings, warnings=warnings)


def reported_headers(
    upstream: str,
    bill: ReportedBill | None,
    *,
    timings: Mapping[str, float],
    warnings: Iterable[str],
) -> dict[str, str]:
    """Every header of a whole answer of `upstream`. `bill` is None where it reported no usage.

    A count that was not reported is absent. Tiers, time left and skipped work are never reported.
    """
    word: ReportedWord = "unknown" if bill is None else bill.word
    parameters: dict[str, BareItemType] = {"fwd": Token("bypass"), "detail": Token("usage-unknown")}
    headers: dict[str, str] = {"pcg-cache": word}
    if bill is not None and bill.cache_known:
        usage = bill.usage
        parameters = {
            "fwd": Token("partial" if usage.cache_read else "miss"),
            "detail": Token("from-usage"),
        }
        parameters |= {
            "pcg-read": usage.cache_read,
            "pcg-write": usage.num_written,
            "pcg-total": usage.num_prompt,
        }
        headers |= {
            "pcg-cache-read-tokens": str(usage.cache_read),
            "pcg-cache-write-tokens": str(usage.num_written),
        }
        headers |= {
            f"pcg-cache-write-{name}-tokens": str(tokens)
            for name, tokens in _writes_by_class(bill).items()
        }
        headers |= {
            "pcg-uncached-tokens": str(usage.input),
            "pcg-cost-saved-usd": format_usd(bill.charge.saved),
        }
    if bill is not None:
        headers |= {
            "pcg-cost-usd": format_usd(bill.charge.total),
            "pcg-prompt-cost-usd": format_usd(bill.charge.prompt),
        }
        headers["pcg-price-version"] = bill.price_version
    headers["Cache-Status"] = _member(parameters, upstream)
    return headers | headers_without_counts(timings=timings, warnings=warnings)


def headers_without_counts(
    *, timings: Mapping[str, float], warnings: Iterable[str] = ()
) -> dict[str, str]:
    """The headers of an answer that begins before its counts are known: headers of counts are
    absent."""
    headers: dict[str, str] = {}
    if warnings := list(warnings):
        headers["pcg-warning"] = ", ".join(warnings)
    if timings:
        headers["Server-Timing"] = ", ".join(
            f"{name};dur={1000 * seconds:.1f}" for name, seconds in timings.items()
        )
    return headers


def response_status(bill: Bill, lookup: ResponseLookup) -> str:
    """The member of the cache of whole answers. `stored` and `ttl` are known once the answer is
    whole."""
    if bill.replayed:
        return _member({"hit": True, "ttl": int(lookup.ttl_left_s)}, RESPONSE_CACHE_NAME)
    parameters: dict[str, BareItemType] = {"fwd": Token(_RESPONSE_FORWARD[lookup.outcome])}
    if bill.kept_s is not None:
        parameters |= {"stored": True, "ttl": int(bill.kept_s)}
    if lookup.detail is not None:
        parameters["detail"] = Token(lookup.detail)
    return _member(parameters, RESPONSE_CACHE_NAME)


def cache_status(bill: Bill) -> str:
    """The prefix cache's member of the `Cache-Status` list, with token counts as prefixed
    parameters.

    `ttl` is the time left of the last boundary that lives on after this request; `stored` says that
    something new does; `collapsed` that some of it was computed by another request while this one
    waited.
    """
    plan, report, usage, word = bill.plan, bill.report, bill.usage, bill.word
    if word == "bypass" and not plan.store:
        return _member({"fwd": Token("bypass"), "detail": Token("no-store")})
    if word == "below-min" or (word == "bypass" and plan.read):
        why = Token("below-min" if word == "below-min" else "not-marked")
        return _member({"fwd": Token("bypass"), "detail": why, "pcg-total": report.num_prompt})
    parameters: dict[str, BareItemType] = {"fwd": Token(_FORWARD[word] if plan.read else "request")}
    if _stored(bill):
        parameters["stored"] = True
    if report.shared:
        parameters["collapsed"] = True
    if (ttl_s := _ttl_left_s(bill)) is not None:
        parameters["ttl"] = int(ttl_s)
    if (detail := _detail(bill, word)) is not None:
        parameters["detail"] = Token(detail)
    parameters |= {
        "pcg-read": usage.cache_read,
        "pcg-write": usage.num_written,
        "pcg-total": report.num_prompt,
    }
    return _member(parameters)


def ttl_name(ttl_s: float, rules: DialectRules) -> str:
    """The name of a TTL class, or its seconds where the dialect has no such class."""
    return next(
        (name for name, class_s in rules.lifetimes.items() if class_s == ttl_s), f"{ttl_s:g}s"
    )


def _member(parameters: Mapping[str, BareItemType], name: str = CACHE_NAME) -> str:
    return http_sf.ser([(Token(name), dict(parameters))]).replace(";", "; ")


def _writes_by_class(bill: Bill | ReportedBill) -> dict[str, int]:
    """Tokens written per class, zeros included, for the classes of a dialect that bills writes."""
    tokens = dict.fromkeys(bill.rules.lifetimes, 0) if bill.rules.bills_writes else {}
    return tokens | {
        ttl_name(ttl_s, bill.rules): written for ttl_s, written in bill.usage.cache_write
    }


def _stored(bill: Bill) -> bool:
    if not bill.plan.store:
        return False
    new = any(not boundary.existed for boundary in bill.report.boundaries)
    return new or (bill.plan.any_prefix and bill.plan.unmarked_ttl_s > 0)


def _ttl_left_s(bill: Bill) -> float | None:
    report = bill.report
    if (
        bill.plan.store
        and report.boundaries
        and (report.hit is None or report.boundaries[-1].offset > report.hit.offset)
    ):
        ttl_s = report.boundaries[-1].ttl_s
        max_age_s = bill.rules.caching.ttl.max_age
        return ttl_s if max_age_s is None else min(ttl_s, max_age_s)
    if report.hit is not None:
        return report.hit.ttl_left_s
    return bill.plan.unmarked_ttl_s if _stored(bill) else None


def _detail(bill: Bill, word: CacheWord) -> str | None:
    """The tier that most of the cached tokens came from, or the reason why none was read."""
    if not bill.plan.read:
        return "no-cache"
    if word == "expired":
        return "expired"
    if bill.usage.cache_read == 0:
        return None
    return max(bill.report.tiers, key=lambda tier: bill.report.tiers[tier], default=None)


def _miss_reason(miss: Miss) -> str:
    """`tools_changed; at=tools/3; token=512`."""
    parameters: dict[str, BareItemType] = {}
    if miss.position is not None:
        parameters["at"] = Token(str(miss.position))
    if miss.token is not None:
        parameters["token"] = miss.token
    return http_sf.ser((Token(miss.cause), parameters)).replace(";", "; ")
