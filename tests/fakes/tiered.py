"""The step loop over one store whose reads and writes wait for the test,
and what an engine without any cache answers.
"""

from __future__ import annotations

from engine.store.base import BlockStore
from engine.types import CachePlan, CacheReport
from tests.fakes.runner import FakeRunner
from tests.fakes.stepper import Outcome, Stepper
from tests.fakes.tier_io import ManualIo, StillClock, manual_tiers

NO_CACHE = CachePlan(read=False, store=False)
BARE = CachePlan(unmarked_ttl_s=0.0)
"""Nothing marked, nothing kept."""
PROMPT = [i * 7 % 251 for i in range(150)]
"""Nine spans of 16 tokens and a rest."""


class Bench:
    """A loop over one store whose reads and writes wait for the test when it says so."""

    def __init__(
        self, store: BlockStore, *, name: str = "ssd", num_pages: int = 200, **options: object
    ) -> None:
        self.clock = StillClock()
        self.reader, self.writer = ManualIo(), ManualIo()
        self.tiers = manual_tiers((name, store, self.reader, self.writer), clock=self.clock)
        self.stepper = Stepper(
            FakeRunner(num_pages=num_pages), tiers=self.tiers, context=400, **options
        )  # type: ignore[arg-type]
        self.cache = self.stepper.cache

    def settle(self) -> None:
        """Run everything to its end, new expiries included."""
        self.stepper.run()
        self.clock.advance(1.0)
        self.stepper.step()
        self.stepper.run()

    def ask(self, prompt: list[int], **options: object) -> Outcome:
        """Answer a prompt and let the tiers know all about it."""
        outcome = self.stepper.answer(prompt, **options)
        self.settle()
        return outcome

    def count(self, name: str) -> float:
        return float(getattr(self.cache.stats().counters, name))


def truth(prompt: list[int], **options: object) -> list[int]:
    """The answer of an engine that has never seen anything."""
    return (
        Stepper(FakeRunner(num_pages=200), context=400)
        .answer(prompt, plan=NO_CACHE, **options)
        .token_ids
    )


def bill(report: CacheReport) -> CacheReport:
    """The report without what may differ: where the KV came from, and that more of it was known."""
    return CacheReport(
        report.num_prompt,
        hit=report.hit,
        boundaries=report.boundaries,
        broken_tokens=report.broken_tokens,
    )
