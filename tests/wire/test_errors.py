"""Every error a client can be told of, in every wire format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import anthropic
import httpx2
import openai
import orjson
import pytest

from gateway import errors
from gateway.errors import GatewayError
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.anthropic import errors as anthropic_errors
from gateway.wire.base import Wire
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai import errors as openai_errors

ANTHROPIC: Final = {
    "InvalidRequest": (400, "invalid_request_error"),
    "ContextExceeded": (400, "invalid_request_error"),
    "BadPrompt": (400, "invalid_request_error"),
    "BadFormat": (400, "invalid_request_error"),
    "Unauthenticated": (401, "authentication_error"),
    "Forbidden": (403, "permission_error"),
    "UnknownModel": (404, "not_found_error"),
    "UnknownPath": (404, "not_found_error"),
    "UnknownResponse": (404, "not_found_error"),
    "MethodNotAllowed": (405, "invalid_request_error"),
    "BodyLate": (408, "timeout_error"),
    "BodyTooLarge": (413, "request_too_large"),
    "UnknownEncoding": (400, "invalid_request_error"),
    "RateLimited": (429, "rate_limit_error"),
    "Overloaded": (529, "overloaded_error"),
    "EngineLost": (529, "overloaded_error"),
    "EngineFailed": (500, "api_error"),
    "Poisonous": (500, "api_error"),
    "UpstreamFailed": (502, "api_error"),
    "TimedOut": (504, "timeout_error"),
    "NotCached": (504, "timeout_error"),
}
OPENAI: Final = {
    "InvalidRequest": (400, "invalid_request_error", None),
    "ContextExceeded": (400, "invalid_request_error", "context_length_exceeded"),
    "BadPrompt": (400, "invalid_request_error", None),
    "BadFormat": (400, "invalid_request_error", None),
    "Unauthenticated": (401, "invalid_request_error", "invalid_api_key"),
    "Forbidden": (403, "invalid_request_error", None),
    "UnknownModel": (404, "invalid_request_error", "model_not_found"),
    "UnknownPath": (404, "invalid_request_error", None),
    "UnknownResponse": (404, "invalid_request_error", None),
    "MethodNotAllowed": (405, "invalid_request_error", "method_not_supported"),
    "BodyLate": (408, "invalid_request_error", "request_timeout"),
    "BodyTooLarge": (413, "invalid_request_error", "request_too_large"),
    "UnknownEncoding": (
        415,
        "invalid_request_error",
        "request_body_encoding_unsupported",
    ),
    "RateLimited": (429, "requests", "rate_limit_exceeded"),
    "Overloaded": (503, "server_error", "server_is_overloaded"),
    "EngineLost": (503, "server_error", "server_is_overloaded"),
    "EngineFailed": (500, "server_error", None),
    "Poisonous": (500, "server_error", None),
    "UpstreamFailed": (502, "server_error", None),
    "TimedOut": (504, "server_error", "timeout"),
    "NotCached": (504, "server_error", "timeout"),
}


def subclasses(cls: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def an_error(name: str) -> GatewayError:
    cls = getattr(errors, name)
    arguments: dict[str, tuple[object, ...]] = {
        "ContextExceeded": (9000, 8192),
        "UnknownEncoding": ("br",),
    }
    made: GatewayError = (
        cls(*arguments[name]) if name in arguments else cls("what is wrong", path="a.b")
    )
    return made


def test_every_error_is_in_these_tables() -> None:
    """A new error class needs a row here, and so a decision in every format."""
    names = {cls.__name__ for cls in subclasses(GatewayError) if cls.__module__ == errors.__name__}
    assert names == set(ANTHROPIC) == set(OPENAI)


def test_every_child_of_the_base_has_its_own_row() -> None:
    """Only refinements of a class may share its row: nothing falls through to 500 by accident."""
    for cls in GatewayError.__subclasses__():
        if cls.__module__ == errors.__name__:
            assert cls in anthropic_errors.TABLE
            assert cls in openai_errors.TABLE


@pytest.mark.parametrize("name", ANTHROPIC)
def test_anthropic_shape(name: str) -> None:
    """Status, type and request id; the path goes before the message only where the body is at
    fault."""
    reply = MESSAGES_WIRE.encode_error(an_error(name), request_id="req_7")
    body = orjson.loads(reply.body)
    status, kind = ANTHROPIC[name]
    assert (reply.status, body["type"], body["error"]["type"], body["request_id"]) == (
        status,
        "error",
        kind,
        "req_7",
    )
    expected = {
        "ContextExceeded": "prompt is too long: 9000 tokens > 8192 maximum",
        "UnknownEncoding": "Content-Encoding 'br' is not supported; send gzip or none",
        "InvalidRequest": "a.b: what is wrong",
        "BadPrompt": "a.b: what is wrong",
        "BadFormat": "a.b: what is wrong",
    }
    assert body["error"]["message"] == expected.get(name, "what is wrong")


@pytest.mark.parametrize("name", OPENAI)
def test_openai_shape(name: str) -> None:
    """Status, type and code, and all four members of the error object."""
    reply = CHAT_WIRE.encode_error(an_error(name), request_id="req_7")
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["type"], error["code"]) == OPENAI[name]
    assert set(error) == {"message", "type", "param", "code"}
    if name == "ContextExceeded":
        assert error["param"] == "messages"
        assert error["message"].startswith(
            "This model's maximum context length is 8192 tokens. However, your messages resulted"
        )


def test_an_unforeseen_error_is_a_500() -> None:
    """The base class itself has a row."""
    assert MESSAGES_WIRE.encode_error(GatewayError("x"), request_id="r").status == 500
    assert CHAT_WIRE.encode_error(GatewayError("x"), request_id="r").status == 500


@pytest.mark.parametrize("wire", [MESSAGES_WIRE, CHAT_WIRE], ids=["anthropic", "openai"])
def test_retry_headers(wire: Wire) -> None:
    """`Retry-After` in whole seconds where it is known, and never 0; a full engine says that a
    retry is welcome."""
    limited = wire.encode_error(errors.RateLimited("x", retry_after_s=1.2), request_id="r")
    assert dict(limited.headers) == {"Retry-After": "2"}
    assert dict(wire.encode_error(errors.RateLimited("x"), request_id="r").headers) == {}
    full = wire.encode_error(errors.Overloaded("x", retry_after_s=0.0), request_id="r")
    assert dict(full.headers) == {"Retry-After": "1", "x-should-retry": "true"}
    assert dict(wire.encode_error(errors.Poisonous("x"), request_id="r").headers) == {
        "x-should-retry": "false"
    }


@pytest.mark.parametrize("name", ANTHROPIC)
def test_the_anthropic_sdk_raises_its_own_class(name: str) -> None:
    """The official client reads status and message from our bytes."""
    reply = MESSAGES_WIRE.encode_error(an_error(name), request_id="req_7")
    answer = httpx2.Response(reply.status, content=reply.body, headers=dict(reply.headers))
    with httpx2.Client(transport=httpx2.MockTransport(lambda _: answer)) as http:
        client = anthropic.Anthropic(api_key="k", http_client=http, max_retries=0)
        with pytest.raises(anthropic.APIStatusError) as caught:
            client.messages.create(
                model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}]
            )
    assert caught.value.status_code == ANTHROPIC[name][0]
    classes = {
        400: anthropic.BadRequestError,
        401: anthropic.AuthenticationError,
        404: anthropic.NotFoundError,
    }
    assert isinstance(caught.value, classes.get(caught.value.status_code, anthropic.APIStatusError))


@pytest.mark.parametrize("name", OPENAI)
def test_the_openai_sdk_raises_its_own_class(name: str) -> None:
    """The official client reads code, param and type from our bytes."""
    reply = CHAT_WIRE.encode_error(an_error(name), request_id="req_7")
    answer = httpx2.Response(reply.status, content=reply.body, headers=dict(reply.headers))
    with httpx2.Client(transport=httpx2.MockTransport(lambda _: answer)) as http:
        client = openai.OpenAI(api_key="k", http_client=http, max_retries=0)
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    status, kind, code = OPENAI[name]
    assert (caught.value.status_code, caught.value.type, caught.value.code) == (status, kind, code)


@pytest.mark.parametrize("input_field", ["messages", "input", "prompt"])
def test_a_prompt_that_the_model_cannot_be_asked_names_its_field(input_field: str) -> None:
    """The engine finds out late, and knows no API: each one's own field is named, for what is empty
    and what is too long."""
    for error in (
        errors.BadPrompt("the prompt is empty", path="messages"),
        errors.ContextExceeded(9, 8),
    ):
        assert openai_errors.error_fields(error, input_field=input_field)["param"] == input_field


def test_a_format_that_cannot_be_kept_names_its_field() -> None:
    """The engine finds out late, and each API has a field of its own for it."""
    error = errors.BadFormat("Unimplemented keys")
    assert orjson.loads(MESSAGES_WIRE.encode_error(error, request_id="r").body)["error"][
        "message"
    ].startswith("output_config.format: ")
    assert (
        orjson.loads(CHAT_WIRE.encode_error(error, request_id="r").body)["error"]["param"]
        == "response_format"
    )
    assert openai_errors.error_fields(error, input_field="input")["param"] == "text.format"
