"""Fields of a body that no API has but that are spelled nearly like one that matters. Pure.

Providers ignore or refuse them; here they are ignored as before, and a warning names the field that
was probably meant. Free-form JSON (schemas, arguments) is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

FIELDS: Final = frozenset(
    {
        # Anthropic: bodies, blocks, tools
        *("billing_policy", "cache_control", "citations", "compaction", "container"),
        *("context_management", "defer_loading", "diagnostics", "fallback_credit_token"),
        *("fallbacks", "inference_geo", "input_schema", "is_error", "max_tokens", "mcp_servers"),
        *("messages", "metadata", "model", "output_config", "output_format", "service_tier"),
        *("signature", "speed", "stop_sequences", "stream", "system", "temperature", "thinking"),
        *("thread", "tool_choice", "tool_use_id", "tools", "top_k", "top_p", "user_profile_id"),
        *("workspace_id", "content", "text", "type", "role", "source", "title", "context"),
        *("description", "strict", "examples", "input", "name", "data", "betas"),
        # OpenAI: bodies, messages, parts
        *("access_programs", "audio", "background", "background_options", "best_of"),
        *("conversation", "echo", "encrypted_content", "frequency_penalty", "function_call"),
        *("functions", "image", "include", "instructions", "logit_bias", "logprobs"),
        *("max_completion_tokens", "max_output_tokens", "max_tool_calls", "modalities"),
        *("moderation", "parallel_tool_calls", "parameters", "prediction", "presence_penalty"),
        *("previous_response_id", "prompt", "prompt_cache_breakpoint", "prompt_cache_key"),
        *("prompt_cache_options", "prompt_cache_retention", "reasoning", "reasoning_content"),
        *("reasoning_effort", "refusal", "response_format", "safety_identifier", "stop", "store"),
        *("stream_options", "suffix", "summary", "tool_call_id", "tool_calls", "top_logprobs"),
        *("truncation", "verbosity", "web_search_options", "function", "arguments", "call_id"),
        *("output", "status", "namespace", "annotations", "image_url", "file_id", "user"),
        # Others that are read here
        *("guided_choice", "guided_grammar", "guided_json", "guided_regex", "ignore_eos"),
        *("min_p", "repetition_penalty", "structured_outputs", "seed"),
    }
)
"""All fields that a body may have in the places that are looked at."""

MEANT: Final = (
    *("cache_control", "context_management", "frequency_penalty", "input_schema", "logit_bias"),
    *("max_completion_tokens", "max_output_tokens", "max_tokens", "output_config"),
    *("parallel_tool_calls", "presence_penalty", "previous_response_id"),
    *("prompt_cache_breakpoint", "prompt_cache_key", "prompt_cache_options"),
    *("prompt_cache_retention", "reasoning_effort", "response_format", "service_tier"),
    *("stop_sequences", "stream_options", "temperature", "thinking", "tool_choice"),
    *("top_logprobs", "verbosity"),
)
"""Fields without which the answer or the bill is another."""

SIMILARITY: Final = 0.87
MAX_LENGTH: Final = 40
MAX_UNKNOWN: Final = 16
"""Names that are compared: more than these are no slip."""

_LISTS: Final = ("system", "messages", "input", "tools")


def misspelt(body: Mapping[str, Any]) -> tuple[str, ...]:
    """A warning for each field that was probably meant: `cache_control-misspelt`."""
    unknown: set[str] = set()
    for node in _objects(body):
        unknown.update(node.keys() - FIELDS)
        if len(unknown) > MAX_UNKNOWN:
            return ()
    found = (_meant(name) for name in sorted(unknown))
    return tuple(dict.fromkeys(f"{name}-misspelt" for name in found if name is not None))


def _objects(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The body, its messages, items, tools and system blocks, and the parts of their content."""
    yield body
    for key in _LISTS:
        for item in _dicts(body.get(key)):
            yield item
            yield from _dicts(item.get("content"))


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if type(value) is list:
        yield from (item for item in value if type(item) is dict)


def _meant(name: str) -> str | None:
    if len(name) > MAX_LENGTH:
        return None
    plain = name.lower().replace("-", "_")
    return next(iter(get_close_matches(plain, MEANT, 1, SIMILARITY)), None)
