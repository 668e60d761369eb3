"""The toy's caching rules: all of the prompt is remembered or nothing, in steps of ten tokens."""

from __future__ import annotations

from engine.types import CachePlan, CacheReport, PlannedEntry
from gateway.dialects.billing import settle
from gateway.dialects.dialect import Dialect
from gateway.dialects.marks import automatic_mark
from gateway.dialects.places import marks_of
from gateway.request import Request
from policies.pricing import Usage
from policies.rules import DialectRules

STEP = 10


def _plan(request: Request, rules: DialectRules) -> CachePlan:
    marked = marks_of(request.prompt)
    entries = tuple(PlannedEntry(position, ttl_s) for position, ttl_s in marked.items())
    return CachePlan(readable=tuple(marked), writable=entries)


def _usage(report: CacheReport, rules: DialectRules, plan: CachePlan, num_output: int) -> Usage:
    read = report.hit.offset // STEP * STEP if report.hit is not None else 0
    return settle(report, rules, plan, read=read, num_output=num_output)


DIALECT = Dialect(entries=_plan, usage=_usage, place_marks=automatic_mark)
