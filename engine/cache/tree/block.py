"""A block: a run of tokens, the key of everything up to its end, and its place in the tree.

Knows no pages' bytes, no clock.
"""

from __future__ import annotations

import hashlib
import hmac
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

LAYOUT_VERSION: Final = 1
"""Raised whenever keys or payloads change meaning, so that nothing written before is ever found
again."""

TOKEN_NBYTES: Final = 4
_CODE: Final = "I" if array("I").itemsize == TOKEN_NBYTES else "L"

ATTENTION_TOKENS: Final = 4096
"""Depth at which attention costs a token about as much prefill time as everything else (a 135M
model on CPU)."""

_FULL: Final = b"full\0"
_PARTIAL: Final = b"partial\0"
_ENTRY: Final = b"entry\0"


def pack(token_ids: Iterable[int]) -> bytes:
    """Token ids as little-endian uint32, four bytes each. Raises `OverflowError` for an id that
    does not fit."""
    ids = array(_CODE, token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def unpack(ids: bytes) -> tuple[int, ...]:
    """The inverse of `pack`."""
    values = array(_CODE)
    values.frombytes(ids)
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)


def root_key(root_secret: bytes, tenant: str, fingerprint: str, block_size: int) -> bytes:
    """The key above a tenant's first block: 32 bytes that cannot be computed without the secret.

    Every part is tagged and length-prefixed, so that no two different inputs spell the same
    message.
    """
    parts = (
        (b"layout", str(LAYOUT_VERSION).encode()),
        (b"tenant", tenant.encode("utf-8", "surrogatepass")),
        (b"fingerprint", fingerprint.encode("utf-8", "surrogatepass")),
        (b"block_size", str(block_size).encode()),
    )
    message = b"".join(
        len(tag).to_bytes(4, "little") + tag + len(part).to_bytes(8, "little") + part
        for tag, part in parts
    )
    return hmac.digest(root_secret, message, "sha256")


def full_key(parent: bytes, ids: bytes) -> bytes:
    """Key of the full block of packed `ids` under the block with key `parent`."""
    return hashlib.sha256(_FULL + parent + ids).digest()


def partial_key(parent: bytes, ids: bytes) -> bytes:
    """Key of a partial block: never equal to a full block's, whatever the ids."""
    return hashlib.sha256(_PARTIAL + parent + ids).digest()


def entry_key(ancestor: bytes, tail: bytes, salt: str) -> bytes:
    """Key of an entry that ends `tail` (packed, less than a block) after the full block `ancestor`,
    under a level's salt."""
    return hashlib.sha256(
        _ENTRY
        + ancestor
        + len(tail).to_bytes(4, "little")
        + tail
        + salt.encode("utf-8", "surrogatepass")
    ).digest()


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """One run of tokens in the tree. A root is a block of no tokens and no parent; a removed block
    has no parent either.

    `ids` are packed token ids; `start` is the number of tokens before them. `page` is the device
    page holding its KV (a root has none). `pins` counts the leases whose block table holds `page`.
    The block may be matched until `expires_at_s`; a live entry covers it until `promised_until_s <=
    expires_at_s`. `last_use` (the cache's time), `num_uses` (its computation is the first) and
    `credit` (the eviction clock at the last use) feed eviction scores.
    """

    key: bytes
    parent: Block | None
    ids: bytes
    start: int
    page: int = -1
    pins: int = 0
    last_use: float = 0.0
    num_uses: int = 1
    credit: float = 0.0
    expires_at_s: float = 0.0
    promised_until_s: float = 0.0
    stored_until_s: float = 0.0
    """Of the last block of a span: its expiry in the lower tiers; 0 when they do not have the
    span."""
    stored: bool = False
    """Whether a span or a tail that covers it was given to a lower tier."""
    children: dict[bytes, Block] = field(default_factory=dict)
    order: list[bytes] = field(default_factory=list)
    """The keys of `children`, sorted."""

    @property
    def num_tokens(self) -> int:
        """Tokens of this block alone."""
        return len(self.ids) // TOKEN_NBYTES

    @property
    def worth(self) -> float:
        """Prefill time of one of its tokens: a constant, and attention over all before it."""
        return 1.0 + self.start / ATTENTION_TOKENS

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Its token ids, unpacked."""
        return unpack(self.ids)

    def live(self, now_s: float) -> bool:
        """Whether it may be matched: not expired, or held by a running request, which is still
        using it."""
        return self.pins > 0 or self.expires_at_s > now_s


class PromptKeys:
    """The keys along one prompt, hashed only as far as they are asked for.

    `known` are blocks already matched from the start: their keys are taken as they are.
    """

    __slots__ = ("_ids", "_keys", "_span")

    def __init__(
        self, root: Block, ids: bytes, block_size: int, known: Sequence[Block] = ()
    ) -> None:
        self._ids = ids
        self._span = block_size * TOKEN_NBYTES
        self._keys = [root.key]
        self._keys.extend(block.key for block in known)

    def ancestor(self, offset: int) -> bytes:
        """Key of the last full block that ends at or before token `offset`."""
        num_blocks = offset * TOKEN_NBYTES // self._span
        keys, ids, span = self._keys, self._ids, self._span
        for i in range(len(keys) - 1, num_blocks):
            keys.append(full_key(keys[i], ids[i * span : (i + 1) * span]))
        return keys[num_blocks]

    def tail(self, offset: int) -> bytes:
        """The packed ids between that block's end and `offset`."""
        end = offset * TOKEN_NBYTES
        return self._ids[end - end % self._span : end]

    def entry(self, offset: int, salt: str) -> bytes:
        """Key of an entry at `offset` under `salt`."""
        return entry_key(self.ancestor(offset), self.tail(offset), salt)
