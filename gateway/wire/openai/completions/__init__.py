"""OpenAI's legacy Completions: a raw prompt continued, without a chat template.

Knows no HTTP server and no caching rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import GatewayError
from gateway.request import Request
from gateway.wire.base import Answer, Endpoint, ErrorReply, StreamEncoder
from gateway.wire.openai import OpenAIWire, errors
from gateway.wire.openai.completions import encode
from gateway.wire.openai.completions.parse import parse

__all__ = ["CompletionsWire"]


class CompletionsWire(OpenAIWire):
    """A `Wire`. Models and errors are those of OpenAI's other APIs."""

    endpoints: tuple[Endpoint, ...] = (Endpoint("/v1/completions", "completions"),)
    prefixes: tuple[str, ...] = ("/v1/completions",)

    def claims(self, body: Mapping[str, Any]) -> bool:
        return False

    def parse(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        return parse(body, headers, request_id=request_id)

    def parse_count(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        return self.parse(body, headers, request_id=request_id)

    def encode_answer(self, request: Request, answer: Answer, *, created_at_s: float) -> bytes:
        return encode.encode_answer(request, answer, created_at_s=created_at_s)

    def stream(self, request: Request, *, created_at_s: float) -> StreamEncoder:
        return encode.TextStream(request, created_at_s=created_at_s)

    def encode_error(self, error: GatewayError, *, request_id: str) -> ErrorReply:
        return errors.encode_error(error, input_field="prompt")
