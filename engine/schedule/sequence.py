"""One request's tokens on their way through the model.

Knows nothing of tensors; owned by the engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from engine.types import Sampling, TokenLogprobs


class Constraint(Protocol):
    """The state of a grammar: the tokens that may follow those sampled so far."""

    def allowed(self) -> bytes:
        """One bit per token id, least significant bit first; ids past the end are not allowed. At
        least one bit is set."""
        ...

    def advance(self, token_id: int) -> None:
        """Take in a sampled token, which was allowed."""
        ...

    @property
    def failure(self) -> str | None:
        """The reason why the answer can't keep its form any more, in words for the client; None as
        long as it can."""
        ...


class Status(Enum):
    """`FOLLOWING -> LOADING -> WAITING -> RESTORING -> PREFILL -> DECODE -> DONE`; an abort leads
    to DONE from anywhere.

    FOLLOWING: another request is computing what this one begins with; it keeps its place in the
    queue. LOADING: its prefix is being read from lower tiers, while it keeps its place too.
    WAITING: for pages and a place in the batch. RESTORING: it has its pages, and the KV that was
    read is being put into them. Without a request to follow or KV to read, those are skipped; where
    the device lost its part meanwhile, WAITING leads back to LOADING. A decoding sequence that had
    to give up its pages goes back to WAITING, and from there through PREFILL of all it has.
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
    """The sampler's own record of the tokens, released with the sequence."""

    @property
    def num_output(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_left(self) -> int:
        """Tokens whose KV is still to be computed before the next one can be sampled."""
        return len(self.token_ids) - self.num_computed

    @property
    def max_kv_tokens(self) -> int:
        """Tokens whose KV it may need at most: the last sampled token is never fed back."""
        return self.num_prompt + max(self.sampling.max_tokens - 1, 0)

    def move(self, status: Status) -> None:
        """Change status; a transition not in the table is a bug and raises AssertionError."""
        assert status in _ALLOWED[self.status], f"{self.status.name} -> {status.name}"
        self.status = status


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of one sequence that a step computes: tokens `[start, start + num_tokens)`; `sample`
    asks for the token after them.

    `draft` are guesses of the tokens after those, computed along and verified: the sampled tokens
    are the same as without them. Only where `sample` is set, the sequence has no `constraint` and
    decodes.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    sample: bool
    draft: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Tokens of the sequence whose KV is written after the step, the draft's included."""
        return self.start + self.num_rows

    @property
    def num_rows(self) -> int:
        """Tokens whose KV the step writes, the draft's included: a row of the forward pass each."""
        return self.num_tokens + len(self.draft)

    @property
    def num_sampled(self) -> int:
        """The last rows, whose logits are wanted: one, and one for every token of the draft."""
        return 1 + len(self.draft) if self.sample else 0

    @property
    def token_ids(self) -> list[int]:
        """The tokens of all rows."""
        known = self.sequence.token_ids[self.start : self.start + self.num_tokens]
        return [*known, *self.draft] if self.draft else known


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens sampled for one slice: one, and one more for every accepted token of the draft.

    `logprobs` is one per token where the sequence asks for them, else empty.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
