"""Answers in Anthropic's shape, whole; `stream.py` has the event stream.

Source: anthropic 2.14 `types/message.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from engine.types import FinishReason
from gateway.request import Request
from gateway.wire import json_text
from gateway.wire.anthropic.settings import AnthropicOptions
from gateway.wire.anthropic.signature import Thinking
from gateway.wire.base import Answer, ToolCall
from policies.pricing import Usage
from policies.ttl import parse_duration

STOP_REASONS: Final[Mapping[FinishReason, str]] = {
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "length": "max_tokens",
    "context": "model_context_window_exceeded",
    "cancelled": "end_turn",
}

SHORT_CLASS: Final = "5m"
SHORT_S: Final = parse_duration(SHORT_CLASS)
"""Writes of every other class are reported as `ephemeral_1h`: the format has only the two."""

INVALID_JSON: Final = "INVALID_JSON"
"""Key of a call's input that was no JSON object, as the page "Fine-grained tool streaming" wraps it
(2026-08)."""


def encode_answer(request: Request, answer: Answer, *, created_at_s: float) -> bytes:
    """One whole Message. A request that only warmed the cache has no content and stopped at its
    zero tokens."""
    filled = {
        "content": _content(request, answer),
        "usage": usage(request, answer.usage, answer.num_thinking),
    }
    return json_text.dumps(message(request, answer.usage) | filled | end(request, answer))


def message_id(request: Request) -> str:
    """The id of the Message that answers a request."""
    return f"msg_{request.id.removeprefix('req_')}"


def call_id(request: Request, index: int) -> str:
    """The id of the answer's tool call number `index`: unlike in every other request, though a
    client repeat its own id."""
    seed = f"{request.id}/{request.started_at_s}/{index}"
    return f"toolu_{hashlib.sha256(seed.encode()).hexdigest()[:24]}"


def call_block(request: Request, index: int, call: ToolCall) -> dict[str, Any]:
    """A `tool_use` block; arguments that are no JSON object are kept as text under
    `INVALID_JSON`."""
    try:
        arguments = json_text.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    found = arguments if isinstance(arguments, dict) else {INVALID_JSON: call.arguments}
    return {"type": "tool_use", "id": call_id(request, index), "name": call.name, "input": found}


def message(request: Request, counts: Usage) -> dict[str, Any]:
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
        "diagnostics": request.options_of(AnthropicOptions).diagnosis,
        "usage": usage(request, counts),
    }


def end(request: Request, answer: Answer) -> dict[str, str | None]:
    """Why the answer ended. A turn that ends in calls waits for their results. `stop_details` is
    for refusals."""
    reason, stop = STOP_REASONS[answer.reason], None
    if request.prewarm:
        reason = "max_tokens"
    elif answer.calls and answer.reason == "stop":
        reason = "tool_use"
    elif answer.reason == "stop_sequence":
        stop = answer.stop
    return {"stop_reason": reason, "stop_sequence": stop, "stop_details": None}


def usage(request: Request, counts: Usage, num_thinking: int | None = None) -> dict[str, Any]:
    """Anthropic's `input_tokens` leaves out tokens that were read or written. `num_thinking` of the
    output were reasoning."""
    short_s = request.ttl_classes.get(SHORT_CLASS, SHORT_S)
    short = sum(tokens for ttl_s, tokens in counts.cache_write if ttl_s == short_s)
    return {
        "input_tokens": counts.input,
        "cache_creation_input_tokens": counts.num_written,
        "cache_read_input_tokens": counts.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": short,
            "ephemeral_1h_input_tokens": counts.num_written - short,
        },
        "output_tokens": counts.output,
        "output_tokens_details": None
        if num_thinking is None
        else {"thinking_tokens": num_thinking},
        "server_tool_use": None,
        "service_tier": request.service_tier or "standard",
        "inference_geo": None,
        "speed": request.parameters.get("speed", "standard"),
    }


def _content(request: Request, answer: Answer) -> list[dict[str, Any]]:
    """The blocks in the order of generation, as a stream shows them."""
    content: list[dict[str, Any]] = []
    calls = enumerate(answer.calls)
    for run in () if request.prewarm else answer.in_order():
        if run.kind == "call":
            content.append(call_block(request, *next(calls)))
        elif run.kind == "thinking":
            if run.text and (shown := Thinking.of(request)) is not None:
                shown.push(run.text)
                content.append(
                    {"type": "thinking", "thinking": shown.visible, "signature": shown.signature()}
                )
        elif content and content[-1]["type"] == "text":  # reasoning that is not shown stood between
            content[-1]["text"] += run.text
        elif run.text:
            content.append({"type": "text", "text": run.text, "citations": None})
    return content
