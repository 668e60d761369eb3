"""From sampled tokens to text, a token at a time. Knows no reasoning, calls or stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Container, Iterable

from engine.prompt.tokenizer import Tokenizer


class Detokenizer:
    """Turns sampled tokens into text as they come; owned by one sequence.

    The text so far always ends on a character boundary: a character that is never finished never
    shows. Control tokens show as nothing, except those whose text is in `visible`. The first token
    costs the same as the last.
    """

    def __init__(self, tokenizer: Tokenizer, visible: Container[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._hidden = frozenset(
            token_id for text, token_id in tokenizer.special_tokens.items() if text not in visible
        )
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that became certain with `token_ids`, often empty inside a character."""
        pieces = (
            self._tokenizer.token_bytes(token_id)
            for token_id in token_ids
            if token_id not in self._hidden
        )
        return self._utf8.decode(b"".join(pieces))
