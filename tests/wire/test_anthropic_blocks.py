"""Reasoning and tool calls in Anthropic's answers: whole and streamed alike,
through the official SDK's own types.
"""

from __future__ import annotations

from typing import Any, Final

import anthropic
import httpx2
import orjson
import pytest

from engine.prompt.types import ThinkingPart, ToolResultPart
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.anthropic.blocks import MAX_REFERENCED
from gateway.wire.base import Answer, AnswerRun, ToolCall
from gateway.wire.sse import SSE_HEADERS
from policies.pricing import Usage

WIRE: Final = MESSAGES_WIRE
USAGE: Final = Usage(input=4, output=9)
THINKING: Final = {"type": "adaptive"}
CALLS: Final = (ToolCall("find", '{"q": "é", "n": [1, 2]}'), ToolCall("stop", ""))


def a_request(**changes: Any) -> Request:
    body = {
        "model": "claude-test",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    } | changes
    return WIRE.parse(orjson.dumps(body), {}, request_id="req_42")


def whole(request: Request, answer: Answer) -> anthropic.types.Message:
    """The answer as the SDK's strict model reads it."""
    body = WIRE.encode_answer(request, answer, created_at_s=0)
    return anthropic.types.Message.model_validate_json(body, strict=True)


def streamed(request: Request, answer: Answer) -> anthropic.types.Message:
    """The same answer in small pieces, put together again by the SDK's helper."""
    encoder = WIRE.stream(request, created_at_s=0)
    pieces = [encoder.start(Usage(answer.usage.input))]
    pieces += [encoder.delta(char, thinking=True) for char in answer.thinking]
    pieces += [encoder.delta(char) for char in answer.text]
    for i, call in enumerate(answer.calls):
        pieces.append(encoder.call(i, ToolCall(call.name, ""), begins=True))
        pieces += [encoder.call(i, ToolCall("", char), begins=False) for char in call.arguments]
    pieces.append(encoder.finish(answer))
    http = httpx2.Client(
        transport=httpx2.MockTransport(
            lambda _: httpx2.Response(200, content=b"".join(pieces), headers=dict(SSE_HEADERS)),
        )
    )
    client = anthropic.Anthropic(api_key="k", http_client=http, max_retries=0)
    with (
        client,
        client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]
        ) as stream,
    ):
        message = stream.get_final_message()
    return anthropic.types.Message.model_validate(message.model_dump(), strict=False)


def shape(message: anthropic.types.Message) -> list[dict[str, Any]]:
    return [block.model_dump(exclude_none=True) for block in message.content]


@pytest.mark.parametrize("text", ["", "Let me look."])
def test_tool_calls(text: str) -> None:
    """Calls are blocks with ids of their own and decoded input, after the text; the turn ends for
    their results."""
    request, answer = a_request(), Answer(text, "stop", None, USAGE, calls=CALLS)
    message = whole(request, answer)
    blocks = shape(message)
    assert [block["type"] for block in blocks] == [
        *(["text"] if text else []),
        "tool_use",
        "tool_use",
    ]
    assert [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"] == [
        ("find", {"q": "é", "n": [1, 2]}),
        ("stop", {}),
    ]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert len(set(ids)) == 2
    assert all(name.startswith("toolu_") for name in ids)
    assert message.stop_reason == "tool_use"
    again = streamed(request, answer)
    assert (shape(again), again.stop_reason) == (blocks, "tool_use")


def test_call_ids_differ_between_requests_of_one_id() -> None:
    """A client that names all its requests alike still gets calls it can tell apart."""
    one, other = a_request(), WIRE.parse(orjson.dumps({"model": "m", "max_tokens": 1, "messages": [
        {"role": "user", "content": "x"}]}), {}, request_id="req_42")  # fmt: skip
    ids = set()
    for request, at_s in ((one, 1.0), (other, 2.0)):
        from_then = Request(
            **{name: getattr(request, name) for name in request.__struct_fields__}
            | {"started_at_s": at_s}
        )
        ids |= {
            block["id"]
            for block in shape(whole(from_then, Answer("", "stop", None, USAGE, calls=CALLS)))
        }
    assert len(ids) == 4


