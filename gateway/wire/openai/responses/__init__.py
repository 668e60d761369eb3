"""OpenAI's Responses API: bytes to `Request`, answers to bytes.

Knows no HTTP server.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.errors import GatewayError
from gateway.request import Request
from gateway.wire.base import Answer, Endpoint, ErrorReply, StreamEncoder
from gateway.wire.openai import OpenAIWire, errors
from gateway.wire.openai.recognize import is_responses
from gateway.wire.openai.responses import encode
from gateway.wire.openai.responses.memory import ResponsesMemory
from gateway.wire.openai.responses.parse import parse
from gateway.wire.openai.responses.stream import ResponseStream
from gateway.wire.sse import encode_event

__all__ = ["ResponsesWire"]


class ResponsesWire(OpenAIWire):
    """A `Wire` with a memory. `new_id` gives each response its name."""

    endpoints: tuple[Endpoint, ...] = (
        Endpoint("/v1/responses", "responses"),
        Endpoint("/v1/responses/input_tokens", "input_tokens", "count"),
    )
    prefixes: tuple[str, ...] = ("/v1/responses",)
    effort_field = "reasoning.effort"

    def __init__(self, new_id: Callable[[], str] = lambda: secrets.token_hex(24)) -> None:
        self._new_id = new_id
        self.memory = ResponsesMemory()

    def claims(self, body: Mapping[str, Any]) -> bool:
        return is_responses(body)

    def parse(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        return parse(body, headers, request_id=request_id, response_id=f"resp_{self._new_id()}")

    def parse_count(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        return self.parse(body, headers, request_id=request_id)

    def encode_answer(self, request: Request, answer: Answer, *, created_at_s: float) -> bytes:
        return encode.encode_answer(request, answer, created_at_s=created_at_s)

    def stream(self, request: Request, *, created_at_s: float) -> StreamEncoder:
        return ResponseStream(request, created_at_s=created_at_s)

    def encode_error(self, error: GatewayError, *, request_id: str) -> ErrorReply:
        return errors.encode_error(error, input_field="input")

    def error_event(self, body: bytes) -> bytes:
        """The nested form, which the official clients raise on, without a number: the last one is
        not known."""
        return encode_event(orjson.dumps({"type": "error"} | orjson.loads(body)), "error")
