"""Our bytes through the official SDKs: whole answers, streams, model lists, counts. No server."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import anthropic
import httpx2
import msgspec
import openai
import orjson
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from pydantic import ValidationError

from engine.messages import Capabilities
from engine.types import FinishReason, TokenLogprob, TokenLogprobs
from gateway.errors import Overloaded
from gateway.models import ModelInfo
from gateway.request import Request
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Answer, ToolCall, Wire
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.responses import responses_wire
from gateway.wire.sse import SSE_HEADERS
from policies.pricing import Usage

WIRES: Final[dict[str, Wire]] = {"anthropic": MESSAGES_WIRE, "openai": CHAT_WIRE}
USAGE: Final = Usage(input=4, cache_read=2455, cache_write=((3600.0, 30), (300.0, 12)), output=23)
MODEL: Final = ModelInfo(
    "smol", 8192, "fp", Capabilities(True, True, "generic", "bfloat16", "cpu"), 1_800_000_000.7
)
CREATED_S: Final = 1_800_000_000.0


def a_request(wire: Any, **changes: Any) -> Request:
    body = {
        "model": f"{wire}-test",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    } | changes
    return WIRES[wire].parse(orjson.dumps(body), {}, request_id="req_42")


def answer(
    text: str = "Hello 안녕 🙂", reason: FinishReason = "stop", stop: str | None = None
) -> Answer:
    return Answer(text=text, reason=reason, stop=stop, usage=USAGE)


def streamed(request: Request, *texts: str, end: Answer | Exception) -> bytes:
    """A stream as the handler writes it, with a keepalive in every gap."""
    encoder = WIRES[request.wire].stream(request, created_at_s=CREATED_S)
    pieces = [
        encoder.keepalive(),
        encoder.start(Usage(USAGE.input, USAGE.cache_read, USAGE.cache_write)),
    ]
    for text in texts:
        pieces += [encoder.keepalive(), encoder.delta(text)]
    pieces.append(
        encoder.error(Overloaded("full")) if isinstance(end, Exception) else encoder.finish(end)
    )
    return b"".join(pieces)


def claude(body: bytes, *, stream: bool = False) -> anthropic.Anthropic:
    """The official client, reading `body` whatever it asks."""
    headers = dict(SSE_HEADERS) if stream else {"Content-Type": "application/json"}
    http = httpx2.Client(
        transport=httpx2.MockTransport(
            lambda _: httpx2.Response(200, content=body, headers=headers)
        )
    )
    return anthropic.Anthropic(api_key="k", http_client=http, max_retries=0)


def gpt(body: bytes, *, stream: bool = False) -> openai.OpenAI:
    headers = dict(SSE_HEADERS) if stream else {"Content-Type": "application/json"}
    http = httpx2.Client(
        transport=httpx2.MockTransport(
            lambda _: httpx2.Response(200, content=body, headers=headers)
        )
    )
    return openai.OpenAI(api_key="k", http_client=http, max_retries=0)


def events(stream: bytes) -> list[tuple[str | None, Any]]:
    """(event name, data) of every event; comments left out."""
    found = []
    for block in stream.decode().strip("\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            data = fields["data"]
            found.append((fields.get("event"), data if data == "[DONE]" else orjson.loads(data)))
    return found


# Anthropic ----------------------------------------------------------------------------------------


def test_anthropic_message_is_valid_for_the_sdk_model() -> None:
    """Strict validation against the SDK's own type, and the arithmetic of usage."""
    body = WIRES["anthropic"].encode_answer(
        a_request("anthropic"), answer(), created_at_s=CREATED_S
    )
    message = anthropic.types.Message.model_validate_json(body, strict=True)
    assert (message.id, message.model, message.stop_reason, message.stop_sequence) == (
        "msg_42",
        "anthropic-test",
        "end_turn",
        None,
    )
    assert [block.text for block in message.content if block.type == "text"] == ["Hello 안녕 🙂"]
    usage = message.usage
    assert (
        usage.input_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
    ) == (4, 2455, 42)
    assert usage.cache_creation is not None
    assert usage.cache_creation.ephemeral_5m_input_tokens == 12
    assert usage.cache_creation.ephemeral_1h_input_tokens == 30
    assert (usage.output_tokens, usage.service_tier) == (23, "standard")


