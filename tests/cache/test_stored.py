"""The payload format: what is put is what is read, and nothing else is ever accepted."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.tiers.object_format import (
    HEADER,
    KEY_NBYTES,
    ObjectKey,
    StoredEntry,
    decode_entry,
    decode_object,
    encode_entry,
    encode_object,
    is_intact,
    span_key,
    stored_entry_key,
    tail_key,
)
from engine.cache.tree.block import pack
from engine.cache.tree.namespace import ObjectNamespace, namespace

SECRET = b"0123456789abcdef"
SEAL = ObjectNamespace(namespace(SECRET, "ada"), b"r" * 32, b"model-bf16")
LABEL = ObjectKey(span_key(SEAL, b"k" * 32), pack(range(256)))
BODY = bytes(range(256)) * 8
PAYLOAD = encode_object(LABEL, SEAL, BODY)


def test_the_body_comes_back() -> None:
    """Without a copy of the payload."""
    assert decode_object(PAYLOAD, LABEL, SEAL) == BODY
    assert is_intact(LABEL.key, PAYLOAD)


@pytest.mark.parametrize(
    ("label", "seal"),
    [
        pytest.param(ObjectKey(b"x" * 32, LABEL.ids), SEAL, id="another key"),
        pytest.param(ObjectKey(LABEL.key, pack(range(1, 257))), SEAL, id="other tokens"),
        pytest.param(ObjectKey(LABEL.key, pack(range(255))), SEAL, id="fewer tokens"),
        pytest.param(
            LABEL,
            ObjectNamespace(SEAL.prefix, b"s" * 32, SEAL.fingerprint),
            id="another tenant or secret",
        ),
        pytest.param(
            LABEL, ObjectNamespace(SEAL.prefix, SEAL.root_key, b"model-fp32"), id="another dtype"
        ),
        pytest.param(
            LABEL, ObjectNamespace(SEAL.prefix, SEAL.root_key, b"model"), id="another model"
        ),
    ],
)
def test_what_was_stored_for_others_is_refused(label: ObjectKey, seal: ObjectNamespace) -> None:
    """A whole object under the right name is a miss unless it is this tenant's, of this model and
    these tokens."""
    assert decode_object(PAYLOAD, label, seal) is None


@given(at=st.integers(0, len(PAYLOAD) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(at: int, bit: int) -> None:
    """By the reader, wherever it is; without the secret, everywhere but in the MAC."""
    damaged = bytearray(PAYLOAD)
    damaged[at] ^= 1 << bit
    assert decode_object(bytes(damaged), LABEL, SEAL) is None
    assert is_intact(LABEL.key, bytes(damaged)) == (HEADER.size - 16 <= at < HEADER.size)


@given(size=st.integers(0, len(PAYLOAD) - 1))
def test_any_cut_is_noticed(size: int) -> None:
    """A file may end anywhere after a loss of power."""
    assert decode_object(PAYLOAD[:size], LABEL, SEAL) is None
    assert not is_intact(LABEL.key, PAYLOAD[:size])
    assert decode_object(PAYLOAD + b"\0", LABEL, SEAL) is None


@given(st.binary(max_size=300))
def test_anything_else_is_a_miss(data: bytes) -> None:
    """Bytes of whatever program."""
    assert decode_object(data, LABEL, SEAL) is None
    assert decode_entry(memoryview(data)) is None or len(data) > 20


def test_an_entry_comes_back() -> None:
    """With its times to the last bit; one that was written before entries had an end has none."""
    entry = StoredEntry(
        b"a" * 32,
        300.0,
        1_700_000_000.123456,
        refresh_on_read=True,
        position="system/0",
        offset=1234,
    )
    assert decode_entry(memoryview(encode_entry(entry))) == entry
    ending = msgspec.structs.replace(entry, ends_at_s=1_700_000_400.123456)
    assert decode_entry(memoryview(encode_entry(ending))) == ending
    older = msgspec.msgpack.encode(msgspec.structs.astuple(entry)[:-1])
    assert decode_entry(memoryview(older)) == entry


def test_keys_tell_kinds_and_tenants_apart() -> None:
    """One place gives three different keys; a tenant's keys begin alike under every model, two
    tenants' never."""
    other = ObjectNamespace(namespace(SECRET, "bob"), SEAL.root_key, SEAL.fingerprint)
    keys = [
        span_key(SEAL, b"p" * 32),
        tail_key(SEAL, b"p" * 32, b""),
        stored_entry_key(SEAL, b"p" * 32),
    ]
    assert len({*keys, *(span_key(other, b"p" * 32),)}) == 4
    assert {len(key) for key in keys} == {KEY_NBYTES}
    assert {key[:8] for key in keys} == {SEAL.prefix}
    assert namespace(SECRET, "ada") != namespace(SECRET, "bob")
    assert namespace(SECRET, "ada") != namespace(b"another secret 16", "ada")
