"""OpenAI's Chat Completions: bytes to `Request`, answers to bytes.

Knows no HTTP server and no caching rules.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from gateway.errors import GatewayError
from gateway.models import ModelInfo, UpstreamModel
from gateway.request import Request, WireName
from gateway.wire.base import Answer, ErrorReply, StreamEncoder
from gateway.wire.openai import catalog, encode, errors
from gateway.wire.openai.parse import parse
from gateway.wire.sse import encode_event

__all__ = ["OpenAIWire"]


class OpenAIWire:
    """A `Wire`."""

    name: WireName = "openai"

    def parse(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        return parse(body, headers, request_id=request_id)

    def parse_count(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        """Chat Completions has no counting route of its own; a body is counted as it would be
        answered."""
        return parse(body, headers, request_id=request_id)

    def encode_answer(self, request: Request, answer: Answer, *, created_at_s: float) -> bytes:
        return encode.encode_answer(request, answer, created_at_s=created_at_s)

    def stream(self, request: Request, *, created_at_s: float) -> StreamEncoder:
        return encode.ChunkStream(request, created_at_s=created_at_s)

    def encode_count(self, num_prompt: int) -> bytes:
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": num_prompt})

    def encode_models(
        self, models: Mapping[str, ModelInfo | UpstreamModel], query: Mapping[str, str]
    ) -> bytes:
        """All at once: OpenAI's list has no pages."""
        return catalog.encode_models(models)

    def encode_model(self, model: ModelInfo | UpstreamModel, requested: str) -> bytes:
        return catalog.encode_model(model, requested)

    def encode_error(self, error: GatewayError, *, request_id: str) -> ErrorReply:
        return errors.encode_error(error)

    def error_event(self, body: bytes) -> bytes:
        return encode_event(body) + encode.DONE
