"""Numbers that no double holds: every digit that a client or a model wrote is kept."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Submit, decode_to_engine, encode_frame
from engine.prompt.canonical import to_json
from engine.prompt.numerals import (
    Numeral,
    as_numbers,
    decode_numbers,
    from_msgpack,
    in_json,
    in_msgpack,
    to_text,
)
from engine.prompt.position_marks import PrivateMarks, to_json_marked
from engine.prompt.types import Position, Prompt, ToolCallPart
from engine.types import CachePlan
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.state.batches import BatchItem, as_lines
from gateway.wire import json_text, pieces
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.anthropic.batch import read_items
from gateway.wire.base import Answer, ToolCall, Wire
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.messages import decoded_arguments
from gateway.wire.openai.responses import responses_wire
from policies.pricing import Usage

RESPONSES: Final = responses_wire(new_id=lambda: "new")
WIDE: Final = (
    "12345678901234567890123",
    "-9223372036854775809",
    "18446744073709551616",
    "1e400",
    "-1.5E+999",
    "1e-400",
    "0.12345678901234567890123",
    "9" * 400,
)
HELD: Final = ("18446744073709551615", "-9223372036854775808", "1.5", "0.30000000000000004", "1e5")


def claude_body(number: str) -> bytes:
    text = (
        '{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"q"},{"role":"assistant",'
        '"content":[{"type":"tool_use","id":"t","name":"f","input":{"id":%s}}]},{"role":"user",'
        '"content":[{"type":"tool_result","tool_use_id":"t","content":"r"}]}]}'
    )
    return text.replace("%s", number).encode()


def chat_body(number: str) -> bytes:
    function = {"name": "f", "arguments": f'{{"id":{number}}}'}
    call = {"id": "t", "type": "function", "function": function}
    return orjson.dumps(
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "t", "content": "r"},
            ],
        }
    )


def responses_body(number: str) -> bytes:
    call = {"type": "function_call", "call_id": "t", "name": "f", "arguments": f'{{"id":{number}}}'}
    output = {"type": "function_call_output", "call_id": "t", "output": "r"}
    return orjson.dumps({"model": "m", "input": [{"role": "user", "content": "q"}, call, output]})


BODIES: Final = {
    "messages": (MESSAGES_WIRE, claude_body),
    "chat": (CHAT_WIRE, chat_body),
    "responses": (RESPONSES, responses_body),
}


def parsed(wire: Wire, body: bytes) -> Request:
    return wire.parse(body, {}, request_id="req_1")


def at_engine(request: Request) -> Prompt:
    """The prompt as the engine's process receives it."""
    message = Submit("r", "t", request.prompt, CachePlan(), request.sampling, 0.0)
    received = decode_to_engine(encode_frame(message)[4:])
    assert isinstance(received, Submit)
    return received.prompt


def arguments(prompt: Prompt) -> Any:
    (call,) = (part for _, part in prompt.parts() if isinstance(part, ToolCallPart))
    return call.arguments


@pytest.mark.parametrize("number", WIDE)
@pytest.mark.parametrize("name", BODIES)
def test_a_number_in_a_call_reaches_the_template_as_it_was_written(name: str, number: str) -> None:
    """In every format, through the frames between the processes."""
    wire, body = BODIES[name]
    assert to_json(arguments(at_engine(parsed(wire, body(number))))) == f'{{"id": {number}}}'


@pytest.mark.parametrize("name", BODIES)
def test_prompts_that_differ_in_a_far_digit_are_two(name: str) -> None:
    """Neither as values nor as they are hashed for their way to a worker."""
    wire, body = BODIES[name]
    one, other = (parsed(wire, body(f"12345678901234567890{end}")).prompt for end in ("123", "199"))
    assert one != other
    assert msgspec.json.encode(one, enc_hook=in_json) != msgspec.json.encode(
        other, enc_hook=in_json
    )


@pytest.mark.parametrize("number", [*WIDE, *HELD])
def test_whole_and_streamed_answers_show_the_same_number(number: str) -> None:
    """Anthropic's whole answer decodes a call's arguments, its stream does not."""
    request = parsed(MESSAGES_WIRE, claude_body("1"))
    call = ToolCall("f", f'{{"id":{number}}}')
    end = Answer("", "stop", None, Usage(1), calls=(call,))
    whole = MESSAGES_WIRE.encode_answer(request, end, created_at_s=0.0)
    (block,) = json.loads(whole, parse_int=Decimal, parse_float=Decimal)["content"]
    stream = MESSAGES_WIRE.stream(request, created_at_s=0.0)
    events = b"".join([stream.start(Usage(1)), stream.call(0, call, begins=True)])
    deltas = [line for line in events.split(b"\n") if b"partial_json" in line]
    streamed = json.loads(deltas[0].removeprefix(b"data: "))["delta"]["partial_json"]
    assert block["input"] == json.loads(streamed, parse_int=Decimal, parse_float=Decimal)
    assert block["input"] == {"id": Decimal(number)}


