"""Drives a step loop by hand: no threads, no rendering, prompts given as token ids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.cache.prefix_cache import PrefixCache
from engine.cache.tiers.client import TierClients
from engine.cache.tiers.object_format import SPAN_TOKENS
from engine.inbox import RenderedJob
from engine.loop.limits import ANSWER_TOKENS, StepLimits
from engine.loop.step_loop import StepLoop
from engine.messages import Failed, Finished, FromEngine, Started, Submit, TextDelta, ToolCallDelta
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.tokenizer import Tokenizer
from engine.prompt.types import Position, Prompt
from engine.schedule.runner import Runner
from engine.schedule.sequence import Constraint
from engine.store.base import BlockStore, NamedStore
from engine.types import CachePlan, PlannedEntry, Sampling
from tests.fakes.runner import FakeRunner
from tests.fakes.tokenizer import ByteTokenizer


@dataclass
class Outcome:
    """Everything one request was told."""

    events: list[FromEngine] = field(default_factory=list)

    @property
    def started(self) -> Started:
        (started,) = [event for event in self.events if isinstance(event, Started)]
        return started

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def token_ids(self) -> list[int]:
        """The tokens of all deltas, of text and of calls."""
        deltas = [event for event in self.events if isinstance(event, TextDelta | ToolCallDelta)]
        return [token_id for event in deltas for token_id in event.token_ids]

    @property
    def last(self) -> Finished | Failed:
        """The last event; fails unless it is the only one of its kind and really the last."""
        ends = [event for event in self.events if isinstance(event, Finished | Failed)]
        assert ends == self.events[-1:], self.events
        return ends[0]

    @property
    def is_over(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Finished | Failed)

    @property
    def finished(self) -> Finished:
        last = self.last
        assert isinstance(last, Finished), last
        return last

    @property
    def failed(self) -> Failed:
        last = self.last
        assert isinstance(last, Failed), last
        return last


@dataclass(frozen=True)
class RealModel:
    """What a stepper steps through."""

    runner: Runner
    tokenizer: Tokenizer
    block_size: int


class Stepper:
    """A `StepLoop` over a `FakeRunner` or a real one; every step ends with the cache's own check.

    `store` is a memory store to be used at once, `tiers` any others. Spans are four blocks with a
    fake model.
    """

    def __init__(
        self,
        runner: FakeRunner | None = None,
        *,
        context: int = 200,
        max_sequences: int = 4,
        max_step_tokens: int = 16,
        max_mixed_tokens: int | None = None,
        answer_tokens: int = ANSWER_TOKENS,
        speculation: bool = True,
        max_queue: int = 64,
        store: BlockStore | None = None,
        tiers: TierClients | None = None,
        force_store: bool = False,
        span_tokens: int | None = None,
        real: RealModel | None = None,
    ) -> None:
        fake = runner or FakeRunner()
        model = real or RealModel(fake, ByteTokenizer(), fake.block_size)
        if store is not None:
            tiers = TierClients([NamedStore("ram", store)])
        self.tokenizer = model.tokenizer
        self.runner: Any = model.runner
        self.cache = PrefixCache(
            device=model.runner,
            num_pages=model.runner.num_pages,
            page_nbytes=model.runner.page_nbytes,
            block_size=model.block_size,
            fingerprint=model.runner.fingerprint,
            root_secret=b"0123456789abcdef",
            tiers=tiers,
            force_store=force_store and tiers is not None,
            span_tokens=span_tokens or (SPAN_TOKENS if real else 4 * model.block_size),
        )
        limits = StepLimits(
            context=min(context, model.runner.num_pages * model.block_size),
            block_size=model.block_size,
            max_sequences=max_sequences,
            max_step_tokens=max_step_tokens,
            max_mixed_tokens=max_mixed_tokens or max_step_tokens,
            max_queue=max_queue,
            answer_tokens=answer_tokens,
            speculation=speculation,
        )
        self.loop = StepLoop(limits, model.runner, self.cache, model.tokenizer, self._collect)
        self.outcomes: dict[str, Outcome] = {}
        self._serial = itertools.count()

    def submit(
        self,
        token_ids: Seq[int],
        *,
        max_tokens: int = 4,
        marks: Seq[int] = (),
        ttl_s: float = 300.0,
        unmarked_ttl_s: float = 300.0,
        tenant: str = "t",
        started_at_s: float = 1000.0,
        plan: CachePlan | None = None,
        single_flight: Literal["off", "read", "write"] = "read",
        constraint: Constraint | None = None,
        **sampling: object,
    ) -> Outcome:
        """Hand a prompt in, with an entry after each of the token counts in `marks`; it reads from
        the longest one."""
        request_id = str(next(self._serial))
        positions = {
            Position("messages", i): offset
            for i, offset in enumerate((*sorted(marks), len(token_ids)))
        }
        if plan is None:
            planned = tuple(PlannedEntry(position, ttl_s) for position in list(positions)[:-1])
            plan = CachePlan(
                readable=tuple(reversed(positions)),
                writable=planned,
                unmarked_ttl_s=unmarked_ttl_s,
                single_flight=single_flight,
            )
        submit = Submit(
            request_id,
            tenant,
            Prompt(()),
            plan,
            Sampling(max_tokens=max_tokens, **sampling),
            started_at_s,  # type: ignore[arg-type]
        )
        self.outcomes[request_id] = outcome = Outcome()
        rendered = RenderedPrompt(tuple(token_ids), positions, 0)
        self.loop.accept(
            RenderedJob(submit, rendered, submitted_s=0.0, render_s=0.0, constraint=constraint)
        )
        return outcome

    def id_of(self, outcome: Outcome) -> str:
        (request_id,) = [name for name, other in self.outcomes.items() if other is outcome]
        return request_id

    def abort(self, outcome: Outcome) -> None:
        self.loop.abort(self.id_of(outcome))

    def step(self) -> None:
        self.loop.step()
        self.loop.check()

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.loop.has_work:
            self.step()

    def answer(self, token_ids: Seq[int], **options: object) -> Outcome:
        """Hand a prompt in and run it to its end."""
        outcome = self.submit(token_ids, **options)  # type: ignore[arg-type]
        self.run()
        return outcome

    def _collect(self, event: FromEngine) -> None:
        assert isinstance(event, Started | TextDelta | ToolCallDelta | Finished | Failed)
        outcome = self.outcomes[event.request_id]
        assert not outcome.is_over, f"{event} after the end"
        outcome.events.append(event)
