"""Answers in OpenAI's shape: `chat.completion`, its chunks, their usage. Source: openai 3.57 `types/chat`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from engine.types import FinishReason, TokenLogprobs
from gateway.errors import GatewayError
from gateway.request import Request
from gateway.sse import KEEPALIVE_COMMENT, encode_event
from gateway.wire.base import Answer, ToolCall
from gateway.wire.openai.errors import error_body
from policies.pricing import Usage

FINISH_REASONS: Final[Mapping[FinishReason, str]] = {
    "stop": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "context": "length",
    "cancelled": "stop",
}

DONE: Final = encode_event(b"[DONE]")


def encode_answer(request: Request, answer: Answer, *, created_at_s: float) -> bytes:
    """One whole `chat.completion`."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH_REASONS[answer.reason]}
    body = _envelope(request, "chat.completion", created_at_s)
    return orjson.dumps(body | {"choices": [choice], "usage": _usage(answer.usage)})


class ChunkStream:
    """A `StreamEncoder`: the role, the text, the finish reason, the usage if asked for, `[DONE]`.

    With `stream_options.include_usage` every chunk but the last says `"usage": null`.
    """

    def __init__(self, request: Request, *, created_at_s: float) -> None:
        self._request = request
        self._envelope = _envelope(request, "chat.completion.chunk", created_at_s)
        self._include_usage = bool(request.wire_options.get("include_usage"))

    def start(self, usage: Usage) -> bytes:
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def delta(self, text: str, *, thinking: bool = False, logprobs: tuple[TokenLogprobs, ...] = ()) -> bytes:
        return self._chunk({"content": text}) if text and not thinking else b""

    def call(self, index: int, call: ToolCall, *, begins: bool, logprobs: tuple[TokenLogprobs, ...] = ()) -> bytes:
        function = {"arguments": call.arguments} | ({"name": call.name} if begins else {})
        opening = {"id": call_id(self._request, index), "type": "function"} if begins else {}
        return self._chunk({"tool_calls": [{"index": index} | opening | {"function": function}]})

    def finish(self, answer: Answer) -> bytes:
        last = self._chunk({}, finish_reason=FINISH_REASONS[answer.reason])
        if self._include_usage:
            last += _event(self._envelope | {"choices": [], "usage": _usage(answer.usage)})
        return last + DONE

    def error(self, error: GatewayError) -> bytes:
        return encode_event(error_body(error)) + DONE

    def keepalive(self) -> bytes:
        return KEEPALIVE_COMMENT

    def _chunk(self, delta: dict[str, Any], *, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk = self._envelope | {"choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return _event(chunk)


def call_id(request: Request, index: int) -> str:
    """The id of the answer's tool call number `index`: the same streamed or not."""
    return f"call_{request.id.removeprefix('req_').replace('-', '')}_{index}"


def _envelope(request: Request, kind: str, created_at_s: float) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{request.id.removeprefix('req_')}",
        "object": kind,
        "created": int(created_at_s),
        "model": request.model,
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """OpenAI's `prompt_tokens` includes what was read and written."""
    return {
        "prompt_tokens": usage.num_prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.num_prompt + usage.output,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.num_written,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _event(data: dict[str, Any]) -> bytes:
    return encode_event(orjson.dumps(data))
