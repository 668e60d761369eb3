"""OpenAI's Responses API: bytes to `Request`, answers to bytes.

Knows no HTTP server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import orjson

from gateway.wire.base import Endpoint, Wire
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.errors import encode_error, unsupported_effort
from gateway.wire.openai.recognize import is_responses
from gateway.wire.openai.responses.encode import encode_answer
from gateway.wire.openai.responses.memory import ResponsesMemory
from gateway.wire.openai.responses.parse import new_response_id, parse
from gateway.wire.openai.responses.stream import ResponseStream
from gateway.wire.sse import encode_event


def responses_wire(new_id: Callable[[], str] = new_response_id) -> Wire:
    """The format; `new_id` gives each response its name."""
    return replace(
        CHAT_WIRE,
        endpoints=(
            Endpoint("/v1/responses", "responses"),
            Endpoint("/v1/responses/input_tokens", "input_tokens", "count"),
        ),
        prefixes=("/v1/responses",),
        memory=ResponsesMemory(),
        claims=is_responses,
        unsupported_effort=partial(unsupported_effort, field="reasoning.effort"),
        parse=partial(parse, new_id=new_id),
        parse_count=partial(parse, new_id=new_id),
        encode_answer=encode_answer,
        stream=ResponseStream,
        encode_error=partial(encode_error, input_field="input"),
        error_event=_error_event,
    )


def _error_event(body: bytes) -> bytes:
    """The nested form, which the official clients raise on, without a number: the last one is not
    known."""
    return encode_event(orjson.dumps({"type": "error"} | orjson.loads(body)), "error")
