"""Keys: what they depend on, what they can never share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.tree.block import (
    Block,
    PromptKeys,
    entry_key,
    full_key,
    pack,
    partial_key,
    root_key,
    unpack,
)

SECRET = b"0123456789abcdef"
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=20)


@given(IDS)
def test_packed_ids_are_little_endian_uint32(ids: list[int]) -> None:
    """Four bytes per id, and back again."""
    assert pack(ids) == b"".join(i.to_bytes(4, "little") for i in ids)
    assert unpack(pack(ids)) == tuple(ids)


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_ids_that_do_not_fit_are_refused(token_id: int) -> None:
    """No id is ever cut to 32 bits."""
    with pytest.raises(OverflowError):
        pack([token_id])


def test_known_keys() -> None:
    """Keys are part of what tiers store: these values may only change together with
    LAYOUT_VERSION."""
    root = root_key(SECRET, "default", "model", 16)
    assert root.hex() == "0139341bf88fbc3fd8d5e7df271ea4e8df631074b2709727ec1b23b0e105e38c"
    assert (
        full_key(root, pack(range(16))).hex()
        == "1f23d846945b849fbb84c1e8b15c1f7a178525f166aeaec97cf51f3d54368931"
    )
    assert (
        partial_key(root, pack(range(3))).hex()
        == "21fd4ca21f52caa0dca32cc98e744844c51fc6c541c1bc1682241edbb423c70b"
    )
    assert (
        entry_key(root, pack(range(3)), "auto").hex()
        == "406e639023799473151dbc1d4371f7cdcfbac253de77b85f4ded0f1afd4815e6"
    )


@pytest.mark.parametrize(
    ("secret", "tenant", "fingerprint", "block_size"),
    [
        (b"fedcba9876543210", "a", "m", 16),
        (SECRET, "b", "m", 16),
        (SECRET, "a", "n", 16),
        (SECRET, "a", "m", 32),
        (SECRET, "am", "", 16),
        (SECRET, "", "am", 16),
    ],
)
def test_roots_differ_in_every_part(
    secret: bytes, tenant: str, fingerprint: str, block_size: int
) -> None:
    """Secret, tenant, fingerprint and block size each give another root, however they are cut."""
    assert root_key(secret, tenant, fingerprint, block_size) != root_key(SECRET, "a", "m", 16)


@given(IDS, st.text(max_size=3))
def test_kinds_of_keys_never_meet(ids: list[int], salt: str) -> None:
    """The same parent and ids give three different keys as full block, partial block and entry."""
    parent = root_key(SECRET, "a", "m", 16)
    packed = pack(ids)
    assert (
        len(
            {full_key(parent, packed), partial_key(parent, packed), entry_key(parent, packed, salt)}
        )
        == 3
    )


def test_a_salt_cannot_be_mistaken_for_ids() -> None:
    """Moving bytes between tail and salt gives another entry."""
    parent = root_key(SECRET, "a", "m", 16)
    assert entry_key(parent, pack([0x41414141]), "") != entry_key(parent, b"", "AAAA")


@given(IDS.filter(bool), st.data())
def test_keys_along_a_prompt_are_those_of_its_blocks(ids: list[int], data: st.DataObject) -> None:
    """Hashed in any order and with any known beginning, the keys are the chain's."""
    root = Block(b"root", None, b"", 0)
    chain = [root]
    for start in range(0, len(ids) - 3, 4):
        packed = pack(ids[start : start + 4])
        chain.append(Block(full_key(chain[-1].key, packed), chain[-1], packed, start))
    keys = PromptKeys(root, pack(ids), 4, chain[1 : data.draw(st.integers(1, len(chain)))])
    for offset in data.draw(st.lists(st.integers(0, len(ids)))):
        assert keys.ancestor(offset) == chain[offset // 4].key
        assert keys.tail(offset) == pack(ids[offset // 4 * 4 : offset])
