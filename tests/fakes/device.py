"""A device whose KV can be read: each token's slot holds a digest of all tokens up to it,
as real KV depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from engine.cache.tree.block import pack

SLOT_NBYTES = 8
GARBAGE = b"\xfe"


class FakeDevice:
    """Pages of `block_size` slots in memory. Slots nobody computed hold garbage, and a copy brings
    nothing past its tokens."""

    def __init__(self, num_pages: int, block_size: int) -> None:
        self.block_size = block_size
        self.page_nbytes = block_size * SLOT_NBYTES
        self.pages = [bytearray(GARBAGE * self.page_nbytes) for _ in range(num_pages)]

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        assert source != target
        nbytes = num_tokens * SLOT_NBYTES
        self.pages[target][:] = self.pages[source][:nbytes] + GARBAGE * (self.page_nbytes - nbytes)

    def read_pages(self, pages: Sequence[int]) -> memoryview:
        return memoryview(b"".join(self.pages[page] for page in pages))

    def write_pages(self, pages: Sequence[int], body: memoryview) -> None:
        assert len(body) == len(pages) * self.page_nbytes
        for i, page in enumerate(pages):
            self.pages[page][:] = body[i * self.page_nbytes : (i + 1) * self.page_nbytes]

    def compute(
        self, block_table: Sequence[int], token_ids: Sequence[int], start: int, end: int
    ) -> None:
        """What the model would do: fill the slots of tokens `[start, end)`."""
        for i in range(start, end):
            at = i % self.block_size * SLOT_NBYTES
            self.pages[block_table[i // self.block_size]][at : at + SLOT_NBYTES] = digest(
                token_ids[: i + 1]
            )

    def holds(self, block_table: Sequence[int], token_ids: Sequence[int], num_tokens: int) -> bool:
        """Whether the first `num_tokens` slots hold exactly the KV of `token_ids`."""
        for i in range(num_tokens):
            at = i % self.block_size * SLOT_NBYTES
            if self.pages[block_table[i // self.block_size]][at : at + SLOT_NBYTES] != digest(
                token_ids[: i + 1]
            ):
                return False
        return True


def digest(token_ids: Sequence[int]) -> bytes:
    """Eight bytes that depend on every token."""
    return xxhash.xxh3_64_digest(pack(token_ids))
