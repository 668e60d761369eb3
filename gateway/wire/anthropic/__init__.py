"""Anthropic's Messages API: bytes to `Request`, answers to bytes.

Knows no HTTP server and no caching rules.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from gateway.errors import GatewayError
from gateway.models import ModelInfo, UpstreamModel
from gateway.request import Request, WireName
from gateway.wire.anthropic import catalog, encode, errors
from gateway.wire.anthropic.parse import parse
from gateway.wire.anthropic.stream import MessageStream
from gateway.wire.base import Answer, ErrorReply, StreamEncoder
from gateway.wire.sse import encode_event

__all__ = ["AnthropicWire"]


class AnthropicWire:
    """A `Wire`. API versions 2023-06-01 and 2026-10-21."""

    name: WireName = "anthropic"

    def parse(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        return parse(body, headers, request_id=request_id, counting=False)

    def parse_count(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        return parse(body, headers, request_id=request_id, counting=True)

    def encode_answer(self, request: Request, answer: Answer, *, created_at_s: float) -> bytes:
        return encode.encode_answer(request, answer)

    def stream(self, request: Request, *, created_at_s: float) -> StreamEncoder:
        return MessageStream(request)

    def encode_count(self, num_prompt: int) -> bytes:
        return orjson.dumps({"input_tokens": num_prompt})

    def encode_models(
        self, models: Mapping[str, ModelInfo | UpstreamModel], query: Mapping[str, str]
    ) -> bytes:
        return catalog.encode_models(models, query)

    def encode_model(self, model: ModelInfo | UpstreamModel, requested: str) -> bytes:
        return catalog.encode_model(model, requested)

    def encode_error(self, error: GatewayError, *, request_id: str) -> ErrorReply:
        return errors.encode_error(error, request_id=request_id)

    def error_event(self, body: bytes) -> bytes:
        return encode_event(body, "error")
