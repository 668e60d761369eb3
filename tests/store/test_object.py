"""The header before every stored payload: layout, damage, refresh in place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.store.object import (
    EXPIRY_AT,
    HEADER_NBYTES,
    MAX_KEY_NBYTES,
    ObjectHeader,
    decode_header,
    encode_expiry,
    encode_header,
)

KEY = bytes(range(32))
PAYLOAD = b"some bytes"


@given(
    key=st.binary(min_size=1, max_size=MAX_KEY_NBYTES),
    payload=st.binary(max_size=200),
    expires_at_s=st.floats(0, 1e12),
)
def test_what_is_encoded_is_decoded(key: bytes, payload: bytes, expires_at_s: float) -> None:
    """A header says its key, length and expiry, and knows its payload from any other."""
    header = decode_header(encode_header(key, payload, expires_at_s))
    assert header is not None
    assert (header.key, header.payload_nbytes, header.expires_at_s) == (
        key,
        len(payload),
        expires_at_s,
    )
    assert header.describes(payload)
    assert not header.describes(payload + b"x")
    assert not header.describes(bytes([payload[0] ^ 1]) + payload[1:] if payload else b"x")


def test_the_layout_does_not_change() -> None:
    """Objects written by this version are read by later ones: these bytes are the format."""
    data = encode_header(KEY, PAYLOAD, 1_700_000_000.5)
    assert len(data) == HEADER_NBYTES == 120
    assert data.hex() == (
        "7063672d6f626a0001002000000000000a00000000000000247644b0f97cc9450001020304050607"
        "08090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f00000000000000000000000000000000"
        "00000000000000000000000000000000e2ae64ffd0ee989500002040fc54d941b1c77ad575199df1"
    )


def test_every_flipped_bit_is_noticed() -> None:
    """No bit of a header can change without the header being refused."""
    data = encode_header(KEY, PAYLOAD, 1_700_000_000.5)
    for bit in range(HEADER_NBYTES * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_header(bytes(damaged)) is None, bit


@pytest.mark.parametrize("nbytes", [0, 1, 8, 96, 104, HEADER_NBYTES - 1])
def test_a_part_of_a_header_is_none(nbytes: int) -> None:
    """A truncated header is refused."""
    assert decode_header(encode_header(KEY, PAYLOAD, 1.0)[:nbytes]) is None


def test_an_expiry_fits_any_payload_of_its_key_only() -> None:
    """A refresh that meets a newer payload extends it; the slot of another key is refused."""
    data = encode_header(KEY, b"newer", 1.0)
    assert decode_header(data[:EXPIRY_AT] + encode_expiry(KEY, 2.0)) == ObjectHeader(
        KEY, 5, decode_header(data).payload_checksum, 2.0
    )
    assert decode_header(data[:EXPIRY_AT] + encode_expiry(KEY[::-1], 2.0)) is None


def test_the_slot_is_in_the_first_sector() -> None:
    """A disk writes the expiry slot whole or not at all."""
    assert EXPIRY_AT + len(encode_expiry(KEY, 1.0)) == HEADER_NBYTES <= 512


@pytest.mark.parametrize("key", [b"", b"x" * (MAX_KEY_NBYTES + 1)])
def test_a_key_of_no_use_is_refused(key: bytes) -> None:
    """Empty and overlong keys are the caller's mistake."""
    with pytest.raises(ValueError, match="64 bytes"):
        encode_header(key, PAYLOAD, 1.0)
