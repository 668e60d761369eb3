"""The caching fields of both APIs: breakpoints, their TTLs,
and the settings that separate one cache from another.

Source: openai 3.57 `types/chat/completion_create_params.py`,
`types/responses/response_create_params.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from engine.prompt.types import CacheMark
from gateway.wire import json_text
from gateway.wire.fields import Node

TTLS_S: Final[Mapping[str, float]] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "12h": 43200.0}
DEFAULT_BREAKPOINT_TTL: Final = "30m"
DEFAULT_CACHE_CONTROL_TTL: Final = "5m"
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
VERBOSITIES: Final = ("low", "medium", "high")
DEFAULT_EFFORT: Final = "medium"
DEFAULT_VERBOSITY: Final = "medium"
"""Said or left out, these share one cache."""
RETENTIONS: Final = ("in_memory", "in-memory", "24h")


def caching_parameters(body: Node) -> dict[str, Any]:
    """`prompt_cache_key`, `prompt_cache_options` and `prompt_cache_retention` in the dialects'
    words, defaults left out.

    So is `context_management`, which would change the prompt.
    """
    parameters: dict[str, Any] = {}
    if key := body.text_or("prompt_cache_key", ""):
        parameters["prompt_cache_key"] = key
    options = body.child("prompt_cache_options")
    modes = ("implicit", "explicit")
    if options is not None and options.choice("mode", modes, "implicit") == "explicit":
        parameters["cache_mode"] = "explicit"
    if ttl := request_ttl(body):
        parameters["cache_ttl_s"] = TTLS_S[ttl]
    if managed := body.json_value("context_management"):
        parameters["context_management"] = hashlib.sha256(json_text.dumps(managed)).hexdigest()
    if (
        body.has("prompt_cache_retention")
        and body.choice("prompt_cache_retention", RETENTIONS) == "24h"
    ):
        parameters["retention_s"] = 86400.0
    return parameters


def effort_parameters(
    effort: Node | None, effort_key: str, verbosity: Node | None
) -> dict[str, Any]:
    """Effort and verbosity from the objects that hold them in the API at hand, defaults left
    out."""
    parameters: dict[str, Any] = {}
    if effort is not None:
        word = effort.choice(effort_key, EFFORTS, DEFAULT_EFFORT)
        if word != DEFAULT_EFFORT:
            parameters["effort"] = word
    if verbosity is not None:
        word = verbosity.choice("verbosity", VERBOSITIES, DEFAULT_VERBOSITY)
        if word != DEFAULT_VERBOSITY:
            parameters["verbosity"] = word
    return parameters


def request_ttl(body: Node) -> str | None:
    """`prompt_cache_options.ttl`: for every breakpoint that names no TTL of its own."""
    options = body.child("prompt_cache_options")
    return (
        options.choice("ttl", tuple(TTLS_S)) if options is not None and options.has("ttl") else None
    )


def breakpoint_mark(part: Node, ttl: str) -> CacheMark | None:
    """OpenAI's own breakpoint, else a `cache_control` as aggregators pass it on. `ttl` is for one
    that names none."""
    explicit = part.child("prompt_cache_breakpoint")
    if explicit is None:
        return cache_control(part)
    explicit.choice("mode", ("explicit",))
    return CacheMark(TTLS_S[explicit.choice("ttl", tuple(TTLS_S), ttl)])


def cache_control(node: Node) -> CacheMark | None:
    """The object's `{"type": "ephemeral", "ttl"?}`; other members are ignored."""
    control = node.child("cache_control")
    if control is None:
        return None
    control.choice("type", ("ephemeral",))
    return CacheMark(TTLS_S[control.choice("ttl", tuple(TTLS_S), DEFAULT_CACHE_CONTROL_TTL)])
