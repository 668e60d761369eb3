"""Tiers with known contents: objects as an engine writes them, in a real folder,
for tests of what reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.cache.tiers.object_format import (
    ObjectKey,
    StoredEntry,
    encode_entry,
    encode_object,
    span_key,
    stored_entry_key,
)
from engine.cache.tree.namespace import ObjectNamespace, namespace
from engine.store.base import BlockStore, Item
from engine.store.disk.store import DiskStore
from engine.store.encrypted import EncryptedStore

SECRET = b"0123456789abcdef" * 2
CAP = 64 * 1024**2
SPAN_NBYTES = 300_000


def objects(
    tenant: str, expires_at_s: float, *, num_spans: int = 2, secret: bytes = SECRET
) -> list[Item]:
    """What one cached prompt of a tenant leaves behind: spans of KV, and one entry that ends at
    token 700."""
    seal = ObjectNamespace(namespace(secret, tenant), b"r" * 32, b"a-model")
    items = []
    for i in range(num_spans):
        key = span_key(seal, bytes([i]) * 32)
        items.append(
            Item(
                key,
                encode_object(ObjectKey(key, bytes(1024)), seal, bytes([i]) * SPAN_NBYTES),
                expires_at_s,
            )
        )
    entry = StoredEntry(
        ancestor=b"a" * 32,
        ttl_s=300.0,
        expires_at_s=expires_at_s,
        refresh_on_read=True,
        position="system/0",
        offset=700,
    )
    key = stored_entry_key(seal, b"e" * 32)
    items.append(
        Item(key, encode_object(ObjectKey(key, bytes(16)), seal, encode_entry(entry)), expires_at_s)
    )
    return items


def fill(folder: Path, items: Sequence[Item], *, encrypt: bool = False) -> None:
    """Put the items into the folder and close it, as a gateway that has ended leaves it."""
    disk = DiskStore(folder, nbytes=CAP)
    store: BlockStore = EncryptedStore(disk, SECRET) if encrypt else disk
    with store:
        assert all(store.put_many(items))


def path_of(folder: Path, key: bytes) -> Path:
    """The file of the object under `key`."""
    (path,) = folder.rglob(key.hex())
    return path


def flip(path: Path, at: int) -> None:
    """Change one bit of the byte `at`; negative counts from the end."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
