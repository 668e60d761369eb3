"""OpenAI's recorded traffic and published schemas: real bodies parse, our answers have real fields,
real bills add up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import jsonschema
import msgspec
import orjson
import pytest

from engine.messages import Capabilities
from engine.types import TokenLogprob, TokenLogprobs
from gateway.errors import InvalidRequest, Overloaded
from gateway.models import ModelInfo
from gateway.request import Request
from gateway.wire.base import Answer, StreamEncoder, ToolCall, Wire
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.completions import COMPLETIONS_WIRE
from gateway.wire.openai.responses import responses_wire
from gateway.wire.openai.responses.compact import compact_wire
from policies.pricing import Prices, Usage, charge

FOLDER: Final = Path(__file__).parent / "openai"
CHAT, RESPONSES, LEGACY = CHAT_WIRE, responses_wire(new_id=lambda: "1"), COMPLETIONS_WIRE
WIRES: Final[dict[str, Wire]] = {"chat": CHAT, "responses": RESPONSES}
CREATED_S: Final = 1_800_000_000.0

USAGE: Final = Usage(input=4, cache_read=2455, cache_write=((43200.0, 30), (1800.0, 12)), output=23)
LOGPROBS: Final = (TokenLogprobs(TokenLogprob(1, -0.5, b"a"), (TokenLogprob(1, -0.5, b"a"),)),)
CALLS: Final = (ToolCall("f", '{"a":1}'), ToolCall("f", "{}"))
ANSWERS: Final = {
    "text": Answer("a", "stop", None, USAGE),
    "cut": Answer("a", "length", None, USAGE),
    "empty": Answer("", "stop", None, USAGE),
    "calls": Answer("a", "stop", None, USAGE, thinking="t", calls=CALLS, num_thinking=3),
    "probable": Answer("a", "stop", None, USAGE, logprobs=LOGPROBS),
}


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


SCHEMAS: Final = {name: schema for line in lines("openapi.jsonl") for name, schema in line.items()}
FIELDS: Final[dict[str, list[str]]] = json.loads((FOLDER / "fields.json").read_text())


def nullable(schema: Any) -> Any:
    """The schema with `nullable: true`, which is older than JSON Schema 2020-12, in its words."""
    if isinstance(schema, list):
        return [nullable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    told = {key: nullable(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [told, {"type": "null"}]} if schema.get("nullable") is True else told


COMPONENTS: Final = nullable(SCHEMAS)


def violations(name: str, value: Any) -> list[str]:
    """What the published schema has against a value; none is as it should be.

    A null where OpenAI's own recorded answers have one is none: there the schema is behind the API.
    """
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": COMPONENTS}}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(value)
    return [
        f"{error.json_path}: {error.message[:200]}" for error in errors if not known_null(error)
    ]


def known_null(error: jsonschema.ValidationError) -> bool:
    path = "".join(
        "[]" if isinstance(step, int) else f".{step}" for step in error.absolute_path
    ).lstrip(".")
    return error.instance is None and path.removeprefix("response.") in FIELDS["null"]


def event_schema(kind: str) -> str:
    """The name of the schema of one kind of event."""
    return next(
        name
        for name, s in SCHEMAS.items()
        if s.get("properties", {}).get("type", {}).get("enum") == [kind]
    )


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """`choices[].message.role` and so on: every field of a JSON value."""
    if isinstance(value, dict):
        for key, child in value.items():
            path = f"{prefix}.{key}" if prefix else key
            yield path
            yield from paths(child, path)
    elif isinstance(value, list):
        for child in value:
            yield from paths(child, f"{prefix}[]")


def a_request(api: str, **more: Any) -> Request:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
    if api == "chat":
        tools = [{"type": "function", "function": tool}]
        body = {
            "messages": [{"role": "user", "content": "q"}],
            "logprobs": True,
            "stream_options": {"include_usage": True},
        }
    else:
        tools = [{"type": "function", **tool}]
        body = {
            "input": "q",
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        }
    return WIRES[api].parse(
        orjson.dumps({"model": "m", "stream": True, "tools": tools} | body | more),
        {},
        request_id="req_1",
    )


def stream_of(encoder: StreamEncoder, answer: Answer) -> list[dict[str, Any]]:
    """The data of every event of a streamed answer."""
    pieces = [encoder.start(USAGE)]
    if answer.thinking:
        pieces.append(encoder.delta(answer.thinking, thinking=True))
    if answer.text:
        pieces.append(encoder.delta(answer.text, logprobs=answer.logprobs))
    for i, call in enumerate(answer.calls):
        pieces += [
            encoder.call(i, ToolCall(call.name, ""), begins=True),
            encoder.call(i, call, begins=False),
        ]
    pieces.append(encoder.finish(answer))
    return events_of(b"".join(pieces))


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The data of every event."""
    return [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: {")]


@pytest.mark.parametrize("recorded", lines("requests.jsonl"), ids=lambda recorded: recorded["api"])
def test_recorded_bodies(recorded: dict[str, Any]) -> None:
    """What real clients send is a request, unless it asks for what a text model cannot give: then
    that field is named."""
    wire, body = WIRES[recorded["api"]], orjson.dumps(recorded["request"])
    if recorded["refused"] is None:
        assert wire.parse(body, {}, request_id="r").prompt.messages
        return
    with pytest.raises(InvalidRequest) as told:
        wire.parse(body, {}, request_id="r")
    assert told.value.path == recorded["refused"]


@pytest.mark.parametrize("kind", ANSWERS)
def test_whole_answers_keep_the_published_schemas(kind: str) -> None:
    """Of both APIs, for text, limits, calls, reasoning and probabilities; and every field of the
    recorded ones is there."""
    chat = json.loads(CHAT.encode_answer(a_request("chat"), ANSWERS[kind], created_at_s=CREATED_S))
    assert violations("CreateChatCompletionResponse", chat) == []
    assert set(FIELDS["chat.completion"]) <= set(paths(chat))
    response = json.loads(
        RESPONSES.encode_answer(a_request("responses"), ANSWERS[kind], created_at_s=CREATED_S)
    )
    assert violations("Response", response) == []
    assert set(FIELDS["response"]) <= set(paths(response))


@pytest.mark.parametrize("kind", ANSWERS)
def test_streams_keep_the_published_schemas(kind: str) -> None:
    """Every chunk and every event."""
    chunks = stream_of(CHAT.stream(a_request("chat"), created_at_s=CREATED_S), ANSWERS[kind])
    for chunk in chunks:
        assert violations("CreateChatCompletionStreamResponse", chunk) == []
        assert set(FIELDS["chunk" if chunk["choices"] else "chunk.usage"]) <= set(paths(chunk)) | {
            "choices"
        }
    for event in stream_of(
        RESPONSES.stream(a_request("responses"), created_at_s=CREATED_S), ANSWERS[kind]
    ):
        assert violations(event_schema(event["type"]), event) == []
        if event.get("part", {}).get("type") != "reasoning_text":
            assert set(FIELDS.get(event["type"], ())) <= set(paths(event))


@pytest.mark.parametrize("kind", ["text", "cut", "probable"])
def test_legacy_completions_keep_the_published_schema(kind: str) -> None:
    """Whole and every chunk, of one prompt and of several."""
    for prompt in ("a", ["a", "b"]):
        body = {
            "model": "m",
            "prompt": prompt,
            "stream": True,
            "logprobs": 1,
            "stream_options": {"include_usage": True},
        }
        request = LEGACY.parse(orjson.dumps(body), {}, request_id="req_1")
        answer = replace(ANSWERS[kind], others=(ANSWERS[kind],) * (request.num_answers - 1))
        whole = json.loads(LEGACY.encode_answer(request, answer, created_at_s=CREATED_S))
        assert len(whole["choices"]) == request.num_answers
        assert violations("CreateCompletionResponse", whole) == []
        for chunk in stream_of(LEGACY.stream(request, created_at_s=CREATED_S), answer):
            told = {
                key: value for key, value in chunk.items() if key != "usage" or value is not None
            }
            assert violations("CreateCompletionResponse", unfinished(told)) == []


def unfinished(chunk: dict[str, Any]) -> dict[str, Any]:
    """The schema has no word for a choice that goes on, though the API's chunks say null."""
    choices = [
        choice | {"finish_reason": choice["finish_reason"] or "stop"} for choice in chunk["choices"]
    ]
    return chunk | {"choices": choices}


def test_custom_tools_keep_the_published_schemas() -> None:
    """Their items and their events, whose input is free text."""
    request = a_request("responses", tools=[{"type": "custom", "name": "f"}], input="q")
    answer = Answer("", "stop", None, USAGE, calls=(ToolCall("f", '{"input": "x"}'),))
    assert (
        violations(
            "Response", json.loads(RESPONSES.encode_answer(request, answer, created_at_s=CREATED_S))
        )
        == []
    )
    events = stream_of(RESPONSES.stream(request, created_at_s=CREATED_S), answer)
    for event in events:
        assert violations(event_schema(event["type"]), event) == []
    assert "response.custom_tool_call_input.done" in [event["type"] for event in events]


def test_responses_that_are_not_whole_keep_the_published_schemas() -> None:
    """Queued, in progress, cancelled, failed; the events of a failure; a conversation that was
    compacted."""
    request = a_request("responses", background=True)
    error = Overloaded("full")
    unanswered = [
        RESPONSES.memory.keep_unanswered(request, reason, created_at_s=CREATED_S).body or b""
        for reason in (None, error)
    ]
    states = [
        RESPONSES.memory.encode_unfinished(request, begun=begun, created_at_s=CREATED_S)
        for begun in (False, True)
    ]
    told = [json.loads(body) for body in (*states, *unanswered)]
    assert [body["status"] for body in told] == ["queued", "in_progress", "cancelled", "failed"]
    for body in told:
        assert violations("Response", body) == []
    failed, raised = events_of(RESPONSES.stream(request, created_at_s=CREATED_S).error(error))
    assert violations("ResponseFailedEvent", failed) == []
    assert violations("ResponseErrorEvent", raised | raised["error"] | {"type": "error"}) == []
    compact = compact_wire(new_id=lambda: "1")
    asked = compact.parse(orjson.dumps({"model": "m", "input": "q"}), {}, request_id="req_1")
    compacted = json.loads(compact.encode_answer(asked, ANSWERS["text"], created_at_s=CREATED_S))
    assert violations("CompactResource", compacted) == []


def test_the_rest_keeps_the_published_schemas() -> None:
    """Model lists, counts, errors and input items."""
    able = Capabilities(
        tools_first=True, exact=True, runner="generic", dtype="bfloat16", device="cpu"
    )
    model = ModelInfo("smol", 8192, "fp", able, CREATED_S)
    assert (
        violations("ListModelsResponse", json.loads(CHAT.encode_models({"smol": model}, {}))) == []
    )
    assert violations("Model", json.loads(CHAT.encode_model(model, "smol"))) == []
    assert violations("TokenCountsResource", json.loads(RESPONSES.encode_count(7))) == []
    for wire in WIRES.values():
        assert (
            violations(
                "ErrorResponse",
                json.loads(wire.encode_error(Overloaded("full"), request_id="r").body),
            )
            == []
        )
    request = a_request(
        "responses", input=[{"role": "user", "content": "q"}, {"role": "developer", "content": "d"}]
    )
    kept = RESPONSES.memory.keep(request, ANSWERS["text"], created_at_s=CREATED_S)
    assert violations("ResponseItemList", json.loads(RESPONSES.memory.encode_items(kept, {}))) == []


def test_the_schemas_can_refuse() -> None:
    """The check is one: a wrong type and a missing field are found."""
    body = json.loads(
        CHAT.encode_answer(a_request("chat"), ANSWERS["text"], created_at_s=CREATED_S)
    )
    assert violations("CreateChatCompletionResponse", body | {"created": "now"})
    del body["choices"]
    assert violations("CreateChatCompletionResponse", body)


@pytest.mark.parametrize("recorded", lines("usage.jsonl"), ids=lambda recorded: recorded["model"])
def test_recorded_usage_is_what_we_would_tell(recorded: dict[str, Any]) -> None:
    """From the recorded counts to our `Usage` and back: the same numbers, in every field that was
    recorded as a number."""
    told, chat = recorded["usage"], recorded["api"] == "chat"
    details = told["prompt_tokens_details" if chat else "input_tokens_details"]
    read, written = details.get("cached_tokens") or 0, details.get("cache_write_tokens") or 0
    if read + written > told["prompt_tokens" if chat else "input_tokens"]:
        pytest.skip("counts what it read as written too")
    writes = ((1800.0, written),) if written else ()
    prompt, output = (
        told["prompt_tokens" if chat else "input_tokens"],
        told["completion_tokens" if chat else "output_tokens"],
    )
    reasoning = told.get("completion_tokens_details" if chat else "output_tokens_details") or {}
    answer = Answer(
        "a",
        "stop",
        None,
        Usage(prompt - read - written, read, writes, output),
        num_thinking=reasoning.get("reasoning_tokens", 0),
    )
    request = msgspec.structs.replace(
        a_request(recorded["api"]),
        usage_fields=("prompt_cache_hit_tokens", "prompt_cache_miss_tokens"),
    )
    ours = json.loads(WIRES[recorded["api"]].encode_answer(request, answer, created_at_s=0.0))[
        "usage"
    ]
    same = set(paths(told)) & set(paths(ours))
    assert len(same) >= 5
    for path in same:
        value, mine = told, ours
        for step in path.split("."):
            value, mine = value[step], mine[step]
        assert value == mine or isinstance(value, dict) or value is None, path


CHARGES: Final = [
    pytest.param("5", Usage(8, 0, ((1800.0, 4012),)), "0.025115", id="gpt-5.6-sol-write"),
    pytest.param("5", Usage(8, 4012), "0.002046", id="gpt-5.6-sol-read"),
    pytest.param("3", Usage(3, 0, ((1800.0, 2569),)), "0.00964275", id="sonnet-4.6-write"),
    pytest.param("3", Usage(1, 2569, ((1800.0, 79),)), "0.00106995", id="sonnet-4.6-extended"),
    pytest.param("3", Usage(3, 2240, ((1800.0, 329),)), "0.00191475", id="sonnet-4.6-partial"),
]


@pytest.mark.parametrize(("usd_per_mtok", "usage", "expected_usd"), CHARGES)
def test_recorded_charges(usd_per_mtok: str, usage: Usage, expected_usd: str) -> None:
    """What a recorded request cost upstream, to the last digit, from its counts and list price."""
    prices = Prices(
        "t", Decimal(usd_per_mtok), Decimal(0), Decimal("0.1"), {1800.0: Decimal("1.25")}
    )
    assert charge(usage, prices).total == Decimal(expected_usd)
