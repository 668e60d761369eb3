"""Dialect rules with small numbers, one per class of models."""

from __future__ import annotations

from typing import Any

from policies.rules import DialectRules
from policies.sections import CachingPolicy


def rules(base: DialectRules, **changes: Any) -> DialectRules:
    """The rules with other values, those of the section `caching` by the names they have there."""
    caching = {name: changes.pop(name) for name in CACHING & changes.keys()}
    return base.model_copy(update={**changes, "caching": base.caching.model_copy(update=caching)})


CACHING = CachingPolicy.model_fields.keys() - DialectRules.model_fields.keys()


ANTHROPIC = DialectRules(
    preset="anthropic",
    min_tokens=64,
    lookback=20,
    max_breakpoints=4,
    ttl_classes=("5m", "1h"),
    lifetimes={"5m": 300.0, "1h": 3600.0},
    default_ttl="5m",
    automatic=False,
    read_step=1,
    bills_writes=True,
    message_ends=20,
    usage_fields=(),
    caching=CachingPolicy(),
)
"""Claude, with the minimum of the worked cases."""

OPENAI = rules(
    ANTHROPIC,
    preset="openai",
    lookback=80,
    ttl_classes=("30m", "12h"),
    lifetimes={"30m": 1800.0, "12h": 43200.0},
    default_ttl="30m",
    automatic=True,
)
"""GPT-5.6 and later: breakpoints, billed writes."""

EARLIER_OPENAI = rules(OPENAI, bills_writes=False, read_step=128, min_tokens=1024)
"""GPT-4o to 5.5: any prefix, in steps, writes for free."""
