"""One accepted request, from its acceptance to its last event, and the parts of the step loop.

Data only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.cache.lease import Lease
from engine.cache.lookup import Lookup
from engine.cache.prefix_cache import PrefixCache
from engine.cache.tiers.fetch import Fetch
from engine.inbox import RenderedJob
from engine.loop.limits import StepLimits
from engine.messages import FromEngine
from engine.output.parser import OutputParser
from engine.schedule.draft import Drafter
from engine.schedule.flights import Beginning
from engine.schedule.runner import Runner
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.stats import Stats


@dataclass(slots=True, eq=False)
class EngineRequest:
    """Owned by the step loop; times are on the monotonic clock.

    `lookup` is its one look at the cache, kept until it is admitted. `lease` is None while it has
    no pages: before it is admitted, and while it is preempted, when `last_lease` is the one it had.
    `num_found` are the prompt's tokens that were there before it first waited for another request,
    None if it never did. `is_patient` until it has waited for others as long as it may. `drafter`
    guesses the next tokens, None where nothing is guessed. The cache spent `match_s` on finding its
    prefix.
    """

    job: RenderedJob
    sequence: Sequence
    answer: OutputParser
    lookup: Lookup | None = None
    fetch: Fetch | None = None
    num_fetches: int = 0
    beginning: Beginning | None = None
    num_found: int | None = None
    until_s: float | None = None
    is_patient: bool = True
    lease: Lease | None = None
    last_lease: Lease | None = None
    drafter: Drafter | None = None
    match_s: float = 0.0
    started_s: float = 0.0
    first_token_s: float | None = None

    @property
    def request_id(self) -> str:
        return self.sequence.request_id

    @property
    def pages(self) -> Lease:
        """Its lease; not having one is a bug."""
        assert self.lease is not None, "not admitted"
        return self.lease


@dataclass(frozen=True, slots=True)
class LoopParts:
    """The objects that the step loop and its parts share; the engine thread owns them. `requests`
    are the accepted ones by id."""

    limits: StepLimits
    runner: Runner
    cache: PrefixCache
    scheduler: Scheduler
    emit: Callable[[FromEngine], None]
    stats: Stats = field(default_factory=Stats)
    requests: dict[str, EngineRequest] = field(default_factory=dict)
