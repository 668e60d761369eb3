"""Blocks on their way to a lower tier and back: one block, one item, its format checked when read. Knows no tree."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import xxhash

from engine.cache.block import LAYOUT_VERSION, Block
from engine.cache.device import PageDevice
from engine.store.base import BlockStore, Item

MAGIC: Final = b"pcg-kv\0\0"
HEADER: Final = struct.Struct("<8sHHI32sQ")
"""Magic, layout version, bytes of fingerprint, bytes of token ids, block key, xxh3_64 of everything after the header."""


def encode_payload(block: Block, fingerprint: str, kv: bytes) -> bytes:
    """Header, fingerprint, token ids as little-endian uint32, raw KV bytes."""
    body = b"".join((fingerprint.encode(), block.ids, kv))
    fingerprint_nbytes = len(body) - len(block.ids) - len(kv)
    checksum = xxhash.xxh3_64_intdigest(body)
    return HEADER.pack(MAGIC, LAYOUT_VERSION, fingerprint_nbytes, len(block.ids), block.key, checksum) + body


def decode_payload(payload: bytes, block: Block, fingerprint: str, kv_nbytes: int) -> bytes | None:
    """The KV bytes of `block`, or None when the payload is damaged or belongs to another block, model or layout."""
    if len(payload) < HEADER.size:
        return None
    magic, version, fingerprint_nbytes, ids_nbytes, key, checksum = HEADER.unpack_from(payload)
    ids_at = HEADER.size + fingerprint_nbytes
    kv_at = ids_at + ids_nbytes
    if (
        (magic, version, key) != (MAGIC, LAYOUT_VERSION, block.key)
        or payload[HEADER.size : ids_at] != fingerprint.encode()
        or payload[ids_at:kv_at] != block.ids
        or len(payload) - kv_at != kv_nbytes
        or xxhash.xxh3_64_intdigest(memoryview(payload)[HEADER.size :]) != checksum
    ):
        return None
    return payload[kv_at:]


class Spill:
    """Moves pages between the device and one store."""

    tier: Final = "ram"
    """The name of the store's tier in reports."""

    def __init__(self, store: BlockStore, device: PageDevice, fingerprint: str, page_nbytes: int) -> None:
        self._store = store
        self._device = device
        self._fingerprint = fingerprint
        self._page_nbytes = page_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes the store holds."""
        return self._store.stats.nbytes

    def save(self, block: Block, now_s: float) -> bool:
        """Put the block's page into the store until the block expires; whether the store holds it now."""
        if block.stored:
            self.refresh([block])
            if self._store.find_many([block.key], now_s)[0] is not None:
                return True
        assert block.page is not None
        kv = self._device.read_pages([block.page])[0]
        payload = encode_payload(block, self._fingerprint, kv)
        self._store.put_many([Item(block.key, payload, block.expires_at_s)])
        return self._store.find_many([block.key], now_s)[0] is not None

    def load(self, blocks: Sequence[Block], now_s: float) -> list[bytes | None]:
        """The KV bytes of each block, None for one the store lost or damaged."""
        payloads = self._store.get_many([block.key for block in blocks], now_s) if blocks else []
        return [
            None if payload is None else decode_payload(payload, block, self._fingerprint, self._page_nbytes)
            for block, payload in zip(blocks, payloads, strict=True)
        ]

    def refresh(self, blocks: Sequence[Block]) -> None:
        """Tell the store how long the blocks are kept now."""
        if blocks:
            self._store.put_many([Item(block.key, None, block.expires_at_s) for block in blocks])

    def forget(self, blocks: Sequence[Block]) -> None:
        """Delete the blocks' items."""
        keys = [block.key for block in blocks if block.stored]
        if keys:
            self._store.delete_many(keys)
