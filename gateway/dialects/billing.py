"""From a cache report's offsets to disjoint token counts.

The same arithmetic for every dialect; knows no money.
"""

from __future__ import annotations

from engine.types import Boundary, CachePlan, CacheReport
from policies.pricing import Usage
from policies.rules import DialectRules


def settle(
    report: CacheReport, rules: DialectRules, plan: CachePlan, *, read: int, num_output: int
) -> Usage:
    """The bill of a request of which `read` prompt tokens count as read.

    Afterwards `read + writes + input == report.num_prompt` and `read <= report.skipped`. In
    `measured` mode the tokens really skipped are read, instead of `read`.
    """
    if rules.caching.usage_mode == "measured":
        read = report.skipped
    read = min(read, report.skipped)
    writes: dict[float, int] = {}
    if plan.store and rules.bills_writes:
        writes = written(report.boundaries, read)
    return Usage(
        input=report.num_prompt - read - sum(writes.values()),
        cache_read=read,
        cache_write=tuple(sorted(writes.items(), reverse=True)),
        output=num_output,
    )


def written(boundaries: tuple[Boundary, ...], read: int) -> dict[float, int]:
    """Tokens written per TTL in seconds, without zeros, when the first `read` tokens were read.

    Longest TTL first, each class takes the tokens between the end of the class before and its own
    last boundary. With the two classes of Anthropic this is the rule of its page "Prompt caching"
    (2026-08): A = `read`, B = the last 1h boundary after A, C = the last boundary; 1h = B - A, 5m =
    C - B.
    """
    tokens: dict[float, int] = {}
    end = read
    for ttl_s in sorted({boundary.ttl_s for boundary in boundaries}, reverse=True):
        last = max(boundary.offset for boundary in boundaries if boundary.ttl_s == ttl_s)
        if last > end:
            tokens[ttl_s] = last - end
            end = last
    return tokens
