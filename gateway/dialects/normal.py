"""Makes a parsed request what its plan is made from: marks checked or repaired,
one automatic mark placed, nonce dropped.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway.dialects.marks import checked
from gateway.dialects.order import ordered
from gateway.dialects.places import marks, places, with_marks
from gateway.errors import InvalidRequest
from gateway.request import Request
from policies.rules import DialectRules

BILLING_NONCE: Final = re.compile(r"x-anthropic-billing-header:(?:\s*[A-Za-z_]+=[^;\r\n]*;)+\s*")
"""A system block some clients put first, different in every request: `x-anthropic-billing-header:
cc_version=...; ...`."""


NONCE_DROPPED: Final = "billing-nonce-dropped"


def normalize(request: Request, rules: DialectRules) -> Request:
    """The same request with final marks: afterwards `automatic` is None and `marker_problems` is
    empty.

    With `marker_errors: strict` raises `InvalidRequest` as the provider would; with `repair` mends
    and adds a warning. What the model cannot see is refused in either case.
    """
    if request.marker_problems and rules.caching.marker_errors == "strict":
        problem = request.marker_problems[0]
        raise InvalidRequest(problem.message, path=problem.path)
    warnings = [problem.warning for problem in request.marker_problems]
    prompt = request.prompt
    if rules.preset == "anthropic":
        final = checked(request, rules)
        warnings += final.warnings
        if final.marks != marks(prompt):
            prompt = with_marks(prompt, final.marks)
    elif request.automatic is not None:
        last = next((place.position for place in reversed(places(prompt)) if place.eligible), None)
        if last is not None:
            prompt = with_marks(prompt, {last: request.automatic} | marks(prompt))
    if request.unseen:
        raise InvalidRequest(request.unseen[0].message, path=request.unseen[0].path)
    if (
        rules.caching.normalize.billing_nonce == "drop"
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