def test_anthropic_zero_is_zero() -> None:
    """A cold unmarked request reports zeros, not absences."""
    body = orjson.loads(
        WIRES["anthropic"].encode_answer(
            a_request("anthropic"), Answer("x", "stop", None, Usage(5)), created_at_s=0
        )
    )
    assert body["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
        "speed": "standard",
    }


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop_sequence", "END", ("stop_sequence", "END")),
        ("length", None, ("max_tokens", None)),
        ("context", None, ("model_context_window_exceeded", None)),
    ],
)
def test_anthropic_stop_reasons(
    reason: FinishReason, stop: str | None, expected: tuple[str, str | None]
) -> None:
    """Why an answer ended, whole and streamed alike."""
    request, end = a_request("anthropic"), answer(reason=reason, stop=stop)
    body = orjson.loads(WIRES["anthropic"].encode_answer(request, end, created_at_s=0))
    assert (body["stop_reason"], body["stop_sequence"]) == expected
    delta = events(streamed(request, "x", end=end))[-2][1]["delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == expected


def test_anthropic_prewarm_answer() -> None:
    """No content, stopped at its zero tokens."""
    request = a_request("anthropic", max_tokens=0)
    body = WIRES["anthropic"].encode_answer(
        request, Answer("", "stop", None, Usage(5)), created_at_s=0
    )
    message = anthropic.types.Message.model_validate_json(body, strict=True)
    assert (message.content, message.stop_reason, message.usage.output_tokens) == (
        [],
        "max_tokens",
        0,
    )


def test_anthropic_event_order() -> None:
    """The provider's order; every event is named like its type; empty texts leave no trace."""
    names = [
        name for name, _ in events(streamed(a_request("anthropic"), "", "a", "", "b", end=answer()))
    ]
    assert [name for name in names if name != "ping"] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(
        name == data["type"]
        for name, data in events(streamed(a_request("anthropic"), "a", end=answer()))
    )


def test_anthropic_empty_stream() -> None:
    """An answer without text has no block."""
    names = [name for name, _ in events(streamed(a_request("anthropic"), end=answer(text="")))]
    assert names == ["message_start", "message_delta", "message_stop"]


def test_anthropic_stream_through_the_sdk() -> None:
    """The accumulating helper sees the text, the TTL breakdown of `message_start` and the final
    counts."""
    body = streamed(a_request("anthropic"), "Hello ", "안녕 ", "🙂", end=answer())
    client = claude(body, stream=True)
    with (
        client,
        client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]
        ) as stream,
    ):
        assert "".join(stream.text_stream) == "Hello 안녕 🙂"
        message = stream.get_final_message()
    assert (message.usage.output_tokens, message.usage.cache_read_input_tokens) == (23, 2455)
    assert message.usage.cache_creation is not None
    assert message.usage.cache_creation.ephemeral_1h_input_tokens == 30
    assert message.stop_reason == "end_turn"


def test_anthropic_error_in_a_stream_raises() -> None:
    """An error event ends the stream with an exception in the client."""
    body = streamed(a_request("anthropic"), "a", end=Overloaded("full"))
    client = claude(body, stream=True)
    with client, pytest.raises(anthropic.APIStatusError, match="full"):
        for _ in client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}], stream=True
        ):
            pass


def test_anthropic_counts_and_models_through_the_sdk() -> None:
    """count_tokens and the model list."""
    wire = WIRES["anthropic"]
    with claude(wire.encode_count(17)) as client:
        counted = client.messages.count_tokens(
            model="m", messages=[{"role": "user", "content": "x"}]
        )
        assert counted.input_tokens == 17
    with claude(wire.encode_models({"smol": MODEL, "claude-mine": MODEL}, {})) as client:
        page = client.models.list()
    assert [model.id for model in page.data] == ["smol", "claude-mine"]
    assert (page.has_more, page.first_id, page.last_id) == (False, "smol", "claude-mine")
    info = anthropic.types.ModelInfo.model_validate_json(
        wire.encode_model(MODEL, "claude-x"), strict=True
    )
    assert (info.id, info.display_name, info.max_input_tokens) == ("claude-x", "smol", 8192)
    assert int(info.created_at.timestamp()) == 1_800_000_000


def test_control_the_checks_above_can_fail() -> None:
    """Without a required count the strict model refuses, and without the final usage the helper
    reports the first one."""
    body = orjson.loads(
        WIRES["anthropic"].encode_answer(a_request("anthropic"), answer(), created_at_s=0)
    )
    del body["usage"]["input_tokens"]
    with pytest.raises(ValidationError):
        anthropic.types.Message.model_validate(body, strict=True)
    stream = streamed(a_request("anthropic"), "a", end=answer()).replace(
        b'"output_tokens":23', b'"output_tokens":0'
    )
    client = claude(stream, stream=True)
    with (
        client,
        client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]
        ) as events_,
    ):
        assert events_.get_final_message().usage.output_tokens == 0


