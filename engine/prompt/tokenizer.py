"""Text to token ids and back, one piece at a time. Knows nothing of prompts and templates.

A piece is encoded as if it stood in the middle of a text: no BOS, no invented space, nothing
stripped. So the ids of a text are the ids of its pieces in order, and a piece that was seen before
costs one dictionary look-up.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import tokenizers

from engine.errors import ModelDamaged
from engine.prompt.token_bytes import TokenBytes
from engine.prompt.tokenizer_json import SPACE_MARK, position_independent, steps
from engine.structures.lru import LruCache

MEMO_NBYTES: Final = 64 * 1024 * 1024

TURN_ENDS: Final = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
"""Tokens that end a turn in common chat formats: they stop generation even where a model's
configuration forgets them."""

_NAMED_TOKENS: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_TOKEN_NBYTES: Final = 40
_PIECE_NBYTES: Final = 200


class Tokenizer(Protocol):
    """A vocabulary. For any texts a and b, the bytes of `encode(a) + encode(b)` are the bytes of
    `encode(a + b)`.

    `special_tokens` are the control tokens (text -> id); `added_tokens` has those and every other
    token that is matched as a whole before the text is split into words. `template_tokens` names
    some of them for templates (`bos_token`, ...). A sampled id in `stop_ids` ends the answer. Equal
    fingerprints mean equal ids for equal texts.
    """

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    @property
    def added_tokens(self) -> Mapping[str, int]: ...

    @property
    def template_tokens(self) -> Mapping[str, str]: ...

    @property
    def stop_ids(self) -> frozenset[int]: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def longest_token(self) -> int | None:
        """The most bytes of a text that one token stands for; None where that has no bound."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of one piece; added tokens in it become their ids, nothing is put before or behind
        them.

        Raises `UnicodeEncodeError` for a lone surrogate.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 of one token, possibly a part of a character; empty for an id outside the
        vocabulary."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, special tokens included; bytes that are no UTF-8 become
        U+FFFD."""
        ...


class HfTokenizer:
    """A `tokenizer.json` of the `tokenizers` library. `encode` belongs to one thread; everything
    else is read-only."""

    def __init__(
        self, spec: bytes, *, settings: Mapping[str, Any], memo_nbytes: int = MEMO_NBYTES
    ) -> None:
        """`settings` has the named tokens of tokenizer_config.json and, as `stop_ids`, further ids
        that end an answer."""
        parsed = _parse(spec, "tokenizer.json")
        self._inner = _load(parsed)
        self._keeps_bytes = _keeps_bytes(parsed)
        self._to_bytes = TokenBytes(self._inner, parsed)
        self._memo: LruCache[str, tuple[int, ...]] = LruCache(memo_nbytes, _memo_nbytes)
        added = {token["content"]: int(token["id"]) for token in parsed.get("added_tokens", ())}
        named = {name: text for name in _NAMED_TOKENS if (text := settings.get(name)) is not None}
        special = {
            token["content"]: int(token["id"])
            for token in parsed.get("added_tokens", ())
            if token["special"]
        }
        for text in named.values():
            if text in added:
                special[text] = added[text]
        self.added_tokens: Mapping[str, int] = MappingProxyType(added)
        self.special_tokens: Mapping[str, int] = MappingProxyType(special)
        self.template_tokens: Mapping[str, str] = MappingProxyType(named)
        self.stop_ids = frozenset(settings.get("stop_ids", ())) | frozenset(self._known_stops())
        self.fingerprint = hashlib.sha256(
            spec + b"\0pieces-1\0" + json.dumps(named, sort_keys=True).encode()
        ).hexdigest()

    @classmethod
    def from_folder(cls, folder: Path) -> HfTokenizer:
        """The tokenizer of a model folder: tokenizer.json, and its configuration files' settings of
        named and stop tokens.

        Raises `ModelDamaged` for a missing or broken file, `ModelUnsupported` for a kind of
        vocabulary we cannot decode.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelDamaged(f"{folder.name} has no tokenizer.json")
        named = _read(folder / "tokenizer_config.json")
        settings: dict[str, Any] = {
            name: _token_text(named[name]) for name in _NAMED_TOKENS if named.get(name)
        }
        settings["stop_ids"] = [
            token_id
            for name in ("generation_config.json", "config.json")
            for token_id in _stop_ids(_read(folder / name))
        ]
        return cls(path.read_bytes(), settings=settings)

    @cached_property
    def vocab_size(self) -> int:
        return max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def longest_token(self) -> int | None:
        """None where a normalizer, an unknown token or a token that swallows spaces may let bytes
        vanish."""
        return (
            max(map(len, map(self.token_bytes, range(self.vocab_size))), default=None)
            if self._keeps_bytes
            else None
        )

    def for_any_thread(self) -> HfTokenizer:
        """The same vocabulary without a memo: its `encode` may be called from any thread."""
        other = copy.copy(self)
        other._memo = LruCache(0, _memo_nbytes)
        return other

    @property
    def memo_nbytes(self) -> int:
        """Estimated size of the pieces remembered now."""
        return self._memo.total

    def encode(self, text: str) -> tuple[int, ...]:
        known = self._memo.get(text)
        if known is not None:
            return known
        text.encode()  # the library would panic on a lone surrogate
        ids = tuple(self._inner.encode(text, add_special_tokens=False).ids)
        self._memo.put(text, ids)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._to_bytes[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self._to_bytes[token_id] for token_id in token_ids).decode(
            "utf-8", "replace"
        )

    def _known_stops(self) -> Iterator[int]:
        eos = self.template_tokens.get("eos_token")
        for text in (*TURN_ENDS, eos):
            token_id = None if text is None else self._inner.token_to_id(text)
            if token_id is not None and (text in self.special_tokens or text == eos):
                yield token_id


def _memo_nbytes(text: str, ids: tuple[int, ...]) -> int:
    """About how much memory a piece takes in the memo."""
    return _PIECE_NBYTES + len(text) * (1 if text.isascii() else 4) + _TOKEN_NBYTES * len(ids)


def _keeps_bytes(spec: Mapping[str, Any]) -> bool:
    """Whether the bytes of a text's tokens are never fewer than those of the text."""
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    plain = all(
        step["type"] == "Prepend" or step == spaces for step in steps(spec.get("normalizer"))
    )
    greedy = any(
        token.get("lstrip") or token.get("rstrip") for token in spec.get("added_tokens", ())
    )
    bytewise = spec["model"].get("byte_fallback") or "ByteLevel" in {
        step["type"] for step in steps(spec.get("decoder"))
    }
    return bool(plain and not greedy and bytewise)


def _load(spec: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(position_independent(spec)))
    except Exception as error:  # the library raises bare Exception
        raise ModelDamaged(f"tokenizer.json cannot be loaded: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    return _parse(path.read_bytes(), path.name) if path.is_file() else {}


def _parse(data: bytes, name: str) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError as error:
        raise ModelDamaged(f"{name} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelDamaged(f"{name} is not a JSON object")
    return parsed


def _token_text(value: Any) -> str:
    """A token as tokenizer_config.json writes it: its text, or an object that has it as
    `content`."""
    return str(value["content"] if isinstance(value, dict) else value)


def _stop_ids(config: Mapping[str, Any]) -> list[int]:
    """`eos_token_id` of a configuration file: one id, a list, or that of the text model inside."""
    nested = config.get("text_config")
    value = config.get(
        "eos_token_id", nested.get("eos_token_id") if isinstance(nested, dict) else None
    )
    if value is None:
        return []
    return [int(token_id) for token_id in value] if isinstance(value, list) else [int(value)]
