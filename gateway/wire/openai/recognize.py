"""Telling a Chat Completions body from one of another format, without its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

CHAT_FIELDS: Final = frozenset(
    {
        *("frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "n"),
        *("parallel_tool_calls", "presence_penalty", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "reasoning_effort", "response_format", "seed", "stop"),
        *("store", "stream_options", "top_logprobs", "verbosity"),
    }
)
"""Fields of Chat Completions that Anthropic's Messages has not."""


def is_chat(body: Mapping[str, Any]) -> bool:
    """Whether the body has fields or roles that only this format has, or lacks `max_tokens`, which
    Anthropic's Messages requires."""
    if is_responses(body):
        return False
    messages = _objects(body.get("messages"))
    parts = [part for message in messages for part in _objects(message.get("content"))]
    return (
        bool(body.keys() & CHAT_FIELDS)
        or ("max_tokens" not in body and "system" not in body)
        or any(tool.get("type") == "function" for tool in _objects(body.get("tools")))
        or any(
            message.get("role") in ("developer", "tool") or "tool_calls" in message
            for message in messages
        )
        or any("prompt_cache_breakpoint" in part for part in parts)
        or (bool(messages) and messages[0].get("role") == "system")
    )


def is_responses(body: Mapping[str, Any]) -> bool:
    """Whether the body has the input of the Responses API."""
    return "input" in body and "messages" not in body


def _objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none of anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
