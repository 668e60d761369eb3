"""The outcome of one request's look-up among whole answers."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, TypeAlias

from policies.pricing import Usage

OVERHEAD_NBYTES: Final = 1024
"""What an answer takes besides its events, about."""


Outcome: TypeAlias = Literal["hit", "miss", "stale", "request", "bypass"]
"""`request`: the client forbade to read. `bypass`: not looked up."""


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """An answer that was given. `events` are the engine's, joined and packed; `usage` and
    `cost_usd` what it cost then."""

    tenant: str
    events: bytes
    usage: Usage
    cost_usd: Decimal
    given_at_s: float

    @property
    def nbytes(self) -> int:
        return len(self.events) + OVERHEAD_NBYTES


@dataclass(frozen=True, slots=True)
class ResponseLookup:
    """What became of one request here. Without a `key` its answer is not kept. `detail` says why it
    was not looked up, or not read; `ttl_left_s` how long what was found can be given."""

    outcome: Outcome
    detail: str | None = None
    key: bytes | None = None
    given: CachedAnswer | None = None
    ttl_left_s: float = 0.0
    era: int = 0
    """Answers to requests from before the last flush are not kept."""
