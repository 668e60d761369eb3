"""Answers in Anthropic's shape: the Message and its event stream. Source: anthropic 2.14 `types/message.py`, `usage.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from engine.types import FinishReason, TokenLogprobs
from gateway.errors import GatewayError
from gateway.request import Request
from gateway.sse import KEEPALIVE_COMMENT, encode_event
from gateway.wire.anthropic.errors import error_body
from gateway.wire.base import Answer, ToolCall
from policies.pricing import Usage

STOP_REASONS: Final[Mapping[FinishReason, str]] = {
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "length": "max_tokens",
    "context": "model_context_window_exceeded",
    "cancelled": "end_turn",
}

SHORT_TTL_S: Final = 300.0
"""Writes of longer classes than this are reported as `ephemeral_1h`: the format has only the two."""

PING: Final = encode_event(b'{"type":"ping"}', "ping")


def encode_answer(request: Request, answer: Answer) -> bytes:
    """One whole Message. A request that only warmed the cache has no content and stopped at its zero tokens."""
    content = [] if request.prewarm or not answer.text else [{"type": "text", "text": answer.text, "citations": None}]
    return orjson.dumps(_message(request, answer.usage) | {"content": content} | _end(request, answer))


class MessageStream:
    """A `StreamEncoder`: message_start, the text block's events, message_delta, message_stop.

    The text block opens with the first text, so an empty answer has no block, as in an answer that is not streamed.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._started = False
        self._open = False

    def start(self, usage: Usage) -> bytes:
        self._started = True
        return _event({"type": "message_start", "message": _message(self._request, usage)})

    def delta(self, text: str, *, thinking: bool = False, logprobs: tuple[TokenLogprobs, ...] = (), choice: int = 0) -> bytes:
        if not text or thinking:
            return b""
        opening = b""
        if not self._open:
            self._open = True
            block = {"type": "text", "text": ""}
            opening = _event({"type": "content_block_start", "index": 0, "content_block": block})
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        return opening + _event(delta)

    def call(
        self, index: int, call: ToolCall, *, begins: bool, logprobs: tuple[TokenLogprobs, ...] = (), choice: int = 0
    ) -> bytes:
        return b""

    def finish(self, answer: Answer) -> bytes:
        """`message_delta` repeats the cumulative counters; it has no TTL breakdown, which `message_start` carried."""
        closing = _event({"type": "content_block_stop", "index": 0}) if self._open else b""
        usage = _usage(answer.usage)
        delta = {
            "type": "message_delta",
            "delta": _end(self._request, answer),
            "usage": {name: usage[name] for name in _CUMULATIVE},
        }
        return closing + _event(delta) + _event({"type": "message_stop"})

    def error(self, error: GatewayError) -> bytes:
        return encode_event(error_body(error, request_id=self._request.id), "error")

    def keepalive(self) -> bytes:
        """A ping; before `message_start`, which clients expect first, a comment."""
        return PING if self._started else KEEPALIVE_COMMENT


_CUMULATIVE: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


def message_id(request: Request) -> str:
    return f"msg_{request.id.removeprefix('req_')}"


def _message(request: Request, usage: Usage) -> dict[str, Any]:
    """The Message before anything is generated."""
    return {
        "id": message_id(request),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": _usage(usage),
    }


def _end(request: Request, answer: Answer) -> dict[str, str | None]:
    """Why the answer ended."""
    if request.prewarm:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    stop = answer.stop if answer.reason == "stop_sequence" else None
    return {"stop_reason": STOP_REASONS[answer.reason], "stop_sequence": stop}


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's `input_tokens` leaves out what was read and written."""
    short = sum(tokens for ttl_s, tokens in usage.cache_write if ttl_s <= SHORT_TTL_S)
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.num_written,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": short,
            "ephemeral_1h_input_tokens": usage.num_written - short,
        },
        "output_tokens": usage.output,
        "service_tier": "standard",
    }


def _event(data: dict[str, Any]) -> bytes:
    return encode_event(orjson.dumps(data), data["type"])
