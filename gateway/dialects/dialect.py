"""A provider's caching rules as one value: pure functions over requests, rules and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from engine.prompt.types import Position
from engine.types import CachePlan, CacheReport
from gateway.dialects.marks import FinalMarks
from gateway.dialects.nonce import NONCE_DROPPED, without_nonce
from gateway.dialects.order import ordered
from gateway.dialects.places import marks_of, with_marks
from gateway.dialects.words import ErrorWords
from gateway.errors import InvalidRequest
from gateway.request import Request
from policies.pricing import Usage
from policies.rules import DialectRules

PlaceMarks: TypeAlias = Callable[
    [Request, Mapping[Position, float], DialectRules, ErrorWords], FinalMarks
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The rules of one preset. `normalize`, then `plan`, and `usage` once the engine has reported.

    `usage` gives the bill in tokens: its parts add up to `report.num_prompt`, and no more is read
    than was skipped. `place_marks` turns a request's marks into the final ones, and raises
    `InvalidRequest`. `looks_back`: entries are looked for at any position before a mark, and
    not only at marks and automatic breakpoints.
    """

    entries: Callable[[Request, DialectRules], CachePlan]
    usage: Callable[[CacheReport, DialectRules, CachePlan, int], Usage]
    place_marks: PlaceMarks
    looks_back: bool = False

    def normalize(self, request: Request, rules: DialectRules, words: ErrorWords) -> Request:
        """The same request with final marks: afterwards `automatic` is None and `marker_problems`
        is empty.

        With `marker_errors: strict` raises `InvalidRequest` as the provider would; with `repair`
        mends and adds a warning. Parts that the model cannot see are refused in either case.
        """
        if request.marker_problems and rules.caching.marker_errors == "strict":
            problem = request.marker_problems[0]
            raise InvalidRequest(problem.message, path=problem.path)
        current = marks_of(request.prompt)
        final = self.place_marks(request, current, rules, words)
        warnings = [*(problem.warning for problem in request.marker_problems), *final.warnings]
        if request.unseen:
            refused = request.unseen[0]
            raise InvalidRequest(
                refused.message,
                path=refused.path,
                code=refused.code,
                unsupported=refused.unsupported,
            )
        prompt = request.prompt
        if final.marks != current:
            prompt = with_marks(prompt, final.marks)
        if rules.caching.normalize.billing_nonce == "drop":
            shorter = without_nonce(prompt)
            if shorter is not prompt:
                prompt = shorter
                warnings.append(NONCE_DROPPED)
        return msgspec.structs.replace(
            request,
            prompt=ordered(prompt, rules),
            automatic=None,
            marker_problems=(),
            warnings=(*request.warnings, *dict.fromkeys(warnings)),
        )

    def plan(self, request: Request, rules: DialectRules) -> CachePlan:
        """The entries that a normalized request may read and must write."""
        planned = self.entries(request, rules)
        ttl, flight = rules.caching.ttl, rules.caching.single_flight
        return msgspec.structs.replace(
            planned,
            writable=tuple(
                msgspec.structs.replace(entry, upgrade=ttl.upgrade == "free", max_age_s=ttl.max_age)
                for entry in planned.writable
            ),
            single_flight=flight.bill if flight.enabled else "off",
            max_wait_s=flight.max_wait,
        )
