"""Encryption at rest around any store:

AES-256-GCM, a key of its own for every item. Needs the `encrypt` extra.

Stored KV is as sensitive as the prompt itself. With encryption, an attacker who has the disk or the
Redis server but not the secret sees only keys and lengths. The keys of a store are themselves
keyed hashes that no two tenants have in common, so a key derived from the secret and the item's key
is the tenant's too.

    stored payload = 12 random bytes (nonce) + ciphertext + 16 bytes (tag)

The item's key is authenticated with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from engine.memory import Lend, Payload, buffer
from engine.store.base import BlockStore, Found, Item

NONCE_NBYTES: Final = 12
OVERHEAD_NBYTES: Final = NONCE_NBYTES + 16
"""A stored payload is longer by so many bytes."""
MIN_SECRET_NBYTES: Final = 16


class EncryptedStore:
    """`inner` sees ciphertext only. What another secret, another key or another hand wrote is a
    miss, and left there.

    Shares `inner.stats`; a payload that can't be decrypted counts as damaged.
    """

    def __init__(self, inner: BlockStore, secret: bytes, lend: Lend = buffer) -> None:
        """Decrypted payloads lie in memory from `lend`. Raises ValueError for a secret of less than
        16 bytes."""
        if len(secret) < MIN_SECRET_NBYTES:
            raise ValueError(f"the secret must have at least {MIN_SECRET_NBYTES} bytes")
        self.stats = inner.stats
        self._inner = inner
        self._secret = secret
        self._lend = lend
        self._lock = threading.Lock()

    def find_many(self, keys: Sequence[bytes], now_s: float) -> list[Found | None]:
        """One answer per key, with the payload's own length; whether it can be decrypted is not
        known before it is read."""
        return [found and plain(found) for found in self._inner.find_many(keys, now_s)]

    def get_many(self, keys: Sequence[bytes], now_s: float) -> list[Payload | None]:
        """One payload or None per key."""
        sealed = self._inner.get_many(keys, now_s)
        return [
            None if payload is None else self._open(key, payload)
            for key, payload in zip(keys, sealed, strict=True)
        ]

    def put_many(self, items: Sequence[Item], *, only_longer: bool = False) -> list[bool]:
        """Encrypt and store."""
        return self._inner.put_many([self._seal(item) for item in items], only_longer=only_longer)

    def refresh_many(
        self, expiries: Mapping[bytes, float], *, only_longer: bool = False
    ) -> list[bool]:
        """Move expiries, which are not encrypted."""
        return self._inner.refresh_many(expiries, only_longer=only_longer)

    def expire(self, now_s: float) -> None:
        """Delete some of what has expired."""
        self._inner.expire(now_s)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Forget the keys."""
        self._inner.delete_many(keys)

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        """Every item held, with the payload's own length."""
        return ((key, plain(found)) for key, found in self._inner.scan())

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inner.__exit__(kind, error, trace)

    def _seal(self, item: Item) -> Item:
        sealed = buffer(len(item.payload) + OVERHEAD_NBYTES)
        sealed[:NONCE_NBYTES] = nonce = os.urandom(NONCE_NBYTES)
        self._cipher(item.key).encrypt_into(nonce, item.payload, item.key, sealed[NONCE_NBYTES:])
        return item._replace(payload=sealed.toreadonly())

    def _open(self, key: bytes, sealed: Payload) -> Payload | None:
        view = memoryview(sealed)
        opened = self._lend(max(len(sealed) - OVERHEAD_NBYTES, 0))
        try:
            self._cipher(key).decrypt_into(view[:NONCE_NBYTES], view[NONCE_NBYTES:], key, opened)
        except (InvalidTag, ValueError):  # ValueError: too short to be ours
            with self._lock:
                self.stats.num_damaged += 1
            return None
        return opened.toreadonly()

    def _cipher(self, key: bytes) -> AESGCM:
        return AESGCM(
            HKDF(SHA256(), 32, salt=None, info=b"pcg at rest 1" + key).derive(self._secret)
        )


def plain(found: Found) -> Found:
    """An item as it was before encryption."""
    return found._replace(nbytes=max(found.nbytes - OVERHEAD_NBYTES, 0))
