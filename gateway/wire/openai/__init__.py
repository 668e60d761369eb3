"""OpenAI's Chat Completions: bytes to `Request`, answers to bytes.

Knows no HTTP server and no caching rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from engine.prompt.types import Position
from gateway.errors import GatewayError, InvalidRequest
from gateway.models import ModelInfo, UpstreamModel
from gateway.request import Request
from gateway.wire.base import Answer, Endpoint, ErrorReply, Memory, Provider, StreamEncoder
from gateway.wire.openai import catalog, encode, errors
from gateway.wire.openai.parse import parse
from gateway.wire.openai.recognize import is_chat, is_responses
from gateway.wire.openai.reported import USAGE
from gateway.wire.sse import encode_event

__all__ = ["OpenAIWire"]


OPENAI: Final = Provider(
    name="openai",
    title="OpenAI's",
    preset="openai",
    id_header="x-request-id",
    native_id=lambda request_id: request_id,
    usage_format=USAGE,
)

FORWARDED: Final = (
    *("embeddings", "moderations", "images/generations", "audio/speech"),
    *("rerank", "score"),
)
"""Paths below /v1 that only upstreams serve: OpenAI's, and vLLM's, whose JSON body names a model.
No other path is passed on: an upstream may have paths that are not for this gateway's clients."""


class OpenAIWire:
    """A `Wire`."""

    provider = OPENAI
    endpoints: tuple[Endpoint, ...] = (
        Endpoint("/v1/chat/completions", "chat_completions"),
        *(Endpoint(f"/v1/{path}", path.replace("/", "_"), "forward") for path in FORWARDED),
    )
    prefixes: tuple[str, ...] = ("/v1/chat/",)
    memory: Memory | None = None
    effort_field = "reasoning_effort"

    def claims(self, body: Mapping[str, Any]) -> bool:
        return is_chat(body) and not is_responses(body)

    def path_of(self, position: Position) -> str:
        """Parts are not always where the body has them."""
        return "messages"

    def unsupported_effort(
        self, model: str, effort: str, supported: Sequence[str]
    ) -> InvalidRequest:
        return errors.unsupported_effort(model, effort, supported, field=self.effort_field)

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
