"""The toy's stream: a line per piece, and the usage at the end."""

from __future__ import annotations

import orjson

from engine.types import TokenLogprobs
from gateway.errors import GatewayError
from gateway.wire.base import Answer, ToolCall
from gateway.wire.sse import KEEPALIVE_COMMENT, encode_event
from policies.pricing import Usage
from tests.fakes.toy.wire.usage import toy_usage


class ToyStream:
    """A `StreamEncoder`."""

    def start(self, usage: Usage) -> bytes:
        return encode_event(orjson.dumps({"usage": toy_usage(usage)}))

    def delta(
        self,
        text: str,
        *,
        thinking: bool = False,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        return encode_event(orjson.dumps({"piece": text}))

    def call(
        self,
        index: int,
        call: ToolCall,
        *,
        begins: bool,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        return b""

    def finish(self, answer: Answer) -> bytes:
        return encode_event(orjson.dumps({"usage": toy_usage(answer.usage)}))

    def error(self, error: GatewayError) -> bytes:
        return encode_event(orjson.dumps({"oops": error.message}))

    def keepalive(self) -> bytes:
        return KEEPALIVE_COMMENT
