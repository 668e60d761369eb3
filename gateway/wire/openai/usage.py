"""Token counts in OpenAI's shapes: what was read and written is part of the prompt's count. Knows no prices."""

from __future__ import annotations

from typing import Any

from gateway.wire.base import Answer


def chat_usage(answer: Answer) -> dict[str, Any]:
    """`usage` of Chat Completions. Source: openai 3.57 `types/completion_usage.py`."""
    usage = answer.usage
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
            "reasoning_tokens": num_reasoning(answer),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def num_reasoning(answer: Answer) -> int:
    """Output tokens that were reasoning, in every answer to the prompt."""
    return sum(each.num_thinking for each in (answer, *answer.others))
