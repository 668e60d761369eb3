"""The shipped dialects, chosen as the gateway does: by the rules' preset and the request's wire."""

from __future__ import annotations

from engine.types import CachePlan, CacheReport
from gateway.dialects import abilities
from gateway.dialects.registry import DIALECTS
from gateway.request import Request
from gateway.wire.base import Wire
from gateway.wire.registry import WIRES
from policies.pricing import Usage
from policies.rules import DialectRules


def check_abilities(request: Request, rules: DialectRules, wire: Wire | None = None) -> None:
    abilities.check_abilities(request, rules, wire or WIRES[request.wire])


def normalize(request: Request, rules: DialectRules) -> Request:
    return DIALECTS[rules.preset].normalize(request, rules, WIRES[request.wire])


def plan(request: Request, rules: DialectRules) -> CachePlan:
    return DIALECTS[rules.preset].plan(request, rules)


def usage(report: CacheReport, rules: DialectRules, plan: CachePlan, num_output: int) -> Usage:
    return DIALECTS[rules.preset].usage(report, rules, plan, num_output)
