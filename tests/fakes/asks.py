"""Random requests to a prefix cache: what they ask,
and what a test knows of them while they run.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from engine.cache.lookup import Lookup
from engine.cache.prefix_cache import Lease
from engine.cache.tiers.fetch import Fetch
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.types import CachePlan, PlannedEntry

LONGEST_TTL_S = 90.0


@dataclass(repr=False, eq=False)
class Ask:
    """A request that may wait for what is read for it, or for pages."""

    tenant: str
    rendered: RenderedPrompt
    plan: CachePlan
    started_at_s: float
    num_reserve: int
    lookup: Lookup
    fetch: Fetch | None = None


@dataclass(repr=False, eq=False)
class Request:
    """A lease and what the test knows of it."""

    tenant: str
    lease: Lease
    plan: CachePlan
    rendered: RenderedPrompt
    started_at_s: float
    token_ids: list[int]
    num_computed: int
    num_reserve: int
    num_kept: float
    num_committed: int = 0
    promised: bool = False
    flushed: bool = False

    @property
    def num_there(self) -> int:
        """Tokens whose KV is on the device."""
        return self.lease.num_there if self.lease.arrivals else self.num_computed


def any_plan(dice: Random, num_positions: int) -> CachePlan:
    """Any plan over positions messages/0 .. messages/n-1; most read and store."""
    marked = sorted(dice.sample(range(num_positions), dice.randint(0, num_positions)))
    looked_at = dice.sample(range(num_positions), dice.randint(0, num_positions))
    refresh = dice.random() < 0.7
    return CachePlan(
        readable=tuple(
            Position("messages", i) for i in sorted({*marked, *looked_at}, reverse=True)
        ),
        writable=tuple(
            PlannedEntry(Position("messages", i), dice.choice([3.0, 20.0, LONGEST_TTL_S]), refresh)
            for i in marked
        ),
        min_tokens=dice.choice([0, 0, 3]),
        salts={"messages": dice.choice(["", "", "", "x"])},
        any_prefix=dice.random() < 0.3,
        unmarked_ttl_s=dice.choice([0.0, 5.0, 5.0, 15.0]),
        read=dice.random() < 0.9,
        store=dice.random() < 0.9,
    )
