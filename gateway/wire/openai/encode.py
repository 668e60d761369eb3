"""Answers in OpenAI's shape: `chat.completion` and its chunks. Source: openai 3.57 `types/chat`.

Reasoning is shown as `reasoning_content`, the field DeepSeek introduced and vLLM kept: OpenAI's own
format has none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from engine.types import FinishReason, TokenLogprobs
from gateway.errors import GatewayError
from gateway.request import Request
from gateway.wire.base import Answer, ToolCall
from gateway.wire.openai.errors import error_body
from gateway.wire.openai.logprobs import token_logprobs
from gateway.wire.openai.options import ChatOptions
from gateway.wire.openai.usage import chat_usage
from gateway.wire.sse import KEEPALIVE_COMMENT, encode_event
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
    choices = [_choice(request, i, each) for i, each in enumerate((answer, *answer.others))]
    body = _envelope(request, "chat.completion", created_at_s)
    return orjson.dumps(body | {"choices": choices, "usage": chat_usage(request, answer)})


class ChunkStream:
    """A `StreamEncoder`: per choice the role, the text and calls, the finish reason; the usage if
    asked for; `[DONE]`.

    With `stream_options.include_usage` every chunk but the last has `"usage": null`.
    """

    input_field = "messages"

    def __init__(self, request: Request, *, created_at_s: float) -> None:
        self._request = request
        self._envelope = _envelope(request, "chat.completion.chunk", created_at_s)
        self._include_usage = request.options_of(ChatOptions).include_usage

    def start(self, usage: Usage) -> bytes:
        role = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._delta(role, choice=i) for i in range(self._request.num_choices))

    def delta(
        self,
        text: str,
        *,
        thinking: bool = False,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        if not text and not logprobs:
            return b""
        return self._delta(
            {"reasoning_content" if thinking else "content": text}, choice=choice, logprobs=logprobs
        )

    def call(
        self,
        index: int,
        call: ToolCall,
        *,
        begins: bool,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        """The first piece has id, type and name; every piece names the call by its index alone."""
        piece: dict[str, Any] = {"index": index}
        if begins:
            piece |= {"id": call_id(self._request, index, choice), "type": "function"}
        piece["function"] = (
            {"name": call.name, "arguments": call.arguments}
            if begins
            else {"arguments": call.arguments}
        )
        return self._delta({"tool_calls": [piece]}, choice=choice, logprobs=logprobs)

    def finish(self, answer: Answer) -> bytes:
        every = enumerate((answer, *answer.others))
        last = b"".join(self._end(finish_reason(each), choice=i) for i, each in every)
        if self._include_usage:
            usage = chat_usage(self._request, answer)
            last += encode_event(orjson.dumps(self._envelope | {"choices": [], "usage": usage}))
        return last + DONE

    def error(self, error: GatewayError) -> bytes:
        return encode_event(error_body(error, input_field=self.input_field)) + DONE

    def keepalive(self) -> bytes:
        return KEEPALIVE_COMMENT

    def _end(self, reason: str, *, choice: int) -> bytes:
        """The last chunk of one choice."""
        return self._delta({}, choice=choice, finish_reason=reason)

    def _delta(
        self,
        delta: dict[str, Any],
        *,
        choice: int,
        finish_reason: str | None = None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> bytes:
        shown = {"content": token_logprobs(logprobs), "refusal": None} if logprobs else None
        return self._chunk(
            {"index": choice, "delta": delta, "logprobs": shown, "finish_reason": finish_reason}
        )

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        chunk = self._envelope | {"choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return encode_event(orjson.dumps(chunk))


def finish_reason(answer: Answer) -> str:
    """Calls that were written to their end are the reason to stop; calls cut off by a limit are
    not."""
    return (
        "tool_calls" if answer.calls and answer.reason == "stop" else FINISH_REASONS[answer.reason]
    )


def call_id(request: Request, index: int, choice: int = 0) -> str:
    """The id of the answer's tool call number `index`: the same streamed or not, and unlike in
    every other request, though a client repeat its own id."""
    seed = f"{request.id}/{request.started_at_s}/{choice}/{index}"
    return f"call_{hashlib.sha256(seed.encode()).hexdigest()[:24]}"


def _choice(request: Request, index: int, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if answer.calls and not answer.text else answer.text,
        "refusal": None,
        "annotations": [],
    }
    if answer.thinking:
        message["reasoning_content"] = answer.thinking
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call_id(request, i, index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for i, call in enumerate(answer.calls)
        ]
    wanted = request.sampling.num_logprobs is not None
    return {
        "index": index,
        "message": message,
        "logprobs": {"content": token_logprobs(answer.logprobs), "refusal": None}
        if wanted
        else None,
        "finish_reason": finish_reason(answer),
    }


def _envelope(request: Request, kind: str, created_at_s: float) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{request.id.removeprefix('req_')}",
        "object": kind,
        "created": int(created_at_s),
        "model": request.model,
        "service_tier": "default",
        "system_fingerprint": None,
    }
