"""Token counts in OpenAI's shapes: the prompt's count includes tokens read and written.

Knows no prices.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.request import Request
from gateway.wire.base import Answer
from policies.pricing import Usage
from policies.rules import UsageField

IN_DETAILS: Final = frozenset({"cache_creation_input_tokens", "cache_creation"})
"""Fields of others that stand in `prompt_tokens_details`."""


def chat_usage(request: Request, answer: Answer) -> dict[str, Any]:
    """`usage` of Chat Completions. Source: openai 3.57 `types/completion_usage.py`."""
    usage = answer.usage
    body: dict[str, Any] = {
        "prompt_tokens": usage.num_prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.num_prompt + usage.output,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.num_written,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": num_reasoning(answer),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    for name in request.usage_fields:
        holder = body["prompt_tokens_details"] if name in IN_DETAILS else body
        holder[name] = _others_field(name, request, usage)
    return body


def _others_field(name: UsageField, request: Request, usage: Usage) -> Any:
    """A further field of a provider with the same format: DeepSeek's hits and misses, Kimi's and
    Qwen's counters."""
    match name:
        case "prompt_cache_hit_tokens" | "cached_tokens":
            return usage.cache_read
        case "prompt_cache_miss_tokens":
            return usage.num_prompt - usage.cache_read
        case "cache_creation_input_tokens":
            return usage.num_written
        case "cache_creation":
            written = dict(usage.cache_write)
            return {
                f"ephemeral_{ttl}_input_tokens": written.get(ttl_s, 0)
                for ttl, ttl_s in request.ttl_classes.items()
            }


def num_reasoning(answer: Answer) -> int:
    """Output tokens that were reasoning, in every answer to the prompt."""
    return sum(each.num_thinking for each in (answer, *answer.others))
