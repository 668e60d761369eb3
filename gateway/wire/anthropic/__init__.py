"""Anthropic's Messages API: bytes to `Request`, answers to bytes.

Knows no HTTP server and no caching rules. API versions 2023-06-01 and 2026-10-21.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import orjson

from engine.prompt.types import Position
from gateway.wire.anthropic.catalog import encode_model, encode_models
from gateway.wire.anthropic.encode import encode_answer
from gateway.wire.anthropic.errors import encode_error, unsupported_effort
from gateway.wire.anthropic.parse import parse
from gateway.wire.anthropic.reported import EXCLUSIVE, INCLUSIVE
from gateway.wire.anthropic.stream import MessageStream
from gateway.wire.base import Endpoint, Provider, Wire
from gateway.wire.sse import encode_event


def _native_id(request_id: str) -> str:
    """The API's ids begin with `req_`."""
    if request_id.startswith("req_"):
        return request_id
    return "req_" + request_id.replace("-", "")


def _path_of(position: Position) -> str:
    """Positions match the body's coordinates one to one."""
    if position.level == "messages":
        return f"messages.{position.index}.content.{position.part}"
    return f"{position.level}.{position.index}"


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

MESSAGES_WIRE: Final = Wire(
    provider=ANTHROPIC,
    endpoints=(
        Endpoint("/v1/messages", "messages"),
        Endpoint("/v1/messages/count_tokens", "count_tokens", "count"),
    ),
    prefixes=("/v1/messages",),
    claims=lambda body: False,  # no field is this format's alone
    path_of=_path_of,
    unsupported_effort=unsupported_effort,
    parse=partial(parse, counting=False),
    parse_count=partial(parse, counting=True),
    encode_answer=encode_answer,
    stream=MessageStream,
    encode_count=lambda num_prompt: orjson.dumps({"input_tokens": num_prompt}),
    encode_models=encode_models,
    encode_model=encode_model,
    encode_error=encode_error,
    error_event=partial(encode_event, event="error"),
)
