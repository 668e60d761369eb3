"""The result of one request's look-up among whole answers."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, TypeAlias

from policies.pricing import Usage

OVERHEAD_NBYTES: Final = 1024
"""Memory of an answer besides its events, about."""

Outcome: TypeAlias = Literal["hit", "miss", "stale", "request", "bypass"]
"""`request`: the client forbade to read. `bypass`: not looked up."""


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """The answer to an earlier request. `events` are the engine's, joined and packed; `usage` and
    `cost_usd` are those of that request."""

    tenant: str
    events: bytes
    usage: Usage
    cost_usd: Decimal
    created_at_s: float

    @property
    def nbytes(self) -> int:
        return len(self.events) + OVERHEAD_NBYTES


@dataclass(frozen=True, slots=True)
class ResponseLookup:
    """The result for one request. Without a `key` its answer is not kept.

    `detail` says why the request was not looked up, or the cached answer not used. `cached` is the
    answer to give again, None: generate one; it lives for `ttl_left_s`. Answers to requests from
    before the last flush are not kept: `flush_generation` numbers the flushes.
    """

    outcome: Outcome
    detail: str | None = None
    key: bytes | None = None
    cached: CachedAnswer | None = None
    ttl_left_s: float = 0.0
    flush_generation: int = 0
