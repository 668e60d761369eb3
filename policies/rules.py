"""Which provider's caching rules a request follows, as numbers.

The rules' logic lives in the gateway's dialects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from policies.ttl import parse_duration

PresetName: TypeAlias = Literal[
    "anthropic", "openai", "gemini", "deepseek", "kimi", "qwen", "openrouter"
]
"""A provider's rules."""

UsageField: TypeAlias = Literal[
    "prompt_cache_hit_tokens",
    "prompt_cache_miss_tokens",
    "cached_tokens",
    "cache_creation_input_tokens",
    "cache_creation",
]
"""A field by which another provider with OpenAI's format tells what was cached."""

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model thinks, in the words of any provider."""

SingleFlight: TypeAlias = Literal["off", "read", "write"]
"""Whether requests wait for another one that computes the same, and what they are billed for what
they were spared."""

UsageMode: TypeAlias = Literal["provider", "measured"]
MarkerErrors: TypeAlias = Literal["strict", "repair"]


@dataclass(frozen=True, slots=True)
class DialectRules:
    """The rules for one requested model id, resolved from `presets`, `dialects` and `caching` of
    the policy.

    `min_tokens`: the shortest prefix that may be written or read. `lookback`: positions tried per
    breakpoint, the breakpoint itself counted. `ttl_classes`: names a marker may use -> seconds an
    entry of that class lives; a longer name lives longer, so that the lifetime identifies the class
    in plans, reports, usage and prices. `default_ttl_s`: the lifetime where a marker names no
    class. `automatic`: prefixes are cached without a marker. `read_step`: reads are rounded down to
    a multiple of it (1: exact). `bills_writes`: written tokens are reported and priced apart;
    otherwise they count as plain input. `message_ends`: message ends before the automatic
    breakpoint that are looked up. `usage_fields`: what usage in OpenAI's format shows besides.
    `unmarked_ttl_s`: how long KV that no entry covers is kept after use (0: not kept).
    `drop_billing_nonce`: a first system block that is nothing but a per-request billing header is
    dropped. `sort_tools`, `sort_keys`: tools come by name and JSON keys sorted, whatever the
    client's order. `max_wait_s`: how long a request waits for another one under `single_flight`.
    `upgrade_ttl`: an entry that is read takes the longer class of a marker on it. `max_age_s`: how
    long after it was written an entry ends, however often it is read (None: never). `efforts`: the
    levels of effort the model has (empty: every one). `prefill`: whether an assistant's last turn
    may be gone on with.
    """

    preset: PresetName
    min_tokens: int
    lookback: int
    max_breakpoints: int
    ttl_classes: Mapping[str, float]
    default_ttl_s: float
    automatic: bool
    read_step: int
    bills_writes: bool
    message_ends: int
    usage_fields: tuple[UsageField, ...]
    unmarked_ttl_s: float
    usage_mode: UsageMode
    marker_errors: MarkerErrors
    drop_billing_nonce: bool
    sort_tools: bool = False
    sort_keys: bool = False
    single_flight: SingleFlight = "read"
    max_wait_s: float = 60.0
    upgrade_ttl: bool = True
    max_age_s: float | None = None
    efforts: tuple[Effort, ...] = ()
    prefill: bool = True

    def lifetime_s(self, asked_s: float) -> float:
        """How long an entry lives whose marker asks for `asked_s`, by the names clients know ("5m"
        asks for 300).

        That class, else the next longer one, else the longest: a client that speaks one provider's
        format to another provider's model asks for classes that model does not have. `asked_s`
        itself in a dialect without classes.
        """
        by_name = sorted(
            (parse_duration(name), lifetime_s) for name, lifetime_s in self.ttl_classes.items()
        )
        longer = (lifetime_s for nominal_s, lifetime_s in by_name if nominal_s >= asked_s)
        return next(longer, by_name[-1][1] if by_name else asked_s)
