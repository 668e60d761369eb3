"""Requests compared with earlier ones: what changed, how much of the prompt follows,
and that memory is bounded.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest

from gateway.request import Request
from gateway.state.diagnoses import Diagnoses
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.anthropic.settings import AnthropicOptions

TOOL = {"name": "a", "input_schema": {"type": "object"}}
CC = {"type": "ephemeral"}


def text(value: str, mark: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": value, "cache_control": mark}


def a_request(
    name: str,
    previous: str | None,
    *,
    tenant: str = "t",
    at_s: float = 0.0,
    betas: str = "",
    **changes: Any,
) -> Request:
    turns = [
        {"role": "user", "content": [text("q1"), text("q2")]},
        {"role": "assistant", "content": "a"},
    ]
    fields: dict[str, Any] = {
        "model": "m",
        "max_tokens": 1,
        "tools": [TOOL],
        "system": [text("s")],
        "messages": turns,
    }
    body = fields | {"diagnostics": {"previous_message_id": previous}} | changes
    parsed = MESSAGES_WIRE.parse(
        orjson.dumps(body), {"anthropic-beta": betas}, request_id=f"req_{name}"
    )
    return msgspec.structs.replace(parsed, tenant=tenant, started_at_s=at_s)


def reason(diagnoses: Diagnoses, request: Request) -> Any:
    found = diagnoses.diagnose(request).options_of(AnthropicOptions).diagnosis
    return None if found is None else found["cache_miss_reason"]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (None, {}),
        (None, {"system": [text("s", CC)]}),
        (None, {"messages": [{"role": "user", "content": [text("q1"), text("q2")]},
                             {"role": "assistant", "content": "a"},
                             {"role": "user", "content": "more"}]}),
        ("model_changed", {"model": "n"}),
        ("model_changed", {"speed": "fast"}),
        ("system_changed", {"system": [text("s"), text("more")]}),
        ("system_changed", {"system": "t", "tools": []}),
        ("tools_changed", {"tools": [TOOL, TOOL | {"name": "b"}]}),
        ("tools_changed", {"tools": []}),
        ("messages_changed", {"messages": [{"role": "user", "content": [text("q1")]}]}),
        ("messages_changed", {"messages": [{"role": "user", "content": [text("q2"), text("q1")]}]}),
        ("messages_changed", {"messages": [
            {"role": "assistant", "content": [text("q1"), text("q2")]},
            {"role": "user", "content": "x"}]}),
        ("unavailable", {"tool_choice": {"type": "none"}}),
        ("unavailable", {"thinking": {"type": "adaptive"}}),
        ("unavailable", {"output_config": {"effort": "low"}}),
        ("unavailable", {"context_management": {"edits": [{"type": "x"}]}}),
        ("unavailable", {"betas": "made-up"}),
    ],
)  # fmt: skip
def test_what_changed(kind: str | None, changes: dict[str, Any]) -> None:
    """The earliest level in the API's order; marks and appended turns are no change."""
    diagnoses = Diagnoses()
    assert reason(diagnoses, a_request("1", None)) is None
    found = reason(diagnoses, a_request("2", "msg_1", **changes))
    assert (None if found is None else found["type"]) == kind
    assert ("cache_missed_input_tokens" in (found or {})) is (
        kind is not None and kind.endswith("_changed")
    )


def test_tokens_after_the_difference() -> None:
    """An estimate from bytes: a change further ahead costs more."""
    diagnoses = Diagnoses()
    words = "word " * 400
    turns = [
        {"role": "user", "content": words},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": words},
    ]
    diagnoses.diagnose(a_request("1", None, messages=turns))
    late = [*turns[:2], {"role": "user", "content": words + "!"}]
    early = [{"role": "user", "content": words + "!"}, *turns[1:]]
    costs = [
        reason(diagnoses, a_request("2", "msg_1", messages=m))["cache_missed_input_tokens"]
        for m in (late, early)
    ]
    assert 400 < costs[0] < 600
    assert 900 < costs[1] < 1200
    assert (
        reason(diagnoses, a_request("3", "msg_1", messages=turns, tools=[]))[
            "cache_missed_input_tokens"
        ]
        > costs[0]
    )


def test_who_may_ask_and_for_how_long() -> None:
    """Another tenant's message is not found, nor one that is an hour old, nor one that was never
    answered."""
    diagnoses = Diagnoses()
    diagnoses.diagnose(a_request("1", None))
    unknown = {"type": "previous_message_not_found"}
    assert reason(diagnoses, a_request("2", "msg_1", tenant="u")) == unknown
    assert reason(diagnoses, a_request("3", "msg_9")) == unknown
    assert reason(diagnoses, a_request("4", "msg_1", at_s=3599.0)) is None
    assert reason(diagnoses, a_request("5", "msg_1", at_s=3600.0)) == unknown


def test_memory_is_bounded() -> None:
    """The oldest requests go first, by number and by size; one that comes again takes its own
    place."""
    few, small = Diagnoses(max_requests=3), Diagnoses(max_hashes=14)
    for diagnoses in (few, small):
        for name in "12345":
            diagnoses.diagnose(a_request(name, None))
        assert len(diagnoses) == (3 if diagnoses is few else 2)
        assert diagnoses.num_hashes == len(diagnoses) * 5
        diagnoses.diagnose(a_request("5", None))
        assert diagnoses.num_hashes == len(diagnoses) * 5
        assert reason(diagnoses, a_request("6", "msg_1")) == {"type": "previous_message_not_found"}
        assert reason(diagnoses, a_request("7", "msg_5")) is None


def test_a_request_that_does_not_ask_is_left_alone() -> None:
    """Nothing is remembered, nothing is answered."""
    diagnoses = Diagnoses()
    request = a_request("1", None, diagnostics=None)
    assert diagnoses.diagnose(request) is request
    assert len(diagnoses) == 0
