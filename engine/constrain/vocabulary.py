"""A tokenizer as llguidance sees it: the bytes of every token,
and which of them are control tokens.

Knows no grammar.
"""

from __future__ import annotations

from typing import Final

from llguidance import LLTokenizer, TokenizerWrapper

from engine.constrain.trial import TokenTable
from engine.prompt.guard import any_of
from engine.prompt.tokenizer import Tokenizer


def open_vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """The trie of all tokens; takes some tenths of a second. The tokenizer's stop ids end an
    answer, and there must be one.

    What the grammar forces is split into tokens with `tokenizer.encode`, later and on any thread.
    """
    return LLTokenizer(TokenizerWrapper(_Source(tokenizer)), eos_token=sorted(tokenizer.stop_ids))


def described(tokenizer: Tokenizer) -> TokenTable:
    """The same for another process, which splits no forced text."""
    source = _Source(tokenizer)
    tokens = [token.decode("latin-1") for token in source.tokens]
    return TokenTable(tokens, source.special_token_ids, sorted(tokenizer.stop_ids))


class _Source:
    """The tokenizer interface that `TokenizerWrapper` expects."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id: Final = min(tokenizer.stop_ids)
        self.bos_token_id: Final = None
        self.tokens: Final = [
            tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)
        ]
        self.special_token_ids: Final = sorted(
            {*tokenizer.special_tokens.values(), *tokenizer.stop_ids}
        )
        self._tokenizer = tokenizer
        self._special = any_of(text for text in tokenizer.special_tokens if len(text) > 1)

    def __call__(self, text: str) -> list[int]:
        """The tokens of a forced text. One that reads like a control token is split, as its bytes
        are just text.

        Raises `TypeError` for bytes, which tells the library to bring only text.
        """
        if not isinstance(text, str):
            raise TypeError("only text has tokens")
        token_ids: list[int] = []
        start = 0
        while (match := self._special.search(text, start)) is not None:
            token_ids += self._tokenizer.encode(text[start : match.start() + 1])
            start = match.start() + 1
        return [*token_ids, *self._tokenizer.encode(text[start:])]