@pytest.mark.parametrize("number", WIDE)
def test_a_number_in_a_tool_or_a_format_is_kept(number: str) -> None:
    """Schemas are echoed and rendered, too; also in a body that is decoded in pieces."""
    padding = "x" * pieces.PIECE_NBYTES
    body = (
        '{"model":"m","input":"PADDING","tools":[{"type":"function","name":"f","parameters":'
        '{"maximum":%s}}],"text":{"format":{"type":"json_schema","name":"s","schema":'
        '{"const":%s}}}}'
    )
    request = parsed(RESPONSES, body.replace("%s", number).replace("PADDING", padding).encode())
    assert to_json(at_engine(request).tools[0].parameters) == f'{{"maximum": {number}}}'
    assert request.sampling.output_format is not None
    assert request.sampling.output_format.definition == f'{{"const":{number}}}'
    done = RESPONSES.encode_answer(request, Answer("a", "stop", None, Usage(1)), created_at_s=0.0)
    assert f'"maximum":{number}'.encode() in done
    memory = RESPONSES.memory
    assert memory is not None
    kept = memory.keep(request, Answer("a", "stop", None, Usage(1)), created_at_s=0.0)
    assert kept.items is not None


@pytest.mark.parametrize("name", BODIES)
def test_a_conversation_with_such_a_number_goes_on(name: str) -> None:
    """What is packed is unpacked."""
    wire, body = BODIES[name]
    prompt = parsed(wire, body("1e400")).prompt
    packed = msgspec.msgpack.encode(prompt, enc_hook=in_msgpack)
    assert msgspec.msgpack.decode(packed, type=Prompt, ext_hook=from_msgpack) == prompt


def test_a_batch_keeps_the_digits_of_its_requests() -> None:
    """On disk as in the body."""
    body = b'{"requests":[{"custom_id":"a","params":%s}]}' % claude_body("[1e400,%s]" % ("9" * 30))
    ((custom_id, params),) = read_items(body)
    assert b'{"id":[1e400,%s]}' % (b"9" * 30) in as_lines([BatchItem(custom_id, params)])


def test_settings_are_numbers_still() -> None:
    """A temperature with many digits is one; one beyond all doubles is too large, not bad JSON."""
    body = b'{"model":"m","messages":[{"role":"user","content":"q"}],"temperature":%s}'
    assert parsed(CHAT_WIRE, body % b"0.69999999999999999999").sampling.temperature == 0.7
    for number in (b"1e400", b"-1e400"):
        with pytest.raises(InvalidRequest) as caught:
            parsed(CHAT_WIRE, body % number)
        assert caught.value.path == "temperature"
    with pytest.raises(InvalidRequest, match="expected an integer, but got a number"):
        parsed(CHAT_WIRE, body.replace(b"temperature", b"max_tokens") % (b"9" * 30))


@pytest.mark.parametrize("text", ["", " \n", '""', '" "', "null", "{}"])
def test_no_arguments_in_a_history_are_an_empty_object(text: str) -> None:
    """As in an answer."""
    assert decoded_arguments(text) == {}


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "1e400", "12345678901234567890123"])
def test_other_arguments_stay_as_they_are(text: str) -> None:
    """What is no object is the model's own text."""
    assert decoded_arguments(text) == text


@pytest.mark.parametrize(
    "bad", ["[1e400", "[1e400,]", "[NaN,1e400]", "01e400", '["\\ud800",1e400]']
)
def test_bad_json_is_refused_as_before(bad: str) -> None:
    """With orjson's own words."""
    with pytest.raises(orjson.JSONDecodeError) as expected:
        orjson.loads(bad)
    with pytest.raises(orjson.JSONDecodeError) as caught:
        json_text.loads(bad)
    assert str(caught.value) == str(expected.value)


NUMBERS: Final = st.from_regex(
    r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True
)


@given(st.lists(NUMBERS, max_size=4), st.text(max_size=9))
def test_every_number_is_the_one_that_was_written(numbers: list[str], beside: str) -> None:
    """Decoded and written again by every encoder."""
    text = f'{{"a": [{", ".join(numbers)}], "b": {json.dumps(beside)}}}'
    expected = list(map(Decimal, numbers))
    value = json_text.loads(text)
    unpacked = msgspec.msgpack.decode(
        msgspec.msgpack.encode(value, enc_hook=in_msgpack), ext_hook=from_msgpack
    )
    written: list[str | bytes] = [
        to_text(value),
        to_text(unpacked, ensure_ascii=False),
        json_text.dumps(value),
        msgspec.json.encode(value, enc_hook=in_json),
    ]
    for one in written:
        read = json.loads(one, parse_int=Decimal, parse_float=Decimal)
        assert (read["a"], read["b"]) == (expected, beside)


@given(st.lists(NUMBERS, max_size=3))
def test_only_what_is_rounded_is_a_numeral(numbers: list[str]) -> None:
    """What orjson decodes exactly is the same value, decoded either way."""
    for number in numbers:
        value = json_text.loads(number)
        if isinstance(value, Numeral):
            assert Decimal(number) != Decimal(repr(as_numbers(value))) or len(number) > 19
        else:
            assert repr(value) == repr(orjson.loads(number))
            assert repr(decode_numbers(number)) == repr(value)


def test_marks_around_a_number_stay() -> None:
    """A template's JSON is marked as ever."""
    position = Position("messages", 0)
    marked = PrivateMarks([position], "\ue000\ue001").data(position, {"id": Numeral("1e400")})
    assert to_json_marked(marked) == '\ue000{"id": 1e400}\ue001'
    assert to_json_marked({"f": marked}) == '{"f": \ue000{"id": 1e400}\ue001}'