# OpenAI -------------------------------------------------------------------------------------------


def test_openai_completion_is_valid_for_the_sdk_model() -> None:
    """Strict validation against the SDK's own type; prompt_tokens includes what was read and
    written."""
    body = WIRES["openai"].encode_answer(a_request("openai"), answer(), created_at_s=CREATED_S)
    completion = openai.types.chat.ChatCompletion.model_validate_json(body, strict=True)
    assert (completion.id, completion.model, completion.created) == (
        "chatcmpl-42",
        "openai-test",
        1_800_000_000,
    )
    assert completion.choices[0].message.content == "Hello 안녕 🙂"
    usage = completion.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2501, 23, 2524)
    assert (
        usage.prompt_tokens_details.cached_tokens,
        usage.prompt_tokens_details.cache_write_tokens,
    ) == (2455, 42)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "stop"), ("stop_sequence", "stop"), ("length", "length"), ("context", "length")],
)
def test_openai_finish_reasons(reason: FinishReason, expected: str) -> None:
    """Why an answer ended, whole and streamed alike."""
    request, end = a_request("openai"), answer(reason=reason)
    body = orjson.loads(WIRES["openai"].encode_answer(request, end, created_at_s=0))
    assert body["choices"][0]["finish_reason"] == expected
    assert events(streamed(request, "x", end=end))[-2][1]["choices"][0]["finish_reason"] == expected


@pytest.mark.parametrize("include_usage", [True, False])
def test_openai_chunks(include_usage: bool) -> None:
    """Role first, finish reason last; usage is null in every chunk and then whole, if asked for,
    else nowhere."""
    request = a_request("openai", stream=True, stream_options={"include_usage": include_usage})
    *chunks, (_, done) = events(streamed(request, "a", "", "b", end=answer()))
    assert done == "[DONE]"
    usages = [chunk.pop("usage", "absent") for _, chunk in chunks]
    if include_usage:
        last = chunks.pop()[1]
        assert usages[:-1] == [None] * 4
        assert (last["choices"], usages[-1]["prompt_tokens"]) == ([], 2501)
    else:
        assert usages == ["absent"] * 4
    deltas = [chunk["choices"][0]["delta"] for _, chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for _, chunk in chunks] == [
        None,
        None,
        None,
        "stop",
    ]
    for _, chunk in chunks:
        openai.types.chat.ChatCompletionChunk.model_validate(chunk, strict=True)


def test_openai_stream_through_the_sdk() -> None:
    """The official client reads text and final usage."""
    request = a_request("openai", stream=True, stream_options={"include_usage": True})
    body = streamed(request, "Hello ", "안녕 ", "🙂", end=answer())
    text, usage = "", None
    with gpt(body, stream=True) as client:
        for chunk in client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        ):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
    assert text == "Hello 안녕 🙂"
    assert usage is not None
    assert usage.total_tokens == 2524


def test_openai_error_in_a_stream_raises() -> None:
    """The nested form makes the client raise, and the stream still ends as streams do."""
    body = streamed(a_request("openai", stream=True), "a", end=Overloaded("full"))
    assert body.endswith(b"data: [DONE]\n\n")
    with gpt(body, stream=True) as client, pytest.raises(openai.APIError, match="full") as caught:
        for _ in client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        ):
            pass
    assert caught.value.code == "server_is_overloaded"


def test_openai_models_through_the_sdk() -> None:
    """The model list and one model under the id that was asked for."""
    wire = WIRES["openai"]
    with gpt(wire.encode_models({"smol": MODEL, "gpt-mine": MODEL}, {})) as client:
        assert [model.id for model in client.models.list()] == ["smol", "gpt-mine"]
    one = openai.types.Model.model_validate_json(wire.encode_model(MODEL, "gpt-x"), strict=True)
    assert (one.id, one.created) == ("gpt-x", 1_800_000_000)


def test_streams_hold_no_raw_line_breaks() -> None:
    """Line breaks in a text are escaped: an event is never cut."""
    for wire in WIRES:
        stream = streamed(a_request(wire), "a\n\nb\r\nc", end=answer())
        assert b'"a\\n\\nb\\r\\nc"' in stream
        assert b"\r" not in stream


# Calls, several answers, probabilities ------------------------------------------------------------

