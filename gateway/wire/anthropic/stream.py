"""An answer as Anthropic's event stream.

Source: anthropic 2.14 `lib/streaming/_messages.py`, page "Streaming" (2026-08).
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import orjson

from engine.types import TokenLogprobs
from gateway.errors import GatewayError
from gateway.request import Request
from gateway.wire.anthropic.encode import call_id, end, message, usage
from gateway.wire.anthropic.errors import error_body
from gateway.wire.anthropic.signature import Thinking
from gateway.wire.base import Answer, ToolCall
from gateway.wire.sse import KEEPALIVE_COMMENT, encode_event
from policies.pricing import Usage

PING: Final = encode_event(b'{"type":"ping"}', "ping")

_CUMULATIVE: Final = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
)

_Open: TypeAlias = Literal["text", "thinking"] | int | None
"""The block that is open: text, reasoning, or the tool call of that number."""


class MessageStream:
    """A `StreamEncoder`: message_start, the blocks' events, message_delta, message_stop.

    A block opens with its first piece, so an empty answer has no block, as in an answer that is not
    streamed.
    """

    def __init__(self, request: Request, *, created_at_s: float) -> None:
        self._request = request
        self._started = False
        self._open: _Open = None
        self._num_blocks = 0
        self._thinking = Thinking.of(request)

    def start(self, usage: Usage) -> bytes:
        self._started = True
        return _event("message_start", message=message(self._request, usage))

    def delta(
        self,
        text: str,
        *,
        thinking: bool = False,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        if not text:
            return b""
        if not thinking:
            opening = self._opened("text", {"type": "text", "text": ""})
            delta = {"type": "text_delta", "text": text}
        elif self._thinking is None:
            return b""
        else:
            block = {"type": "thinking", "thinking": "", "signature": ""}
            opening = self._opened("thinking", block)
            self._thinking.push(text)
            if self._thinking.hidden:
                return opening
            delta = {"type": "thinking_delta", "thinking": text}
        return opening + _event("content_block_delta", index=self._num_blocks, delta=delta)

    def call(
        self,
        index: int,
        call: ToolCall,
        *,
        begins: bool,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        opening = b""
        if begins:
            block = {
                "type": "tool_use",
                "id": call_id(self._request, index),
                "name": call.name,
                "input": {},
            }
            opening = self._opened(index, block)
        if not call.arguments:
            return opening
        delta = {"type": "input_json_delta", "partial_json": call.arguments}
        return opening + _event("content_block_delta", index=self._num_blocks, delta=delta)

    def finish(self, answer: Answer) -> bytes:
        """`message_delta` repeats the cumulative counters; it has no TTL breakdown, which
        `message_start` carried."""
        counts = usage(self._request, answer.usage, answer.num_thinking)
        delta = _event(
            "message_delta",
            delta=end(self._request, answer),
            usage={name: counts[name] for name in _CUMULATIVE},
        )
        return self._closed() + delta + _event("message_stop")

    def error(self, error: GatewayError) -> bytes:
        return encode_event(error_body(error, request_id=self._request.id), "error")

    def keepalive(self) -> bytes:
        """A ping; before `message_start`, which clients expect first, a comment."""
        return PING if self._started else KEEPALIVE_COMMENT

    def _opened(self, kind: _Open, block: dict[str, Any]) -> bytes:
        """The events that make `kind` the open block; none if it is."""
        if self._open == kind:
            return b""
        closing = self._closed()
        self._open = kind
        return closing + _event("content_block_start", index=self._num_blocks, content_block=block)

    def _closed(self) -> bytes:
        """The events that close the open block, if there is one. Reasoning is signed at its end."""
        if self._open is None:
            return b""
        signing = b""
        if self._open == "thinking" and self._thinking is not None:
            delta = {"type": "signature_delta", "signature": self._thinking.signature()}
            signing = _event("content_block_delta", index=self._num_blocks, delta=delta)
            self._thinking = Thinking(self._thinking.hidden)
        closing = _event("content_block_stop", index=self._num_blocks)
        self._open = None
        self._num_blocks += 1
        return signing + closing


def _event(kind: str, **fields: Any) -> bytes:
    return encode_event(orjson.dumps({"type": kind} | fields), kind)
