"""Anthropic's caching rules: a request's plan, a report's bill.

Page "Prompt caching" (2026-08); numbers from the policy.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from engine.prompt.types import Level, Position
from engine.types import CachePlan, CacheReport, PlannedEntry
from gateway.dialects.billing import settle
from gateway.dialects.places import marks_of
from gateway.request import Request
from policies.pricing import Usage
from policies.rules import DialectRules

SYSTEM_PARAMETERS: Final[tuple[str, ...]] = ("speed", "citations")
MESSAGE_PARAMETERS: Final[tuple[str, ...]] = (
    "tool_choice",
    "parallel_tool_calls",
    "thinking",
    "effort",
    "output_format",
)


def plan(request: Request, rules: DialectRules) -> CachePlan:
    """Write at every mark; read at the marks and up to `lookback - 1` positions before each, the
    last mark first.

    Of more marks than may be, which only Anthropic refuses, the latest count. Without a mark
    nothing is read and nothing is written: caching is opt-in.
    """
    wanted = dict(list(marks_of(request.prompt).items())[-rules.max_breakpoints :])
    order = [position for position, _ in request.prompt.positions()]
    return CachePlan(
        readable=_readable(
            order, [i for i, position in enumerate(order) if position in wanted], rules.lookback
        ),
        writable=tuple(
            PlannedEntry(position, rules.lifetime_s(ttl_s)) for position, ttl_s in wanted.items()
        ),
        min_tokens=rules.min_tokens,
        salts=salts(request.parameters),
        unmarked_ttl_s=rules.caching.unmarked_ttl,
        read=request.directives.read,
        store=request.directives.store,
        max_read_age_s=request.directives.max_age_s,
    )


def usage(report: CacheReport, rules: DialectRules, plan: CachePlan, num_output: int) -> Usage:
    """Reads end at the entry that was hit; everything up to the last boundary after it was
    written."""
    read = report.hit.offset if report.hit is not None else 0
    return settle(report, rules, plan, read=read, num_output=num_output)


def salts(parameters: dict[str, Any]) -> dict[Level, str]:
    """The parameters that invalidate a level without being rendered. A level inherits the salt of
    the levels before it.

    The table of the pages "Prompt caching" and "Tool use with prompt caching": tool choice,
    thinking and effort cost the messages; speed and citations cost the system text too; nothing but
    the tools costs the tools.
    """
    system = {name: parameters[name] for name in SYSTEM_PARAMETERS if name in parameters}
    messages = system | {
        name: parameters[name] for name in MESSAGE_PARAMETERS if name in parameters
    }
    found: dict[Level, str] = {}
    if system:
        found["system"] = salt(system)
    if messages:
        found["messages"] = salt(messages)
    return found


def salt(parameters: dict[str, Any]) -> str:
    """Equal parameters give equal text in any order."""
    return msgspec.json.encode(parameters, order="deterministic").decode()


def _readable(order: list[Position], marked: list[int], lookback: int) -> tuple[Position, ...]:
    """Positions to try, from the end backwards: each mark's window, the mark being the first
    position of it."""
    tried: list[Position] = []
    lowest = len(order)
    for index in reversed(marked):
        stop = max(index - lookback, -1)
        tried += [order[i] for i in range(min(index, lowest - 1), stop, -1)]
        lowest = min(lowest, stop + 1)
    return tuple(tried)
