"""What a prefix cache must do, as two dictionaries: which prefixes are kept until when,
and which entries live until when.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Tokens = tuple[int, ...]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@dataclass
class PlainCache:
    """One tenant. Blocks are not modelled: what is kept is known to the token from below, and from
    above to the `unit` of tokens that stay together: a block, or a span where there are lower
    tiers. `block` is the tokens of a block there: the tail of an entry is found by itself and lives
    as long as the block it was part of, and so does what continues it."""

    unit: int
    block: int | None = None
    kept: dict[Tokens, float] = field(default_factory=dict)
    computed: set[Tokens] = field(default_factory=set)
    entries: dict[tuple[Tokens, str], float] = field(default_factory=dict)

    def keep(self, tokens: Sequence[int], until_s: float) -> None:
        """The prefix `tokens` is kept at least until then."""
        key = tuple(tokens)
        self.kept[key] = max(self.kept.get(key, -math.inf), until_s)

    def must_skip(
        self, prompt: Sequence[int], now_s: float, in_use: Iterable[Sequence[int]]
    ) -> int:
        """Tokens that a cache which never runs out of room has to find; the prefixes `in_use` do
        not expire."""
        kept = [tokens for tokens, until_s in self.kept.items() if until_s > now_s]
        return max((common(tokens, prompt[:-1]) for tokens in (*kept, *in_use)), default=0)

    def may_skip(self, prompt: Sequence[int], now_s: float, in_use: Iterable[Sequence[int]]) -> int:
        """Tokens that any cache may find at most: a kept prefix keeps what else its last unit
        holds."""
        best = max((common(tokens, prompt[:-1]) for tokens in in_use), default=0)
        for kept, until_s in self.kept.items():
            if until_s > now_s:
                end = -(-len(kept) // self.unit) * self.unit
                longer = (tokens[:end] for tokens in self.computed if tokens[: len(kept)] == kept)
                best = max([best, *(common(tokens, prompt[:-1]) for tokens in (kept, *longer))])
        for tokens in self.computed if self.block is not None else ():
            reach = common(tokens, prompt[:-1])
            if reach > best:
                best = max(best, min(reach, self._end_of_part(tokens, now_s)))
        return best

    def _end_of_part(self, tokens: Sequence[int], now_s: float) -> int:
        """Where the block ends in which these tokens leave what is kept."""
        assert self.block is not None
        shared = max(
            (common(tokens, kept) for kept, until_s in self.kept.items() if until_s > now_s),
            default=0,
        )
        return -(-shared // self.block) * self.block

    def live(self, tokens: Sequence[int], salt: str, now_s: float) -> bool:
        """Whether an entry stands there."""
        return self.entries.get((tuple(tokens), salt), -math.inf) > now_s