CALLS: Final = (ToolCall("f", '{"a": "é"}'), ToolCall("g", "{}"))
LOGPROBS: Final = (
    TokenLogprobs(TokenLogprob(5, -0.5, "안".encode()[:2]), (TokenLogprob(6, -math.inf, b"x"),)),
    TokenLogprobs(TokenLogprob(7, -0.25, b"y")),
)


def test_openai_tool_calls_are_valid_for_the_sdk_model() -> None:
    """Ids differ, arguments stay text as the model wrote it, no text is null, and the reason is the
    calls."""
    end = replace(answer(text=""), calls=CALLS, thinking="hm", num_thinking=4)
    body = WIRES["openai"].encode_answer(a_request("openai"), end, created_at_s=0)
    completion = openai.types.chat.ChatCompletion.model_validate_json(body, strict=True)
    (choice,) = completion.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    assert [
        (call.type, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls
    ] == [
        ("function", "f", '{"a": "é"}'),
        ("function", "g", "{}"),
    ]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert orjson.loads(body)["choices"][0]["message"]["reasoning_content"] == "hm"
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == 4


@pytest.mark.parametrize("lifetime_s", [1800.0, 7200.0])
def test_responses_name_writes_by_class_not_by_lifetime(lifetime_s: float) -> None:
    """A policy may let the class 30m live longer: it is still the one the client asked for and is
    billed for."""
    wire = responses_wire()
    request = wire.parse(orjson.dumps({"model": "gpt-5.6", "input": "x"}), {}, request_id="r")
    request = msgspec.structs.replace(request, ttl_classes={"30m": lifetime_s, "12h": 43200.0})
    counts = Usage(input=1, cache_write=((43200.0, 30), (lifetime_s, 12)))
    body = orjson.loads(
        wire.encode_answer(request, replace(answer(), usage=counts), created_at_s=0)
    )
    assert body["usage"]["input_tokens_details"]["cache_write_tokens_details"] == {
        "ttl_30m_tokens": 12,
        "ttl_12h_tokens": 30,
    }


def test_openai_call_ids_differ_between_requests_of_one_id() -> None:
    """A client that names all its requests alike, however long the name, gets calls it can tell
    apart, in short ids."""
    name, ids = "x" * 128, set[str]()
    for at_s in (1.0, 2.0):
        request = msgspec.structs.replace(a_request("openai", n=2), id=name, started_at_s=at_s)
        end = replace(answer(), calls=CALLS, others=(replace(answer(), calls=CALLS),))
        for choice in orjson.loads(WIRES["openai"].encode_answer(request, end, created_at_s=0))[
            "choices"
        ]:
            ids |= {call["id"] for call in choice["message"]["tool_calls"]}
    assert len(ids) == 8
    assert max(map(len, ids)) <= 40


def test_openai_calls_cut_off_by_a_limit_are_not_the_reason() -> None:
    """An answer that ran into its limit says so, calls or not."""
    end = replace(answer(reason="length"), calls=CALLS)
    body = orjson.loads(WIRES["openai"].encode_answer(a_request("openai"), end, created_at_s=0))
    assert body["choices"][0]["finish_reason"] == "length"


def test_openai_streams_calls_and_reasoning() -> None:
    """Id and name come once, then pieces told apart by index; put together they are the answer that
    is not streamed."""
    request, end = (
        a_request("openai", stream=True),
        replace(answer(text="a"), calls=CALLS, thinking="hm"),
    )
    encoder = WIRES["openai"].stream(request, created_at_s=CREATED_S)
    pieces = [encoder.start(USAGE), encoder.delta("hm", thinking=True), encoder.delta("a")]
    for i, call in enumerate(CALLS):
        pieces.append(encoder.call(i, ToolCall(call.name, call.arguments[:1]), begins=True))
        pieces.append(encoder.call(i, ToolCall("", call.arguments[1:]), begins=False))
    body = b"".join([*pieces, encoder.finish(end)])
    whole = orjson.loads(WIRES["openai"].encode_answer(request, end, created_at_s=CREATED_S))[
        "choices"
    ][0]
    with gpt(body, stream=True) as client:
        state = ChatCompletionStreamState()
        for chunk in client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        ):
            state.handle_chunk(chunk)
        built = state.get_final_completion().choices[0]
    assert built.finish_reason == whole["finish_reason"] == "tool_calls"
    assert built.message.content == whole["message"]["content"] == "a"
    assert built.message.tool_calls is not None
    assert [
        (call.id, call.function.name, call.function.arguments) for call in built.message.tool_calls
    ] == [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in whole["message"]["tool_calls"]
    ]
    deltas = [chunk["choices"][0]["delta"] for _, chunk in events(body)[:-1]]
    assert (
        "".join(delta.get("reasoning_content", "") for delta in deltas)
        == whole["message"]["reasoning_content"]
        == "hm"
    )


