"""Anthropic's Messages API: bytes to `Request`, answers to bytes.

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
from gateway.wire.anthropic import catalog, encode, errors
from gateway.wire.anthropic.parse import parse
from gateway.wire.anthropic.reported import EXCLUSIVE, INCLUSIVE
from gateway.wire.anthropic.stream import MessageStream
from gateway.wire.base import Answer, Endpoint, ErrorReply, Memory, Provider, StreamEncoder
from gateway.wire.sse import encode_event

__all__ = ["AnthropicWire"]


def _native_id(request_id: str) -> str:
    """The API's ids begin with `req_`."""
    if request_id.startswith("req_"):
        return request_id
    return "req_" + request_id.replace("-", "")


ANTHROPIC: Final = Provider(
    name="anthropic",
    title="Anthropic's",
    preset="anthropic",
    id_header="request-id",
    native_id=_native_id,
    usage_format=EXCLUSIVE,
    preset_usage_formats={"qwen": INCLUSIVE},
    client_headers=frozenset({"anthropic-version", "x-api-key"}),
    upstream_key_header="x-api-key",
)


class AnthropicWire:
    """A `Wire`. API versions 2023-06-01 and 2026-10-21."""

    provider = ANTHROPIC
    endpoints: tuple[Endpoint, ...] = (
        Endpoint("/v1/messages", "messages"),
        Endpoint("/v1/messages/count_tokens", "count_tokens", "count"),
    )
    prefixes: tuple[str, ...] = ("/v1/messages",)
    memory: Memory | None = None

    def claims(self, body: Mapping[str, Any]) -> bool:
        """Nothing is in this format alone: a body that no other format claims is."""
        return False

    def path_of(self, position: Position) -> str:
        """Positions match the body's coordinates one to one."""
        if position.level == "messages":
            return f"messages.{position.index}.content.{position.part}"
        return f"{position.level}.{position.index}"

    def unsupported_effort(
        self, model: str, effort: str, supported: Sequence[str]
    ) -> InvalidRequest:
        return errors.unsupported_effort(effort, supported)

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
