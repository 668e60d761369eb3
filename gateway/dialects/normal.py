"""Makes a parsed request ready for planning: marks checked or mended, one automatic mark placed,
the billing nonce dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from engine.prompt.types import Position
from gateway.dialects.marks import FinalMarks
from gateway.dialects.order import ordered
from gateway.dialects.places import marks_of, with_marks
from gateway.errors import InvalidRequest
from gateway.request import Request
from policies.rules import DialectRules

BILLING_NONCE: Final = re.compile(r"x-anthropic-billing-header:(?:\s*[A-Za-z_]+=[^;\r\n]*;)+\s*")
"""A system block that some clients put first, different in every request:
`x-anthropic-billing-header: cc_version=...; ...`."""

NONCE_DROPPED: Final = "billing-nonce-dropped"


def mended(
    request: Request,
    rules: DialectRules,
    place_marks: Callable[[Mapping[Position, float]], FinalMarks],
) -> Request:
    """The request with the marks that `place_marks` makes of its own."""
    if request.marker_problems and rules.marker_errors == "strict":
        problem = request.marker_problems[0]
        raise InvalidRequest(problem.message, path=problem.path)
    warnings = [problem.warning for problem in request.marker_problems]
    prompt = request.prompt
    current = marks_of(prompt)
    final = place_marks(current)
    warnings += final.warnings
    if final.marks != current:
        prompt = with_marks(prompt, final.marks)
    if request.unseen:
        raise InvalidRequest(request.unseen[0].message, path=request.unseen[0].path)
    if (
        rules.drop_billing_nonce
        and prompt.system
        and BILLING_NONCE.fullmatch(prompt.system[0].text)
    ):
        prompt = msgspec.structs.replace(prompt, system=prompt.system[1:])
        warnings.append(NONCE_DROPPED)
    prompt = ordered(prompt, rules)
    return msgspec.structs.replace(
        request,
        prompt=prompt,
        automatic=None,
        marker_problems=(),
        warnings=(*request.warnings, *dict.fromkeys(warnings)),
    )