def test_openai_several_answers() -> None:
    """Each has its index, text, reason and call ids, whole and streamed alike; usage is told
    once."""
    request = a_request("openai", stream=True, n=2, stream_options={"include_usage": True})
    end = replace(
        answer(text="a"), others=(replace(answer(text="b", reason="length"), calls=CALLS[:1]),)
    )
    whole = orjson.loads(WIRES["openai"].encode_answer(request, end, created_at_s=0))
    assert [
        (c["index"], c["message"]["content"], c["finish_reason"]) for c in whole["choices"]
    ] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]
    encoder = WIRES["openai"].stream(request, created_at_s=0)
    call = encoder.call(0, CALLS[0], begins=True, choice=1)
    pieces = [
        encoder.start(USAGE),
        encoder.delta("b", choice=1),
        encoder.delta("a"),
        call,
        encoder.finish(end),
    ]
    chunks = [chunk for _, chunk in events(b"".join(pieces))[:-1]]
    for chunk in chunks:
        openai.types.chat.ChatCompletionChunk.model_validate(chunk, strict=True)
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    for i, expected in enumerate(whole["choices"]):
        mine = [choice for choice in choices if choice["index"] == i]
        assert mine[0]["delta"]["role"] == "assistant"
        assert (
            "".join(choice["delta"].get("content", "") for choice in mine)
            == expected["message"]["content"]
        )
        assert mine[-1]["finish_reason"] == expected["finish_reason"]
    (streamed_call,) = [
        c["delta"]["tool_calls"][0]["id"] for c in choices if "tool_calls" in c["delta"]
    ]
    assert streamed_call == whole["choices"][1]["message"]["tool_calls"][0]["id"]
    assert len([chunk for chunk in chunks if chunk["usage"]]) == 1


def test_openai_logprobs() -> None:
    """Text, bytes and logarithm of each token and its rivals; half a character has its bytes, minus
    infinity has -9999."""
    request = a_request("openai", stream=True, logprobs=True, top_logprobs=1)
    end = replace(answer(), logprobs=LOGPROBS)
    body = WIRES["openai"].encode_answer(request, end, created_at_s=0)
    completion = openai.types.chat.ChatCompletion.model_validate_json(body, strict=True)
    told = completion.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    first, second = told.content
    assert (first.token, first.bytes, first.logprob) == ("\ufffd", list("안".encode()[:2]), -0.5)
    assert [(top.token, top.logprob) for top in first.top_logprobs] == [("x", -9999.0)]
    assert (second.token, second.top_logprobs) == ("y", [])
    encoder = WIRES["openai"].stream(request, created_at_s=0)
    chunks = events(
        encoder.delta("", logprobs=LOGPROBS[:1]) + encoder.delta("y", logprobs=LOGPROBS[1:])
    )
    contents = [chunk["choices"][0]["logprobs"]["content"] for _, chunk in chunks]
    assert [*contents[0], *contents[1]] == orjson.loads(body)["choices"][0]["logprobs"]["content"]


def test_usage_fields_of_other_providers() -> None:
    """DeepSeek's, Kimi's and Qwen's fields stand beside OpenAI's where a policy asks for them,
    whole and streamed."""
    fields = (
        "prompt_cache_hit_tokens",
        "prompt_cache_miss_tokens",
        "cached_tokens",
        "cache_creation_input_tokens",
    )
    request = msgspec.structs.replace(
        a_request("openai", stream=True, stream_options={"include_usage": True}),
        usage_fields=(*fields, "cache_creation"),
        ttl_classes={"5m": 300.0, "1h": 3600.0},
    )
    usage = orjson.loads(WIRES["openai"].encode_answer(request, answer(), created_at_s=0))["usage"]
    assert [usage[name] for name in fields[:3]] == [2455, 46, 2455]
    assert (
        usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"]
        == usage["prompt_tokens"]
    )
    details = usage["prompt_tokens_details"]
    assert details["cache_creation_input_tokens"] == 42
    assert details["cache_creation"] == {
        "ephemeral_5m_input_tokens": 12,
        "ephemeral_1h_input_tokens": 30,
    }
    assert events(streamed(request, "x", end=answer()))[-2][1]["usage"] == usage
