"""The payload: a block reads back its own bytes and nobody else's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.block import Block, full_key, pack
from engine.cache.spill import HEADER, decode_payload, encode_payload

ROOT = Block(b"r" * 32, None, b"", 0)
KV = bytes(range(64))


def block_of(*token_ids: int, parent: Block = ROOT) -> Block:
    """A block under `parent`."""
    ids = pack(token_ids)
    return Block(full_key(parent.key, ids), parent, ids, 0)


BLOCK = block_of(1, 2, 3, 4)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=16), st.binary(max_size=64), st.text(max_size=8))
def test_a_payload_reads_back(token_ids: list[int], kv: bytes, fingerprint: str) -> None:
    """Any ids, any bytes, any fingerprint."""
    block = block_of(*token_ids)
    assert decode_payload(encode_payload(block, fingerprint, kv), block, fingerprint, len(kv)) == kv


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (encode_payload(block_of(1, 2, 3, 5), "m", KV), "other token ids"),
        (encode_payload(block_of(1, 2, 3, 4, parent=block_of(9)), "m", KV), "the same ids after others"),
        (encode_payload(BLOCK, "n", KV), "another model"),
        (encode_payload(BLOCK, "m", KV[:-1]), "another page size"),
        (b"other   " + encode_payload(BLOCK, "m", KV)[8:], "another magic"),
        (b"", "nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_foreign_payloads_are_refused(payload: bytes, why: str) -> None:
    """Well formed or not: None, never somebody else's bytes."""
    assert decode_payload(payload, BLOCK, "m", len(KV)) is None, why


def test_a_key_that_lies_about_its_tokens_is_refused() -> None:
    """Token ids are compared, not the key alone."""
    liar = Block(BLOCK.key, ROOT, pack([1, 2, 3, 5]), 0)
    assert decode_payload(encode_payload(liar, "m", KV), BLOCK, "m", len(KV)) is None


@given(st.data())
def test_no_flipped_bit_and_no_cut_goes_unnoticed(data: st.DataObject) -> None:
    """Damage anywhere, header included, is a miss."""
    payload = bytearray(encode_payload(BLOCK, "m", KV))
    if data.draw(st.booleans()):
        del payload[data.draw(st.integers(0, len(payload) - 1)) :]
    else:
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert decode_payload(bytes(payload), BLOCK, "m", len(KV)) is None


def test_the_header_has_no_padding() -> None:
    """Its size is part of the format."""
    assert HEADER.size == 8 + 2 + 2 + 4 + 32 + 8
