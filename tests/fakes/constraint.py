"""A constraint without a grammar: the same few tokens, always. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Collection


class OnlyThese:
    """Implements `engine.schedule.sequence.Constraint`; remembers what was sampled."""

    def __init__(self, token_ids: Collection[int]) -> None:
        self._token_ids = frozenset(token_ids)
        self.taken: list[int] = []
        self.failure: str | None = None

    def allowed(self) -> bytes:
        """The bits of the few tokens, in as few bytes as hold them."""
        bits = sum(1 << token_id for token_id in self._token_ids)
        return bits.to_bytes(max(self._token_ids) // 8 + 1, "little")

    def advance(self, token_id: int) -> None:
        """Only what was allowed may come."""
        assert token_id in self._token_ids
        self.taken.append(token_id)
