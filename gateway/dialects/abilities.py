"""Abilities that the provider's model of a name lacks although its format can ask for them.

Knows no caching rules.
"""

from __future__ import annotations

from gateway.dialects.words import ErrorWords
from gateway.errors import InvalidRequest
from gateway.request import Request
from policies.rules import DialectRules


def check_abilities(request: Request, rules: DialectRules, words: ErrorWords) -> None:
    """Raises `InvalidRequest` where the provider's model of that name would refuse to answer."""
    effort = request.parameters.get("effort")
    if effort is not None and rules.efforts and effort not in rules.efforts:
        raise words.unsupported_effort(request.model, effort, rules.efforts)
    if request.prompt.continue_final and not rules.prefill:
        raise InvalidRequest(
            "This model does not support assistant message prefill. The conversation must end "
            "with a user message."
        )
