"""What a model, by the id it is asked for, does not do although its format can ask for it.

Knows no caching rules.

Error texts are those of the APIs: Anthropic's as recorded, OpenAI's as quoted in public issues.
"""

from __future__ import annotations

from gateway.errors import InvalidRequest
from gateway.request import Request
from policies.rules import DialectRules


def check_abilities(request: Request, rules: DialectRules) -> None:
    """Raises `InvalidRequest` where the provider's model of that name would refuse to answer."""
    effort = request.parameters.get("effort")
    if effort is not None and rules.efforts and effort not in rules.efforts:
        raise _no_such_effort(request, effort, rules)
    if request.prompt.continue_final and not rules.prefill:
        raise InvalidRequest(
            "This model does not support assistant message prefill. The conversation must end "
            "with a user message."
        )


def _no_such_effort(request: Request, effort: str, rules: DialectRules) -> InvalidRequest:
    if request.wire == "anthropic":
        levels = ", ".join(sorted(rules.efforts))
        return InvalidRequest(
            f"This model does not support effort level '{effort}'. Supported levels: {levels}."
        )
    levels = ", ".join(f"'{level}'" for level in rules.efforts)
    message = (
        f"Unsupported value: '{effort}' is not supported with the '{request.model[:64]}' "
        f"model. Supported values are: {levels}."
    )
    return InvalidRequest(
        message, path=request.wire_options.get("effort_field"), code="unsupported_value"
    )
