"""Usage as an upstream with one of OpenAI's formats reports it,
and the fields for caches that similar providers add.

Sources: openai 3.57 `types/completion_usage.py`, `types/responses/response_usage.py`; the documents
of DeepSeek (`prompt_cache_hit_tokens`), Kimi (`cached_tokens`) and Model Studio
(`cache_creation_input_tokens`).

vLLM's `created_cache_tokens` is not read: it counts the full blocks an engine computed, keeps as
long as it has room, and promises to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gateway.wire.reported import Fields, ReportedUsage, UsageCounts, UsageFormat, count, objects

_FAILED: Final = frozenset({"error", "response.failed"})
_ENDED: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


def usages(message: Fields) -> Iterator[Fields]:
    """Of an answer or chunk, and of an event that carries the whole response."""
    response = message.get("response")
    return objects(
        response.get("usage") if isinstance(response, dict) else None, message.get("usage")
    )


def failed(message: Fields) -> bool:
    return message.get("type") in _FAILED or bool(message.get("error"))


def ended(message: Fields) -> bool:
    """Of Responses; Chat Completions end in `[DONE]`, which is no message."""
    return message.get("type") in _ENDED


def read_usage(fields: Fields) -> ReportedUsage | None:
    """`prompt_tokens` (`input_tokens` in Responses) includes tokens read and written.
    `completion_tokens` includes reasoning, but not xAI's, which adds up to the total with it;
    tokens of the total that are reported nowhere are an anomaly."""
    prompt = count(fields.get("prompt_tokens"), fields.get("input_tokens"))
    if prompt is None:
        return None
    details = next(
        objects(fields.get("prompt_tokens_details"), fields.get("input_tokens_details")), {}
    )
    read = count(
        details.get("cached_tokens"),
        fields.get("prompt_cache_hit_tokens"),
        fields.get("cached_tokens"),
    )
    written = count(
        details.get("cache_write_tokens"),
        details.get("cache_creation_input_tokens"),
        fields.get("cache_creation_input_tokens"),
    )
    by_class = next(objects(details.get("cache_write_tokens_details")), {})
    creation = next(objects(details.get("cache_creation"), fields.get("cache_creation")), {})
    split = {
        "12h": count(by_class.get("ttl_12h_tokens")),
        "1h": count(creation.get("ephemeral_1h_input_tokens")),
        "30m": count(by_class.get("ttl_30m_tokens")),
        "5m": count(creation.get("ephemeral_5m_input_tokens")),
    }
    cached = max(0, read or 0) + max(
        0, sum(tokens or 0 for tokens in split.values()) if written is None else written
    )
    output = count(fields.get("completion_tokens"), fields.get("output_tokens"))
    parts = next(
        objects(fields.get("completion_tokens_details"), fields.get("output_tokens_details")), {}
    )
    beside = max(0, (count(fields.get("total_tokens")) or 0) - prompt - (output or 0))
    if beside and beside == count(parts.get("reasoning_tokens")):
        output, beside = (output or 0) + beside, 0
    usage = UsageCounts(prompt - cached, read, written, split, output).settled()
    return replace(usage, anomaly=True) if beside else usage


_SPLITS: Final = {
    "cache_write_tokens": "cache_write_tokens_details",
    "cache_creation_input_tokens": "cache_creation",
}
_PROMPT: Final = frozenset(
    {
        *("prompt_tokens", "prompt_tokens_details", "input_tokens", "input_tokens_details"),
        *("prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "cached_tokens"),
        *_SPLITS,
        *_SPLITS.values(),
    }
)

USAGE: Final = UsageFormat(usages, failed, read_usage, _PROMPT, ended, _SPLITS)
