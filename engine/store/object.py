"""The format of an item in a medium that may damage it: one header before the payload,
on disk and in Redis alike.

All integers are little-endian. The header has no byte that is not covered by a checksum:

    0   magic, 8 bytes
    8   uint16 version, uint16 key length, float32 cost of recomputing a byte
    16  uint64 payload length, uint64 xxh3_64 of the payload
    32  key, 64 bytes, zero padded
    96  uint64 xxh3_64 of bytes 0 to 96
    104 float64 expiry in epoch seconds, uint64 xxh3_64 of key and expiry

The last 16 bytes, the expiry slot, are the only ones ever rewritten in place. They lie within the
first 512 bytes, which a disk writes as one sector, so a crash leaves the old or the new expiry. The
slot is bound to the key and not to the payload: a refresh that meets a newer payload of the same
key extends that one, and neither becomes unreadable. Checksums find accidents, not forgeries:
whoever can write to the medium is stopped by the payload's own MAC.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from engine.memory import Payload

MAGIC: Final = b"pcg-obj\0"
VERSION: Final = 1
MAX_KEY_NBYTES: Final = 64

_FIXED: Final = struct.Struct("<8sHHfQQ64s")
_CHECKSUM: Final = struct.Struct("<Q")
_EXPIRY: Final = struct.Struct("<d")

PAYLOAD_NBYTES_AT: Final = 16
"""Offset of the payload's length."""
EXPIRY_AT: Final = _FIXED.size + _CHECKSUM.size
"""Offset of the expiry slot."""
HEADER_NBYTES: Final = EXPIRY_AT + _EXPIRY.size + _CHECKSUM.size
"""Offset of the payload."""


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """The fields of a sound header; `recompute_cost` as in `Item`."""

    key: bytes
    payload_nbytes: int
    payload_checksum: int
    expires_at_s: float
    recompute_cost: float = 0.0

    def describes(self, payload: Payload) -> bool:
        """Whether these are the bytes that were put."""
        return len(payload) == self.payload_nbytes and checksum(payload) == self.payload_checksum


def checksum(data: Payload) -> int:
    """xxh3_64: finds any accident, at memory speed."""
    return xxhash.xxh3_64_intdigest(data)  # type: ignore[no-any-return, unused-ignore]


def encode_header(
    key: bytes, payload: Payload, expires_at_s: float, recompute_cost: float = 0.0
) -> bytes:
    """The `HEADER_NBYTES` bytes that go before `payload`. Raises ValueError for a key that is empty
    or too long."""
    if not 1 <= len(key) <= MAX_KEY_NBYTES:
        raise ValueError(f"a key has 1 to {MAX_KEY_NBYTES} bytes, not {len(key)}")
    fixed = _FIXED.pack(
        MAGIC, VERSION, len(key), recompute_cost, len(payload), checksum(payload), key
    )
    return fixed + _CHECKSUM.pack(checksum(fixed)) + encode_expiry(key, expires_at_s)


def encode_expiry(key: bytes, expires_at_s: float) -> bytes:
    """The expiry slot of an object under `key`."""
    expiry = _EXPIRY.pack(expires_at_s)
    return expiry + _CHECKSUM.pack(checksum(key + expiry))


def decode_header(data: Payload) -> ObjectHeader | None:
    """The header in the first `HEADER_NBYTES` bytes of `data`; None when they are short, damaged or
    not ours."""
    if len(data) < HEADER_NBYTES:
        return None
    magic, version, key_nbytes, recompute_cost, payload_nbytes, payload_checksum, padded = (
        _FIXED.unpack_from(data)
    )
    (fixed_checksum,) = _CHECKSUM.unpack_from(data, _FIXED.size)
    if (magic, version) != (MAGIC, VERSION) or checksum(data[: _FIXED.size]) != fixed_checksum:
        return None
    key = padded[:key_nbytes]
    (expires_at_s,) = _EXPIRY.unpack_from(data, EXPIRY_AT)
    if encode_expiry(key, expires_at_s) != data[EXPIRY_AT:HEADER_NBYTES]:
        return None
    return ObjectHeader(key, payload_nbytes, payload_checksum, expires_at_s, recompute_cost)
