"""Whatever a body holds, parsing gives a request or a 400: nothing else,
and nothing that fails later.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any, Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import Submit, decode_to_engine, encode_frame
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Answer, ToolCall, Wire
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.completions import COMPLETIONS_WIRE
from gateway.wire.openai.responses import responses_wire
from gateway.wire.openai.responses.compact import compact_wire
from policies.pricing import Usage
from tests.fakes import dialects, openai_bodies
from tests.fakes.mutants import CALLING_TURN, CC, paths
from tests.fakes.rules import ANTHROPIC, OPENAI, rules

ANTHROPIC_BODY: Final[dict[str, Any]] = {
    "model": "claude-test",
    "max_tokens": 4096,
    "stream": False,
    "cache_control": None,
    "temperature": 0.5,
    "stop_sequences": ["x"],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
    "diagnostics": {"previous_message_id": None},
    "context_management": {"edits": []},
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "system": [{"type": "text", "text": "s", "cache_control": CC}],
    "tools": [
        {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": CC}
    ],
    "messages": [
        {"role": "user", "content": "q"},
        CALLING_TURN,
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "r"}],
                    "is_error": False,
                },
                {"type": "text", "text": "go", "cache_control": CC},
            ],
        },
        {"role": "system", "content": "late"},
    ],
}
SEEDS: Final[list[tuple[Wire, dict[str, Any]]]] = [
    (MESSAGES_WIRE, ANTHROPIC_BODY),
    (CHAT_WIRE, openai_bodies.CHAT),
    (responses_wire(), openai_bodies.RESPONSES),
    (COMPLETIONS_WIRE, openai_bodies.COMPLETIONS),
]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(
        [
            "ephemeral",
            "text",
            "image",
            "tool_use",
            "tool_result",
            "user",
            "assistant",
            "system",
            "1h",
            "any",
            "none",
        ]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "ttl", "role", "x"]), inner)
    ),
    max_leaves=6,
)


def mutate(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """One to three places of the body replaced, removed, or doubled."""
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        known = paths(body)
        if not known:
            break
        *parents, key = draw(st.sampled_from(known))
        holder: Any = body
        for step in parents:
            holder = holder[step]
        match draw(st.sampled_from(["replace", "remove", "double"])):
            case "replace":
                holder[key] = draw(VALUES)
            case "remove":
                del holder[key]
            case "double" if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
    return body


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Wire, bytes]:
    wire, body = draw(st.sampled_from(SEEDS))
    return wire, orjson.dumps(mutate(draw, body))


def answered(wire: Wire, request: Request) -> None:
    """An answer to the request can be written, whole and as a stream."""
    call = ToolCall("f", "{}")
    answer = Answer("a", "stop", None, Usage(1), thinking="t", calls=(call,))
    orjson.loads(wire.encode_answer(request, answer, created_at_s=0.0))
    stream = wire.stream(request, created_at_s=0.0)
    pieces = [
        stream.start(Usage(1)),
        stream.delta("t", thinking=True),
        stream.delta("a"),
        stream.call(0, call, begins=True),
    ]
    for line in b"".join([*pieces, stream.finish(answer)]).split(b"\n"):
        if line.startswith(b"data: {"):
            orjson.loads(line[6:])


@pytest.mark.parametrize(("wire", "body"), SEEDS)
def test_the_seeds_are_valid(wire: Wire, body: dict[str, Any]) -> None:
    """What is mutated below is accepted as it is: else the fuzzing would only see refusals."""
    wire.parse(orjson.dumps(body), {}, request_id="r")


@settings(max_examples=300)
@given(mutated())
def test_a_mutated_body_parses_or_is_a_400(case: tuple[Wire, bytes]) -> None:
    """And what parses can be normalized, planned, and sent to the engine unchanged."""
    wire, body = case
    for parse in (wire.parse, wire.parse_count):
        try:
            request = parse(body, {}, request_id="r")
        except InvalidRequest as error:
            orjson.loads(wire.encode_error(error, request_id="r").body)
            continue
        for base in (ANTHROPIC, OPENAI):
            with suppress(InvalidRequest):
                dialects.normalize(request, base)
            try:
                normal = dialects.normalize(request, rules(base, marker_errors="repair"))
            except InvalidRequest:
                assert request.unseen
                continue
            frame = Submit(
                "r", "t", normal.prompt, dialects.plan(normal, base), normal.sampling, 0.0
            )
            assert decode_to_engine(encode_frame(frame)[4:]) == frame
            answered(wire, normal)


@pytest.mark.parametrize("depth", [300, 1000])
@pytest.mark.parametrize(("wire", "body"), [*SEEDS, (compact_wire(), openai_bodies.RESPONSES)])
def test_nesting_anywhere_parses_or_is_a_400(wire: Wire, body: dict[str, Any], depth: int) -> None:
    """Every field in turn is JSON as deep as the decoder takes, which encoders and recursive code
    do not."""
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    for *parents, key in paths(body):
        changed = copy.deepcopy(body)
        holder: Any = changed
        for step in parents:
            holder = holder[step]
        holder[key] = "NESTED"
        with suppress(InvalidRequest):
            wire.parse(orjson.dumps(changed).replace(b'"NESTED"', nested), {}, request_id="r")


@settings(max_examples=200)
@given(st.binary(max_size=60), st.sampled_from([MESSAGES_WIRE, CHAT_WIRE]))
def test_any_bytes_are_a_400(body: bytes, wire: Wire) -> None:
    """Random bytes are never a request."""
    with pytest.raises(InvalidRequest):
        wire.parse(body, {}, request_id="r")
