"""OpenAI's Chat Completions: bytes to `Request`, answers to bytes.

Knows no HTTP server and no caching rules.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import orjson

from gateway.wire.base import Endpoint, Provider, Wire
from gateway.wire.openai.catalog import encode_model, encode_models
from gateway.wire.openai.encode import DONE, ChunkStream, encode_answer
from gateway.wire.openai.errors import encode_error, unsupported_effort
from gateway.wire.openai.parse import parse
from gateway.wire.openai.recognize import is_chat
from gateway.wire.openai.reported import USAGE
from gateway.wire.sse import encode_event

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

CHAT_WIRE: Final = Wire(
    provider=OPENAI,
    endpoints=(
        Endpoint("/v1/chat/completions", "chat_completions"),
        *(Endpoint(f"/v1/{path}", path.replace("/", "_"), "forward") for path in FORWARDED),
    ),
    prefixes=("/v1/chat/",),
    claims=is_chat,
    path_of=lambda position: "messages",  # parts are not always where the body has them
    unsupported_effort=partial(unsupported_effort, field="reasoning_effort"),
    parse=parse,
    parse_count=parse,
    encode_answer=encode_answer,
    stream=ChunkStream,
    encode_count=lambda num_prompt: orjson.dumps(
        {"object": "response.input_tokens", "input_tokens": num_prompt}
    ),
    encode_models=encode_models,
    encode_model=encode_model,
    encode_error=encode_error,
    error_event=lambda body: encode_event(body) + DONE,
)
