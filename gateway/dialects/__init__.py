"""A provider's rules as pure functions:

`check_abilities`, `normalize`, then `plan`, and once the engine has reported, `usage`.

Nothing here tokenizes and nothing here knows a price. What may be read and must be written is
decided here; what is there is the engine's business.

Request parameters a dialect understands, absent where the client left the default: `tool_choice`,
`parallel_tool_calls` (only ever False), `citations` (only ever True), `thinking`, `effort`,
`speed`, `verbosity`, `prompt_cache_key`, `cache_mode` (only ever `explicit`), `cache_ttl_s`,
`retention_s`, `context_management`, `output_format`.
"""

from __future__ import annotations

import msgspec

from engine.types import CachePlan, CacheReport, PlannedEntry
from gateway.dialects import anthropic, openai, qwen
from gateway.dialects.abilities import check_abilities
from gateway.dialects.normal import normalize
from gateway.request import Request
from policies.pricing import Usage
from policies.rules import DialectRules

__all__ = ["check_abilities", "normalize", "plan", "usage"]


def plan(request: Request, rules: DialectRules) -> CachePlan:
    """What this request may read and must write. Expects a request that went through
    `normalize`."""
    planned = _of_preset(request, rules)
    return msgspec.structs.replace(
        planned,
        writable=tuple(_as_the_operator_says(entry, rules) for entry in planned.writable),
        single_flight=rules.caching.single_flight.mode,
        max_wait_s=rules.caching.single_flight.max_wait,
    )


def usage(report: CacheReport, rules: DialectRules, plan: CachePlan, num_output: int) -> Usage:
    """The provider's bill in tokens. The parts add up to `report.num_prompt`, and no more is read
    than was skipped."""
    if rules.preset == "anthropic":
        return anthropic.usage(report, rules, plan, num_output)
    if rules.preset == "qwen":
        return qwen.usage(report, rules, plan, num_output)
    return openai.usage(report, rules, plan, num_output)


def _as_the_operator_says(entry: PlannedEntry, rules: DialectRules) -> PlannedEntry:
    """What no provider has: classes that stay as they were bought, and an age nothing outlives."""
    ttl = rules.caching.ttl
    return msgspec.structs.replace(entry, upgrade=ttl.upgrade == "free", max_age_s=ttl.max_age)


def _of_preset(request: Request, rules: DialectRules) -> CachePlan:
    match rules.preset:
        case "anthropic":
            return anthropic.plan(request, rules)
        case "qwen":
            return qwen.plan(request, rules)
    return openai.plan(request, rules)
