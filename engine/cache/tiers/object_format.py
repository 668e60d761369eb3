"""The objects in the tiers below the device: their keys and their one payload format.

Pure bytes; knows no stores, pages or clocks.

Three kinds of objects. A *span* holds the KV of 16 blocks of 16 tokens (256 tokens, aligned in
absolute positions), a *tail* the KV between the last span border and the exact end of an entry, an
*entry* what was promised there. Every one is found by a key that can be computed from the tokens
and the tenant's root key: no index is ever rebuilt from a tier.

A key is 32 bytes: 8 that are the tenant's under this secret, whatever the model, so that a scan can
tell whose an object is, then 24 of SHA-256 over a tag and the key of the place (a chain over all
tokens before it).

A payload is `HEADER | fingerprint | token ids | body`. The checksum finds damage and needs no
secret; the MAC, under the tenant's root key, covers everything but the body itself, and the body by
its checksum: an object of another tenant, secret or model is never accepted. Whoever can write to a
store *and* forge xxh3 could still alter KV: encryption at rest is the answer to that.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from dataclasses import dataclass
from typing import Final

import msgspec
import xxhash

from engine.cache.tree.block import LAYOUT_VERSION
from engine.cache.tree.namespace import NAMESPACE_NBYTES, ObjectNamespace
from engine.memory import Payload, joined

SPAN_TOKENS: Final = 256

MAGIC: Final = b"pcg-kv\0\1"
MAC_NBYTES: Final = 16
KEY_NBYTES: Final = 32
HEADER: Final = struct.Struct(f"<8sHHIQQ{KEY_NBYTES}s{MAC_NBYTES}s")
"""Magic, layout version, bytes of fingerprint, bytes of token ids, bytes of body, xxh3_64 of all
after the header, key, MAC."""


@dataclass(frozen=True, slots=True, repr=False)
class ObjectKey:
    """The label of an object besides its body: its key and its own packed token ids."""

    key: bytes
    ids: bytes


class StoredEntry(msgspec.Struct, frozen=True, array_like=True):
    """The body of an entry: see `engine/cache/tree/entries.py`. Its expiry is here, not in the
    store: a refresh rewrites it.

    `position` and `offset` are for people who list what is stored; the request says where an entry
    is.
    """

    ancestor: bytes
    ttl_s: float
    expires_at_s: float
    refresh_on_read: bool
    position: str
    offset: int
    ends_at_s: float = math.inf


def span_key(namespace: ObjectNamespace, last_block: bytes) -> bytes:
    """Key of the span whose last full block has the key `last_block`."""
    return _key(namespace, b"SPAN", last_block)


def tail_key(namespace: ObjectNamespace, ancestor: bytes, tail: bytes) -> bytes:
    """Key of the tail that ends `tail` (packed ids, less than a block) after the full block with
    key `ancestor`."""
    return _key(namespace, b"TAIL", ancestor + tail)


def stored_entry_key(namespace: ObjectNamespace, entry: bytes) -> bytes:
    """Key of the object that keeps the entry with key `entry`."""
    return _key(namespace, b"ENTRY", entry)


def encode_object(label: ObjectKey, namespace: ObjectNamespace, body: Payload) -> Payload:
    """A payload with this body."""
    checksum = xxhash.xxh3_64(namespace.fingerprint + label.ids)
    checksum.update(body)
    sizes = len(namespace.fingerprint), len(label.ids), len(body)
    open_header = HEADER.pack(
        MAGIC, LAYOUT_VERSION, *sizes, checksum.intdigest(), label.key, bytes(MAC_NBYTES)
    )
    mac = _mac(namespace, open_header, label.ids)
    return joined((open_header[:-MAC_NBYTES], mac, namespace.fingerprint, label.ids, body))


def decode_object(
    payload: Payload, label: ObjectKey, namespace: ObjectNamespace
) -> memoryview | None:
    """The body, a view of the payload; None when that is damaged, or of another key, tenant, model,
    layout or other tokens."""
    header = bytes(payload[: HEADER.size])
    ids_at = HEADER.size + len(namespace.fingerprint)
    body_at = ids_at + len(label.ids)
    if len(payload) < body_at:
        return None
    magic, version, num_fingerprint, num_ids, num_body, checksum, key, mac = HEADER.unpack(header)
    if (
        (magic, version, num_fingerprint, num_ids)
        != (MAGIC, LAYOUT_VERSION, len(namespace.fingerprint), len(label.ids))
        or key != label.key
        or len(payload) != body_at + num_body
        or payload[HEADER.size : ids_at] != namespace.fingerprint
        or payload[ids_at:body_at] != label.ids
        or not hmac.compare_digest(
            mac, _mac(namespace, header[:-MAC_NBYTES] + bytes(MAC_NBYTES), label.ids)
        )
        or xxhash.xxh3_64_intdigest(memoryview(payload)[HEADER.size :]) != checksum
    ):
        return None
    return memoryview(payload)[body_at:]


def is_intact(key: bytes, payload: Payload) -> bool:
    """Whether a payload is what some engine stored under `key`, as far as can be told without the
    secret."""
    if len(payload) < HEADER.size:
        return False
    magic, version, num_fingerprint, num_ids, num_body, checksum, own_key, _ = HEADER.unpack_from(
        payload
    )
    return (
        (magic, version, own_key) == (MAGIC, LAYOUT_VERSION, key)
        and len(payload) == HEADER.size + num_fingerprint + num_ids + num_body
        and xxhash.xxh3_64_intdigest(memoryview(payload)[HEADER.size :]) == checksum
    )


def encode_entry(entry: StoredEntry) -> bytes:
    """The body of an entry's object."""
    return msgspec.msgpack.encode(entry)


def decode_entry(body: memoryview) -> StoredEntry | None:
    """The inverse; None for anything else."""
    try:
        return msgspec.msgpack.decode(body, type=StoredEntry)
    except msgspec.MsgspecError:
        return None


def _key(namespace: ObjectNamespace, kind: bytes, place: bytes) -> bytes:
    digest = hashlib.sha256(kind + b"\0" + place).digest()
    return namespace.prefix + digest[: KEY_NBYTES - NAMESPACE_NBYTES]


def _mac(namespace: ObjectNamespace, open_header: bytes, ids: bytes) -> bytes:
    message = open_header + namespace.fingerprint + ids
    return hashlib.blake2b(message, key=namespace.root_key, digest_size=MAC_NBYTES).digest()
