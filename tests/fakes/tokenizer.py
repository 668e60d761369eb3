"""A vocabulary without merges: every byte is a token, and a few control tokens follow.

Knows no files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from engine.prompt.guard import any_of

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


class ByteTokenizer:
    """Implements `engine.prompt.tokenizer.Tokenizer`: ids 0-255 are bytes, `special` tokens come
    after them, then `added` ones.

    The ids of a text are as easy to say as its bytes, so tests can count on their fingers.
    """

    def __init__(
        self,
        special: Iterable[str] = CHATML_TOKENS,
        added: Iterable[str] = (),
        *,
        template_tokens: Mapping[str, str] | None = None,
        stops: Iterable[str] = ("<|im_end|>", "<|endoftext|>"),
    ) -> None:
        special, added = tuple(special), tuple(added)
        self.added_tokens: Mapping[str, int] = {
            text: 256 + i for i, text in enumerate((*special, *added))
        }
        self.special_tokens: Mapping[str, int] = {text: self.added_tokens[text] for text in special}
        self.template_tokens: Mapping[str, str] = dict(template_tokens or {})
        self.stop_ids = frozenset(
            self.added_tokens[text] for text in stops if text in self.added_tokens
        )
        self.fingerprint = hashlib.sha256(
            repr(sorted(self.added_tokens.items())).encode()
        ).hexdigest()
        self._pattern = any_of(self.added_tokens)
        self._texts = {token_id: text.encode() for text, token_id in self.added_tokens.items()}

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return 256 + len(self._texts)

    @property
    def longest_token(self) -> int:
        """Bytes of the longest special or added token."""
        return max(map(len, self._texts.values()), default=1)

    def encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        start = 0
        for match in self._pattern.finditer(text):
            ids += text[start : match.start()].encode()
            ids.append(self.added_tokens[match[0]])
            start = match.end()
        return (*ids, *text[start:].encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else self._texts.get(token_id, b"")

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")
