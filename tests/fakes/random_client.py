"""The hardest client of a constraint: it takes any token that is allowed, whatever that leads to.
Knows no model."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from engine.prompt.tokenizer import Tokenizer
from engine.schedule.sequence import Constraint

ENDS = ('"', "}", "]", '"}', '"]', "}}", '"}}', " }", "\n", "</")


@dataclass(frozen=True)
class Written:
    """What came of it. `is_over`: a token ended the answer, which the budget of tokens did not."""

    text: str
    token_ids: tuple[int, ...]
    is_over: bool


class RandomClient:
    """Draws uniformly; every fourth token is, where it may be, one that closes something, as no
    model writes for ever."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        closing = {tokenizer.encode(text)[0] for text in ENDS if len(tokenizer.encode(text)) == 1}
        self._closing = np.zeros(tokenizer.vocab_size, dtype=bool)
        self._closing[[*closing, *tokenizer.stop_ids]] = True

    def write(self, constraint: Constraint, seed: int, max_tokens: int = 600) -> Written:
        """One answer."""
        dice = random.Random(seed)
        token_ids: list[int] = []
        while len(token_ids) < max_tokens:
            allowed = allowed_ids(constraint)
            closing = allowed[self._closing[allowed]]
            token_id = int(
                dice.choice(closing if len(closing) and dice.random() < 0.25 else allowed)
            )
            constraint.advance(token_id)
            assert constraint.failure is None
            if token_id in self._tokenizer.stop_ids:
                return Written(self._tokenizer.decode(token_ids), tuple(token_ids), is_over=True)
            token_ids.append(token_id)
        return Written(self._tokenizer.decode(token_ids), tuple(token_ids), is_over=False)


def allowed_ids(constraint: Constraint) -> np.ndarray:
    """The ids of the tokens that are allowed now, at least one."""
    bits = np.unpackbits(np.frombuffer(constraint.allowed(), dtype=np.uint8), bitorder="little")
    ids = bits.nonzero()[0]
    assert len(ids)
    return ids
