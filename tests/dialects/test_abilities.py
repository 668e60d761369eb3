"""What the models of a name do not do: levels of effort, and going on with an assistant's turn."""

from __future__ import annotations

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Wire
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.responses import responses_wire
from policies.schema import Policy
from tests.fakes import dialects
from tests.gateway.serving import make_policy

SHIPPED = make_policy()
FEW = make_policy("dialects: [{match: 'gpt-few', preset: openai, efforts: [low, medium]}]")
QUESTION = {"role": "user", "content": "q"}
PREFILLED = [QUESTION, {"role": "assistant", "content": "a"}]


def parsed(wire: Wire, **body: object) -> Request:
    return wire.parse(orjson.dumps(body), {}, request_id="r")


def refusal(wire: Wire, request: Request, policy: Policy) -> InvalidRequest:
    rules = policy.rules_for(request.model, wire.provider.preset)
    with pytest.raises(InvalidRequest) as caught:
        dialects.check_abilities(request, rules, wire)
    return caught.value


@pytest.mark.parametrize(
    ("wire", "body", "field"),
    [
        (CHAT_WIRE, {"messages": [QUESTION], "reasoning_effort": "high"}, "reasoning_effort"),
        (responses_wire(), {"input": "q", "reasoning": {"effort": "high"}}, "reasoning.effort"),
    ],
)
def test_an_effort_that_a_gpt_has_not(wire: Wire, body: dict[str, object], field: str) -> None:
    """The field of the API at hand is named, and the levels there are."""
    told = refusal(wire, parsed(wire, model="gpt-few", **body), FEW)
    assert (told.path, told.code) == (field, "unsupported_value")
    assert told.message.endswith("Supported values are: 'low', 'medium'.")


@pytest.mark.parametrize("effort", ["low", "medium"])
def test_an_effort_that_it_has(effort: str) -> None:
    """And a model of which nothing is known has every level."""
    for model in ("gpt-few", "gpt-5.6"):
        request = parsed(CHAT_WIRE, model=model, messages=[QUESTION], reasoning_effort=effort)
        dialects.check_abilities(request, FEW.rules_for(model, "openai"))


@pytest.mark.parametrize(
    ("model", "allowed"),
    [
        *(
            ("claude-opus-4-5", True),
            ("claude-haiku-4-5-20251001", True),
            ("claude-sonnet-4-20250514", True),
        ),
        *(("smollm2-135m-instruct", True), ("claude-3-5-sonnet-latest", True)),
        *(
            ("claude-opus-4-6", False),
            ("claude-opus-4-8", False),
            ("claude-sonnet-4-6", False),
            ("claude-opus-5", False),
        ),
        *(("claude-fable-5-1", False), ("claude-haiku-5-5", False), ("claude-sonnet-5", False)),
    ],
)
def test_going_on_with_an_assistants_turn(model: str, allowed: bool) -> None:
    """Claude since 4.6 refuses, in the API's words; earlier models and our own go on."""
    request = parsed(MESSAGES_WIRE, model=model, max_tokens=1, messages=PREFILLED)
    rules = SHIPPED.rules_for(model, "anthropic")
    if allowed:
        dialects.check_abilities(request, rules)
        return
    assert refusal(MESSAGES_WIRE, request, SHIPPED).message == (
        "This model does not support assistant message prefill. The conversation must end with a "
        "user message."
    )