@pytest.mark.parametrize("arguments", ["{", '["a"]', "3", "{'a': 1}"])
def test_arguments_that_are_no_object_are_kept(arguments: str) -> None:
    """Whole answers must hold an object: what the model wrote stays readable inside one."""
    answer = Answer("", "length", None, USAGE, calls=(ToolCall("find", arguments),))
    message = whole(a_request(), answer)
    assert shape(message)[0]["input"] == {"INVALID_JSON": arguments}
    assert message.stop_reason == "max_tokens"


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_reasoning(display: str) -> None:
    """A signed block before the text. What the client sends back is what the model thought, also if
    it was not shown."""
    request = a_request(thinking=THINKING | {"display": display})
    answer = Answer("Four.", "stop", None, USAGE, thinking="Two and two is 네.")
    message = whole(request, answer)
    assert [block["type"] for block in shape(message)] == ["thinking", "text"]
    assert shape(message)[0]["thinking"] == ("" if display == "omitted" else "Two and two is 네.")
    assert shape(streamed(request, answer)) == shape(message)
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": shape(message)},
        {"role": "user", "content": "and?"},
    ]
    echoed = a_request(messages=turns).prompt.messages[1].parts[0]
    assert isinstance(echoed, ThinkingPart)
    assert echoed.text == "Two and two is 네."


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_changed_reasoning_is_refused(display: str) -> None:
    """Ours is checked; a signature made elsewhere passes unread, so that a conversation may move
    here."""
    request = a_request(thinking=THINKING | {"display": display})
    block = shape(whole(request, Answer("x", "stop", None, USAGE, thinking="abc")))[0]

    def echo(**changes: Any) -> Request:
        content = [block | changes, {"type": "text", "text": "x"}]
        return a_request(
            messages=[{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
        )

    echo()
    echo(signature="EqQBCgIYAhIM")
    with pytest.raises(InvalidRequest, match="Invalid `signature` in `thinking` block") as caught:
        echo(thinking="abd")
    assert caught.value.path == "messages.1.content.0"
    with pytest.raises(InvalidRequest):
        echo(signature=block["signature"][:-2] + "**")


def test_reasoning_nobody_asked_for_is_not_shown() -> None:
    """Clients that did not ask for reasoning know no block of that kind."""
    answer = Answer("Four.", "stop", None, USAGE, thinking="hm")
    assert [block["type"] for block in shape(whole(a_request(), answer))] == ["text"]
    assert [block["type"] for block in shape(streamed(a_request(), answer))] == ["text"]


def test_blocks_alternate_in_a_stream() -> None:
    """Reasoning between texts opens a block each time, and every block is closed once."""
    request = a_request(thinking=THINKING)
    encoder = WIRE.stream(request, created_at_s=0)
    raw = (
        encoder.start(USAGE)
        + encoder.delta("a", thinking=True)
        + encoder.delta("b")
        + encoder.delta("c", thinking=True)
    )
    raw += encoder.call(0, ToolCall("find", "{}"), begins=True) + encoder.delta("d")
    raw += encoder.finish(
        Answer("bd", "stop", None, USAGE, thinking="ac", calls=(ToolCall("find", "{}"),))
    )
    events = [
        orjson.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")
    ]
    starts = [
        event["content_block"]["type"] for event in events if event["type"] == "content_block_start"
    ]
    assert starts == ["thinking", "text", "thinking", "tool_use", "text"]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [
        0,
        1,
        2,
        3,
        4,
    ]
    signatures = [
        event["delta"]["signature"]
        for event in events
        if event.get("delta", {}).get("type") == "signature_delta"
    ]
    assert len(set(signatures)) == 2


def test_blocks_of_a_whole_answer_keep_their_order() -> None:
    """As in a stream: text behind a call stays there, and text around reasoning that is not shown
    is one block."""
    said = (
        AnswerRun("text", "b"),
        AnswerRun("thinking", "c"),
        AnswerRun("text", "d"),
        AnswerRun("call"),
        AnswerRun("text", "e"),
    )
    answer = Answer(
        "bde", "stop", None, USAGE, thinking="c", calls=(ToolCall("find", "{}"),), runs=said
    )
    assert [block["type"] for block in shape(whole(a_request(thinking=THINKING), answer))] == [
        *("text", "thinking", "text", "tool_use", "text"),
    ]
    first, *others = shape(whole(a_request(), answer))
    assert (first["text"], [block["type"] for block in others]) == ("bd", ["tool_use", "text"])


@pytest.mark.parametrize("nested", [False, True])
def test_citations_are_a_setting_of_the_request(nested: bool) -> None:
    """Asked for by any document, wherever it stands; said to be off they are as if nothing was
    said."""
    found = []
    for citations in ({"enabled": True}, {"enabled": False}, None):
        block: dict[str, Any] = {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "d"},
        }
        block |= {"citations": citations} if citations else {}
        turn = {"type": "tool_result", "tool_use_id": "t", "content": [block]} if nested else block
        body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [turn]}]}
        found.append(WIRE.parse(orjson.dumps(body), {}, request_id="r").parameters)
    assert found == [{"citations": True}, {}, {}]


@pytest.mark.parametrize(("lifetime_s", "short"), [(300.0, 12), (900.0, 12)])
def test_writes_are_named_by_class_not_by_lifetime(lifetime_s: float, short: int) -> None:
    """A policy may let the class 5m live longer: it is still the one the client asked for and is
    billed for."""
    request = a_request()
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    named = Request(**fields | {"ttl_classes": {"5m": lifetime_s, "1h": 3600.0}})
    counts = Usage(input=1, cache_write=((3600.0, 30), (lifetime_s, short)))
    usage = whole(named, Answer("x", "stop", None, counts)).usage
    assert usage.cache_creation is not None
    assert usage.cache_creation.ephemeral_5m_input_tokens == 12
    assert usage.cache_creation.ephemeral_1h_input_tokens == 30


def test_references_to_deferred_tools_stand_for_so_much_text() -> None:
    """A long definition may be referred to again and again, within bounds."""
    tool = {
        "name": "f",
        "description": "d" * (MAX_REFERENCED // 4),
        "input_schema": {},
        "defer_loading": True,
    }

    def parsed(num: int) -> Request:
        result = {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": [{"type": "tool_reference", "tool_name": "f"}] * num,
        }
        fields = {
            "model": "m",
            "max_tokens": 1,
            "tools": [tool],
            "messages": [{"role": "user", "content": [result]}],
        }
        return MESSAGES_WIRE.parse(orjson.dumps(fields), {}, request_id="r")

    (part,) = parsed(3).prompt.messages[0].parts
    assert isinstance(part, ToolResultPart)
    assert part.text.count('"name": "f"') == 3
    with pytest.raises(InvalidRequest, match="referenced tools together exceed") as refused:
        parsed(4)
    assert (
        refused.value.path == "messages.0.content.0.tool_result.content.3.tool_reference.tool_name"
    )
