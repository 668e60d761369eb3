"""Qwen's caching rules: explicit with a marker, implicit without one, never both.

Model Studio "Context Cache" (2026-10).

Explicit is Anthropic's: look-back, billed writes. Implicit is that of OpenAI's earlier models: any
prefix, writes for free.
"""

from __future__ import annotations

from engine.types import CachePlan, CacheReport
from gateway.dialects import anthropic, openai
from gateway.dialects.places import marks_of
from gateway.request import Request
from policies.pricing import Usage
from policies.rules import DialectRules


def plan(request: Request, rules: DialectRules) -> CachePlan:
    """By the marks the request has."""
    if marks_of(request.prompt):
        return anthropic.plan(request, rules)
    return openai.plan(request, _implicit(rules))


def usage(report: CacheReport, rules: DialectRules, plan: CachePlan, num_output: int) -> Usage:
    """By the kind of the plan."""
    if plan.any_prefix:
        return openai.usage(report, _implicit(rules), plan, num_output)
    return anthropic.usage(report, rules, plan, num_output)


def _implicit(rules: DialectRules) -> DialectRules:
    return rules.model_copy(update={"bills_writes": False})
