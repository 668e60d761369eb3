"""Codes in errors that the official SDK branches on, tried with its own tool runner."""

from __future__ import annotations

import anthropic
import httpx2
import orjson
import pytest

from engine.types import FinishReason
from gateway.errors import GatewayError, InvalidRequest
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Answer, ToolCall
from policies.pricing import Usage
from tests.fakes import dialects
from tests.fakes.rules import ANTHROPIC


class Served:
    """Answers as the gateway does, with a call first and then with text, and keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.num_answered = 0

    def __call__(self, asked: httpx2.Request) -> httpx2.Response:
        body = asked.read()
        self.bodies.append(orjson.loads(body))
        headers = {name.lower(): value for name, value in asked.headers.items()}
        try:
            request = MESSAGES_WIRE.parse(body, headers, request_id="req_1")
            request = dialects.normalize(request, ANTHROPIC)
        except GatewayError as error:
            reply = MESSAGES_WIRE.encode_error(error, request_id="req_1")
            return httpx2.Response(reply.status, content=reply.body)
        self.num_answered += 1
        calls = (ToolCall("twice", '{"number": 2}'),) if self.num_answered == 1 else ()
        reason: FinishReason = "stop"
        answer = Answer("" if calls else "4", reason, None, Usage(1), calls=calls)
        return httpx2.Response(
            200, content=MESSAGES_WIRE.encode_answer(request, answer, created_at_s=0.0)
        )


def test_a_tool_runner_goes_on_without_a_thread() -> None:
    """It asks for one first, and falls back on the error's code alone."""
    served = Served()
    client = anthropic.Anthropic(
        api_key="k",
        base_url="http://gateway",
        http_client=httpx2.Client(transport=httpx2.MockTransport(served)),
        max_retries=0,
    )

    @anthropic.beta_tool
    def twice(number: int) -> str:
        """Twice the number."""
        return str(2 * number)

    runner = client.beta.messages.tool_runner(
        model="claude-test",
        max_tokens=9,
        tools=[twice],
        messages=[{"role": "user", "content": "twice 2?"}],
    )
    last = runner.until_done()
    assert [block.text for block in last.content if block.type == "text"] == ["4"]
    assert [bool(body.get("thread")) for body in served.bodies] == [True, False, False]


@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}]
)
def test_a_thread_is_refused_with_its_code(thread: dict[str, str]) -> None:
    """In both of its forms, for answers and counts."""
    body = orjson.dumps(
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "q"}],
            "thread": thread,
        }
    )
    for parse in (MESSAGES_WIRE.parse, MESSAGES_WIRE.parse_count):
        with pytest.raises(InvalidRequest) as caught:
            dialects.normalize(parse(body, {}, request_id="r"), ANTHROPIC)
        error = orjson.loads(MESSAGES_WIRE.encode_error(caught.value, request_id="r").body)["error"]
        assert error["details"] == {
            "error_code": "thread_unsupported_request",
            "unsupported": ["thread"],
        }


def test_other_errors_have_no_details() -> None:
    """A code that means nothing to the SDK is not made up."""
    body = orjson.dumps(
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "q"}],
            "mcp_servers": [{}],
        }
    )
    with pytest.raises(InvalidRequest) as caught:
        dialects.normalize(MESSAGES_WIRE.parse(body, {}, request_id="r"), ANTHROPIC)
    error = orjson.loads(MESSAGES_WIRE.encode_error(caught.value, request_id="r").body)["error"]
    assert "details" not in error
