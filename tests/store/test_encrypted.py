"""Encryption at rest: nothing readable below,
and nothing but what this secret wrote under this key comes back.
"""

from __future__ import annotations

import hmac
import random
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from engine.store.base import Item
from engine.store.disk.store import DiskStore
from engine.store.encrypted import OVERHEAD_NBYTES, EncryptedStore
from engine.store.memory import MemoryStore

T0 = 1_700_000_000.0
A, B = b"a" * 32, b"b" * 32
SECRET = b"sixteen bytes or more"
TEXT = b"the codeword is heliotrope " * 50


def test_the_disk_holds_no_plaintext(tmp_path: Path) -> None:
    """Not a word of the payload is in any file; without the wrapper the file has it."""
    with DiskStore(tmp_path, nbytes=1 << 20) as plain:
        plain.put_many([Item(B, TEXT, T0 + 60)])
    assert any(b"heliotrope" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    with EncryptedStore(DiskStore(tmp_path, nbytes=1 << 20), SECRET) as store:
        store.delete_many([B])
        store.put_many([Item(A, TEXT, T0 + 60)])
    assert not any(
        b"heliotrope" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )
    with EncryptedStore(DiskStore(tmp_path, nbytes=1 << 20), SECRET) as store:
        assert store.get_many([A], T0) == [TEXT]
        assert store.find_many([A], T0)[0] == (len(TEXT), T0 + 60)


def hkdf_sha256(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with an empty salt, 32 bytes."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def test_the_format_does_not_change() -> None:
    """Items written by this version are read by later ones: nonce, ciphertext, tag under a key of
    the item's own."""
    nonce = bytes(range(12))
    sealed = nonce + AESGCM(hkdf_sha256(SECRET, b"pcg at rest 1" + A)).encrypt(nonce, TEXT, A)
    inner = MemoryStore(1 << 20)
    inner.put_many([Item(A, sealed, T0 + 60)])
    assert EncryptedStore(inner, SECRET).get_many([A], T0) == [TEXT]


def test_equal_payloads_look_different() -> None:
    """Neither another key nor another time gives the same bytes."""
    inner = MemoryStore(1 << 20)
    store = EncryptedStore(inner, SECRET)
    store.put_many([Item(A, TEXT, T0), Item(B, TEXT, T0)])
    first = inner.get_many([A, B], T0 - 1)
    store.put_many([Item(A, TEXT, T0)])
    assert len({bytes(sealed or b"") for sealed in (*first, *inner.get_many([A], T0 - 1))}) == 3


def test_another_secret_is_a_miss_and_leaves_the_item() -> None:
    """Who does not have the secret gets nothing, and who has it still does."""
    inner = MemoryStore(1 << 20)
    right, wrong = EncryptedStore(inner, SECRET), EncryptedStore(inner, SECRET + b"!")
    right.put_many([Item(A, TEXT, T0 + 60)])
    assert wrong.get_many([A], T0) == [None]
    assert wrong.stats.num_damaged == 1
    assert right.get_many([A], T0) == [TEXT]


def test_an_item_moved_to_another_key_is_a_miss() -> None:
    """A sealed payload is bound to its key, however it got elsewhere."""
    inner = MemoryStore(1 << 20)
    store = EncryptedStore(inner, SECRET)
    store.put_many([Item(A, TEXT, T0 + 60)])
    sealed = inner.get_many([A], T0)[0]
    inner.put_many([Item(B, sealed, T0 + 60)])
    assert store.get_many([B], T0) == [None]


@pytest.mark.parametrize("nbytes", [0, 1, 11, 12, 27, 28, 100])
def test_what_it_did_not_write_is_a_miss(nbytes: int) -> None:
    """Plain payloads of any length, written before encryption was turned on, are misses."""
    inner = MemoryStore(1 << 20)
    inner.put_many([Item(A, bytes(nbytes), T0 + 60)])
    store = EncryptedStore(inner, SECRET)
    assert store.get_many([A], T0) == [None]
    found = store.find_many([A], T0)[0]
    assert found is not None
    assert found.nbytes == max(nbytes - OVERHEAD_NBYTES, 0)


def test_every_changed_byte_is_noticed() -> None:
    """Nonce, ciphertext and tag are all authenticated."""
    inner = MemoryStore(1 << 20)
    store = EncryptedStore(inner, SECRET)
    store.put_many([Item(A, b"twelve bytes", T0 + 60)])
    sealed = inner.get_many([A], T0)[0]
    assert sealed is not None
    for at in range(len(sealed)):
        flipped = (
            bytes(sealed[:at])
            + bytes([sealed[at] ^ 1 << random.Random(at).randrange(8)])
            + bytes(sealed[at + 1 :])
        )
        inner.put_many([Item(A, flipped, T0 + 60)])
        assert store.get_many([A], T0) == [None], at


def test_a_short_secret_is_refused() -> None:
    """A secret that could be guessed is no secret."""
    with pytest.raises(ValueError, match="16 bytes"):
        EncryptedStore(MemoryStore(1), b"short")
