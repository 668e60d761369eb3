"""Dialect rules with small numbers, one per class of models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from policies.rules import DialectRules

ANTHROPIC = DialectRules(
    preset="anthropic",
    min_tokens=64,
    lookback=20,
    max_breakpoints=4,
    ttl_classes={"5m": 300.0, "1h": 3600.0},
    default_ttl_s=300.0,
    automatic=False,
    read_step=1,
    bills_writes=True,
    message_ends=20,
    usage_fields=(),
    unmarked_ttl_s=300.0,
    usage_mode="provider",
    marker_errors="strict",
    drop_billing_nonce=True,
)
"""Claude, with the minimum of the worked cases."""

OPENAI = replace(
    ANTHROPIC,
    preset="openai",
    lookback=80,
    ttl_classes={"30m": 1800.0, "12h": 43200.0},
    default_ttl_s=1800.0,
    automatic=True,
)
"""GPT-5.6 and later: breakpoints, billed writes."""

EARLIER_OPENAI = replace(OPENAI, bills_writes=False, read_step=128, min_tokens=1024)
"""GPT-4o to 5.5: any prefix, in steps, writes for free."""


def rules(base: DialectRules, **changes: Any) -> DialectRules:
    return replace(base, **changes)
