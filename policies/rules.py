"""The caching rules of providers: as the policy file has them, and resolved for a requested model.

The rules' logic lives in the gateway's dialects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from pydantic import Field

from policies.sections import CachingPolicy, Section
from policies.ttl import parse_duration
from policies.values import ClassName, Count, Flag, PositiveCount, Text

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
"""A field by which another provider with OpenAI's format tells the number of cached tokens."""

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""A level of thinking, in the words of any provider."""


class PresetPolicy(Section):
    """A provider's caching rules, defined here alone: lines of `dialects` and the resolved rules of
    a request have the same fields."""

    min_tokens: Count = Field(
        default=1024, description="Shortest prefix that may be written or read."
    )
    lookback: PositiveCount = Field(
        default=20, description="Positions tried per breakpoint, the breakpoint itself counted."
    )
    max_breakpoints: PositiveCount = Field(default=4, description="Most breakpoints of a request.")
    ttl_classes: tuple[ClassName, ...] = Field(
        default=("5m",), description="TTL classes a marker may ask for."
    )
    default_ttl: ClassName = Field(
        default="5m", description="TTL class of a marker that names none, and of automatic caching."
    )
    automatic: Flag = Field(default=False, description="Prefixes are cached without a marker.")
    read_step: PositiveCount = Field(
        default=1, description="Reads are rounded down to a multiple of this. 1: exact."
    )
    bills_writes: Flag = Field(
        default=True, description="Written tokens are reported and priced apart from plain input."
    )
    message_ends: Count = Field(
        default=20,
        description="Message ends before the automatic breakpoint that are looked up, where "
        "writes are billed.",
    )
    usage_fields: tuple[UsageField, ...] = Field(
        default=(),
        description="Fields of other providers that usage in OpenAI's Chat Completions format "
        "shows as well.",
    )


class PresetsPolicy(Section):
    anthropic: PresetPolicy = Field(default=PresetPolicy(), description="Anthropic's rules.")
    openai: PresetPolicy = Field(default=PresetPolicy(), description="OpenAI's rules.")
    gemini: PresetPolicy = Field(default=PresetPolicy(), description="Gemini's rules.")
    deepseek: PresetPolicy = Field(default=PresetPolicy(), description="DeepSeek's rules.")
    kimi: PresetPolicy = Field(default=PresetPolicy(), description="Rules of Moonshot's Kimi K3.")
    qwen: PresetPolicy = Field(
        default=PresetPolicy(),
        description="Rules of Alibaba's Qwen: explicit with a marker, else any prefix, writes for "
        "free.",
    )
    openrouter: PresetPolicy = Field(default=PresetPolicy(), description="OpenRouter's rules.")


class DialectMatch(Section):
    """The requested model ids that a line of `dialects` is for, and the preset it begins with."""

    match: Text = Field(
        default="*", description="Requested model id; * ? [] are wildcards, case counts."
    )
    preset: PresetName | Literal["auto"] = Field(
        default="auto",
        description="Whose rules apply. auto: those of the wire format the request came in.",
    )


class ModelAbilities(Section):
    """Abilities of the model that a provider serves under a name."""

    efforts: tuple[Effort, ...] = Field(
        default=(), description="Levels of effort a request may ask for. Empty: every one."
    )
    prefill: Flag = Field(
        default=True,
        description="A request may end in an assistant's turn, which the answer goes on with.",
    )


class DialectPolicy(ModelAbilities, PresetPolicy, DialectMatch):
    """One line of the table "requested model id -> rules". Rules that it leaves out are the
    preset's."""

    def over(self, preset: PresetPolicy) -> dict[str, Any]:
        """The fields of the rules: those that this line has, else the preset's."""
        own = self.model_fields_set - DialectMatch.model_fields.keys()
        return dict(preset) | {name: getattr(self, name) for name in own}


class DialectRules(ModelAbilities, PresetPolicy):
    """The rules for one requested model id, resolved from `presets`, `dialects` and `caching`.

    `automatic` is off where `caching.automatic` is. `lifetimes`: names of the TTL classes a marker
    may use -> seconds an entry of that class lives; a longer name lives longer, so that the
    lifetime identifies the class in plans, reports, usage and prices.
    """

    preset: PresetName
    lifetimes: Mapping[str, float]
    caching: CachingPolicy

    @property
    def default_ttl_s(self) -> float:
        """The lifetime where a marker names no class, and of automatic caching."""
        return self.lifetimes[self.default_ttl]

    def lifetime_s(self, asked_s: float) -> float:
        """The lifetime of an entry whose marker asks for `asked_s`, by the names clients know ("5m"
        asks for 300).

        That class, else the next longer one, else the longest: a client that speaks one provider's
        format to another provider's model asks for classes that model does not have. `asked_s`
        itself in a dialect without classes.
        """
        by_name = sorted(
            (parse_duration(name), lifetime_s) for name, lifetime_s in self.lifetimes.items()
        )
        longer = (lifetime_s for nominal_s, lifetime_s in by_name if nominal_s >= asked_s)
        return next(longer, by_name[-1][1] if by_name else asked_s)
