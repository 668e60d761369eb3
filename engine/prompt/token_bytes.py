"""The bytes that each token of a tokenizer.json stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import tokenizers

from engine.errors import ModelUnsupported
from engine.prompt.tokenizer_json import SPACE_MARK, steps

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes(dict[int, bytes]):
    """The bytes of each token id, filled in as ids are looked up; empty outside the vocabulary.

    Raises `ModelUnsupported` for a decoder that gives tokens no bytes of their own.
    """

    def __init__(self, inner: tokenizers.Tokenizer, spec: Mapping[str, Any]) -> None:
        super().__init__()
        self._inner = inner
        self._added = {
            int(token["id"]): str(token["content"]) for token in spec.get("added_tokens", ())
        }
        kinds = {step["type"] for step in steps(spec.get("decoder"))}
        self._byte_of = _bytes_of_characters() if "ByteLevel" in kinds else None
        self._byte_fallback = "ByteFallback" in kinds
        if self._byte_of is None and not kinds & {"Metaspace", "Replace", "ByteFallback"}:
            raise ModelUnsupported(
                f"tokenizer.json has the decoder {sorted(kinds) or None}: its tokens have no "
                "bytes of their own"
            )

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = found = self._find(token_id)
        return found

    def _find(self, token_id: int) -> bytes:
        token = self._added.get(token_id) or self._inner.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_of is not None:
            plain = token_id in self._added or any(
                character not in self._byte_of for character in token
            )
            return (
                token.encode() if plain else bytes(self._byte_of[character] for character in token)
            )
        byte = _BYTE_TOKEN.fullmatch(token) if self._byte_fallback else None
        return bytes.fromhex(byte[1]) if byte else token.replace(SPACE_MARK, " ").encode()


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's table of printable stand-ins for bytes, reversed: printable Latin-1 is itself, the
    rest is U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }
