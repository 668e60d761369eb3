"""`prompt_cache_diagnostics`: the first difference between two requests,
in the provider's order.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import orjson
import pytest

from gateway.request import Request
from gateway.wire.base import Answer, StoredResponse
from gateway.wire.openai.responses import responses_wire
from policies.pricing import Usage

WIRE = responses_wire(new_id=lambda: "1")
TOOL: Any = {"type": "function", "name": "f"}
BASE: dict[str, Any] = {
    "model": "gpt-a",
    "input": [{"role": "user", "content": "a" * 100}],
    "tools": [TOOL],
}


def parse(**changes: Any) -> Request:
    return WIRE.parse(orjson.dumps(BASE | changes), {}, request_id="r")


def diagnosed(earlier: Request | None, read: int = 0, **changes: Any) -> dict[str, Any]:
    """What a prompt of 1,000 tokens of which `read` were read is told about `earlier`."""
    kept = (
        None
        if earlier is None
        else WIRE.memory.keep(earlier, Answer("x", "stop", None, Usage(1)), created_at_s=0.0)
    )

    def find(name: str) -> StoredResponse | None:
        assert name == "resp_1"
        return kept

    request = WIRE.memory.resume(
        parse(prompt_cache_options={"comparison_response_id": "resp_1"}, **changes), find
    )
    answer = Answer("y", "stop", None, Usage(1000 - read, read))
    return dict(
        orjson.loads(WIRE.encode_answer(request, answer, created_at_s=0.0))[
            "prompt_cache_diagnostics"
        ]
    )


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"model": "gpt-b", "tools": []}, "model_changed"),
    ({"prompt_cache_key": "k", "service_tier": "flex"}, "prompt_cache_key_changed"),
    ({"service_tier": "flex", "tools": []}, "service_tier_changed"),
    (
        {"tools": [TOOL, TOOL | {"name": "g"}], "text": {"format": {"type": "json_object"}}},
        "tools_changed",
    ),
    (
        {"text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}},
        "text_format_changed",
    ),
    ({"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}}, "reasoning_effort_changed"),
    ({"text": {"verbosity": "low"}, "input": "b"}, "verbosity_changed"),
    ({"input": "b"}, "input_changed"),
]


@pytest.mark.parametrize(("changes", "reason"), CHANGES, ids=[reason for _, reason in CHANGES])
def test_the_first_difference_is_reported(changes: dict[str, Any], reason: str) -> None:
    """In the order of the provider's list, and everything that was not read is missed."""
    told = diagnosed(parse(), **changes)
    assert told == {
        "type": "cache_miss",
        "reason": reason,
        "cache_missed_tokens": 1000,
        "comparison_reusable_tokens": 0,
    }


def test_more_of_the_same_is_no_difference() -> None:
    """Turns that were added, fresh ids and other marks: a hit where something was read, else
    nothing to tell."""
    more = [
        BASE["input"][0] | {"id": "msg_9"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "b"},
    ]
    assert diagnosed(parse(), read=600, input=more) == {"type": "cache_hit"}
    assert diagnosed(parse(), read=0, input=more) == {"type": "unavailable"}


def test_what_could_have_been_reused() -> None:
    """A change in the middle leaves what stands before it, estimated by length."""
    turns = [{"role": "user", "content": "a" * 100}, {"role": "user", "content": "b" * 100}]
    told = diagnosed(parse(input=turns), input=[turns[0], {"role": "user", "content": "c" * 100}])
    assert (told["reason"], told["comparison_reusable_tokens"], told["cache_missed_tokens"]) == (
        "input_changed",
        500,
        500,
    )


def test_a_response_that_is_not_there() -> None:
    """Unknown, forgotten, or another tenant's."""
    assert diagnosed(None) == {"type": "comparison_response_not_found"}


def test_it_is_told_only_when_asked_for() -> None:
    """No comparison, no field."""
    answer = Answer("y", "stop", None, Usage(1))
    assert "prompt_cache_diagnostics" not in orjson.loads(
        WIRE.encode_answer(parse(), answer, created_at_s=0.0)
    )


def test_unstored_responses_can_be_compared_with() -> None:
    """`store: false` keeps hashes and no text."""
    unstored = WIRE.memory.keep(
        parse(store=False), Answer("x", "stop", None, Usage(1)), created_at_s=0.0
    )
    assert (unstored.body, unstored.items, unstored.prompt) == (None, None, None)
    assert diagnosed(parse(store=False), read=500) == {"type": "cache_hit"}


@pytest.mark.parametrize(
    "changes",
    [
        {"input": [{"role": "user", "content": "a"}] * 5000},
        {"prompt_cache_key": "k" * 1_000_000, "store": False},
        {"service_tier": "k" * 1_000_000, "store": False},
        {"input": [{"role": "user", "content": "a"}] * 5000, "store": False},
        {"input": "a" * 1_000_000},
    ],
    ids=["items", "key", "tier", "hashes", "text"],
)
def test_what_is_kept_takes_what_it_says(changes: dict[str, Any]) -> None:
    """The bound of a tenant's memory holds, whatever the requests are made of."""
    tracemalloc.start()
    try:
        request = parse(**changes)
        answer = Answer("x", "stop", None, Usage(1))
        kept = WIRE.memory.keep(request, answer, created_at_s=0.0)
        del request, answer
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        assert taken < 1.5 * kept.nbytes + 10_000
    finally:
        tracemalloc.stop()
