"""Usage as an upstream with one of OpenAI's formats reports it,
and the fields for caches that similar providers and gateways add.

docs/usage-shapes.md has every shape with its source. vLLM's `created_cache_tokens` is not read: it
counts the full blocks an engine computed, keeps as long as it has room, and promises to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gateway.wire.reported import Fields, ReportedUsage, UsageCounts, UsageFormat, count, objects

_FAILED: Final = frozenset({"error", "response.failed"})
_ENDED: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


def usages(message: Fields) -> Iterator[Fields]:
    """Of an answer or chunk, of an event that carries the whole response, and of the places where
    llama.cpp, Groq and Kimi have it besides."""
    timings = next(objects(message.get("timings")), {})
    if (cached := count(timings.get("cache_n"))) is not None:
        yield {"cached_tokens": cached}
    choices = message.get("choices")
    holders = (
        *(choices if isinstance(choices, list) else ()),
        message.get("x_groq"),
        message.get("response"),
        message,
    )
    yield from objects(*(holder.get("usage") for holder in objects(*holders)))


def failed(message: Fields) -> bool:
    return message.get("type") in _FAILED or bool(message.get("error"))


def ended(message: Fields) -> bool:
    """Of Responses; Chat Completions end in `[DONE]`, which is no message."""
    return message.get("type") in _ENDED


def read_usage(fields: Fields) -> ReportedUsage | None:
    """`prompt_tokens` (`input_tokens` in Responses) includes tokens read and written, but not in
    usage of Anthropic's kind that a gateway passes through. `completion_tokens` includes reasoning,
    but not xAI's, which adds up to the total with it; tokens of the total that are reported nowhere
    are an anomaly."""
    prompt = count(fields.get("prompt_tokens"), fields.get("input_tokens"))
    if prompt is None:
        return None
    details = next(
        objects(fields.get("prompt_tokens_details"), fields.get("input_tokens_details")), {}
    )
    read = _known(details, _DETAILS_READ, fields, _READ)
    written = _known(details, _DETAILS_WRITTEN, fields, _WRITTEN)
    split = _split(fields, details)
    cached = max(0, read or 0) + max(
        0, sum(tokens or 0 for tokens in split.values()) if written is None else written
    )
    output = count(fields.get("completion_tokens"), fields.get("output_tokens"))
    if _is_exclusive(fields, prompt, cached, output or 0):
        prompt += cached
    parts = next(
        objects(fields.get("completion_tokens_details"), fields.get("output_tokens_details")), {}
    )
    beside = max(0, (count(fields.get("total_tokens")) or 0) - prompt - (output or 0))
    if beside and beside == count(parts.get("reasoning_tokens")):
        output, beside = (output or 0) + beside, 0
    usage = UsageCounts(prompt - cached, read, written, split, output).settled()
    return replace(usage, anomaly=True) if beside else usage


_DETAILS_READ: Final = ("cached_tokens", "cache_read_input_tokens")
_READ: Final = (
    *("prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens", "cache_read_input_tokens"),
)
_DETAILS_WRITTEN: Final = (
    *("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens"),
)
_WRITTEN: Final = ("cache_creation_input_tokens",)


def _known(
    details: Fields, names: tuple[str, ...], fields: Fields, flat_names: tuple[str, ...]
) -> int | None:
    """The first count that is not 0: some have a 0 in the one place and the count in the other."""
    counts = (
        *(count(details.get(name)) for name in names),
        *(count(fields.get(name)) for name in flat_names),
    )
    known = [tokens for tokens in counts if tokens is not None]
    return next((tokens for tokens in known if tokens), known[0] if known else None)


def _split(fields: Fields, details: Fields) -> dict[str, int | None]:
    by_class = next(objects(details.get("cache_write_tokens_details")), {})
    creation = next(
        objects(
            details.get("cache_creation"),
            details.get("cache_creation_token_details"),
            fields.get("cache_creation"),
        ),
        {},
    )
    return {
        "12h": count(by_class.get("ttl_12h_tokens")),
        "1h": count(creation.get("ephemeral_1h_input_tokens")),
        "30m": count(by_class.get("ttl_30m_tokens")),
        "5m": count(creation.get("ephemeral_5m_input_tokens")),
    }


def _is_exclusive(fields: Fields, prompt: int, cached: int, output: int) -> bool:
    """Whether the prompt's count leaves out what was read and written: the total says so, or, where
    there is none, Anthropic's names without OpenAI's, or more tokens than the prompt has."""
    if not cached or not any(count(fields.get(name)) for name in _ANTHROPICS):
        return False
    total = count(fields.get("total_tokens"))
    if total is not None and total in (prompt + output, prompt + cached + output):
        return total != prompt + output
    return count(fields.get("prompt_tokens")) is None or cached > prompt


_ANTHROPICS: Final = ("cache_read_input_tokens", "cache_creation_input_tokens")
_SPLITS: Final = {
    "cache_write_tokens": "cache_write_tokens_details",
    "cache_creation_input_tokens": "cache_creation",
    "cache_creation_tokens": "cache_creation_token_details",
}
_PROMPT: Final = frozenset(
    {
        *("prompt_tokens", "prompt_tokens_details", "input_tokens", "input_tokens_details"),
        *("prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "cached_tokens"),
        *("cache_read_input_tokens", "num_cached_tokens"),
        *_SPLITS,
        *_SPLITS.values(),
    }
)

USAGE: Final = UsageFormat(usages, failed, read_usage, _PROMPT, ended, _SPLITS)
