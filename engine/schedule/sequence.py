"""One request's tokens on their way through the model.

Knows nothing of tensors; owned by the engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from engine.types import Sampling, TokenLogprobs


class Constraint(Protocol):
    """Which tokens may follow what one sequence has sampled so far: a grammar's state."""

    def allowed(self) -> bytes:
        """One bit per token id, least significant bit first; ids past the end are not allowed. At
        least one bit is set."""
        ...

    def advance(self, token_id: int) -> None:
        """A token that was allowed has been sampled."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the answer can't be kept in its form any more, in words for the client; None as long
        as it can."""
        ...


class Status(Enum):
    """`FOLLOWING -> LOADING -> WAITING -> RESTORING -> PREFILL -> DECODE -> DONE`; an abort leads
    to DONE from anywhere.

    FOLLOWING: another request is computing what this one begins with; it keeps its place in the
    queue. LOADING: its prefix is being read from lower tiers, while it keeps its place too.
    WAITING: for pages and a seat. RESTORING: it has its pages, and what was read is being put into
    them. Where there is nobody to follow or nothing to read, those are skipped; where the device
    lost its part meanwhile, WAITING leads back to LOADING. A decoding sequence that had to give up
    its pages goes back to WAITING, and from there through PREFILL of all it has.
    """

    FOLLOWING = auto()
    LOADING = auto()
    WAITING = auto()
    RESTORING = auto()
    PREFILL = auto()
    DECODE = auto()
    DONE = auto()


_ALLOWED: dict[Status, tuple[Status, ...]] = {
    Status.FOLLOWING: (Status.WAITING, Status.DONE),
    Status.LOADING: (Status.WAITING, Status.DONE),
    Status.WAITING: (
        Status.FOLLOWING,
        Status.LOADING,
        Status.RESTORING,
        Status.PREFILL,
        Status.DONE,
    ),
    Status.RESTORING: (Status.PREFILL, Status.DONE),
    Status.PREFILL: (Status.DECODE, Status.DONE),
    Status.DECODE: (Status.WAITING, Status.DONE),
    Status.DONE: (),
}


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens of one request: prompt first, then what was sampled.

    `num_computed` tokens have their KV in the pages of `block_table` (page index per `block_size`
    tokens, in order). `num_cached` of them were found and not computed. `token_ids` is always one
    longer than `num_computed` while decoding. `num_known` is the most `num_computed` ever was: what
    is computed below it is computed again, after a preemption. `arrival` counts requests: the
    smaller, the older.
    """

    request_id: str
    token_ids: list[int]
    num_prompt: int
    sampling: Sampling
    num_cached: int = 0
    num_computed: int = 0
    num_known: int = 0
    arrival: int = 0
    block_table: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    constraint: Constraint | None = None
    history: object | None = None
    """What the sampler remembers of the tokens; its own, and released with the sequence."""

    @property
    def num_output(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_left(self) -> int:
        """Tokens whose KV is still to be computed before the next one can be sampled."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_most(self) -> int:
        """Tokens whose KV it may need at most: the last sampled token is never fed back."""
        return self.num_prompt + max(self.sampling.max_tokens - 1, 0)

    def move(self, status: Status) -> None:
        """Change status; a transition not in the table is a bug and raises AssertionError."""
        assert status in _ALLOWED[self.status], f"{self.status.name} -> {status.name}"
        self.status = status


@dataclass(frozen=True, slots=True)
class Slice:
    """What one step computes of one sequence: tokens `[start, start + num_tokens)`; `sample` asks
    for the token after them.

    `draft` are guesses of the tokens after those, computed along and verified: what is sampled is
    what would have been sampled without them. Only where `sample` is set, the sequence has no
    `constraint` and decodes.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    sample: bool
    draft: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Tokens of the sequence whose KV the step writes, the draft's included."""
        return self.start + self.num_tokens + len(self.draft)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step sampled for one slice: one token, and one more for every draft token before it
    that was guessed right.

    `logprobs` is one per token where the sequence asks for them, else empty.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
