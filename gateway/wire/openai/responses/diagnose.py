"""Why a request read less than an earlier one left behind:

`prompt_cache_diagnostics`. Compares requests, not caches.

Source: openai 3.57 `types/responses/response.py`, page "Prompt cache diagnostics" (2026-09). Holds
hashes and lengths only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from engine.prompt.numerals import in_msgpack
from engine.prompt.types import Part, Tool, num_common
from gateway.request import Request
from gateway.wire.openai.responses.options import Traits, TraitsPair
from policies.pricing import Usage

REASONS: Final[Mapping[str, str]] = {
    "model": "model_changed",
    "prompt_cache_key": "prompt_cache_key_changed",
    "service_tier": "service_tier_changed",
    "tools": "tools_changed",
    "output_format": "text_format_changed",
    "effort": "reasoning_effort_changed",
    "verbosity": "verbosity_changed",
}
"""Settings in the order they are reported, and the reason each gives."""


def traits(request: Request) -> Traits:
    """Of a request whose conversation is complete."""
    prompt, words = request.prompt, request.parameters
    parts = [
        ((prompt.role_at(position) or "system").encode(), part)
        for position, part in prompt.parts()
        if position.level != "tools"
    ]
    tools = [(tool.name, tool.description, tool.parameters) for tool in prompt.tools]
    values = {name: words.get(name) for name in REASONS}
    values |= {
        "model": request.model,
        "tools": tools,
        "service_tier": request.service_tier,
    }
    settings = {name: _digest(value) for name, value in values.items()}
    return Traits(
        settings,
        [_part_digest(role, part) for role, part in parts],
        [_length(part) for _, part in parts],
    )


def diagnosis(pair: TraitsPair, usage: Usage) -> dict[str, Any]:
    """The first thing that differs; token counts are shares of the prompt by length, as the
    provider's are estimates."""
    now, earlier = pair.now, pair.earlier
    if earlier is None:
        return {"type": "comparison_response_not_found"}
    changed = next((name for name in REASONS if now.settings[name] != earlier.settings[name]), None)
    if changed is not None:
        missed = usage.num_prompt - usage.cache_read
        return _missed(REASONS[changed], missed, 0)
    common = num_common(now.input, earlier.input)
    if common < len(earlier.input):
        share = sum(now.lengths[:common]) / max(sum(now.lengths), 1)
        reusable = int(share * usage.num_prompt)
        return _missed(
            "input_changed", usage.num_prompt - max(reusable, usage.cache_read), reusable
        )
    return {"type": "cache_hit"} if usage.cache_read else {"type": "unavailable"}


def _missed(reason: str, num_missed: int, num_reusable: int) -> dict[str, Any]:
    counts = {"cache_missed_tokens": max(num_missed, 0), "comparison_reusable_tokens": num_reusable}
    return {"type": "cache_miss", "reason": reason} | counts


def _part_digest(role: bytes, part: Tool | Part) -> bytes:
    """Marks and call ids are not rendered, so they are not compared."""
    fields = {k: v for k, v in msgspec.to_builtins(part).items() if k not in ("cache", "call_id")}
    return _digest([role, fields])


def _digest(value: Any) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(value, enc_hook=in_msgpack)).digest()


def _length(part: Tool | Part) -> int:
    return len(msgspec.msgpack.encode(part, enc_hook=in_msgpack))
