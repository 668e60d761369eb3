"""A piece of a prompt's KV below the device: where it may be read from, and what was read. Data."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.cache.tiers.client import TierClient
from engine.cache.tiers.object_format import ObjectKey


@dataclass(slots=True, eq=False, repr=False)
class SpanRead:
    """One span or tail of the prompt: tokens `[start, end)`, `start` on a span border.

    `holders` are the lanes that say they have it and were not tried yet, in order; `lane` is the
    one it is being read from. Once it was read, `body` is its KV, page after page, and `tier` where
    it came from.
    """

    label: ObjectKey
    start: int
    end: int
    expires_at_s: float = 0.0
    holders: list[TierClient] = field(default_factory=list)
    lane: TierClient | None = None
    body: memoryview | None = None
    tier: str = ""

    @property
    def is_there(self) -> bool:
        """Whether it was read or some tier has it."""
        return self.body is not None or bool(self.holders)

    @property
    def num_tokens(self) -> int:
        """Tokens it covers."""
        return self.end - self.start
