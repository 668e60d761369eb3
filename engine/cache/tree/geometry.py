"""The sizes of blocks, spans and pages, in tokens and bytes. Arithmetic; knows no device."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cache.tree.block import TOKEN_NBYTES


@dataclass(frozen=True, slots=True)
class Geometry:
    """`span_tokens` is a multiple of `block_size`; a page of `page_nbytes` holds one block."""

    block_size: int
    page_nbytes: int
    span_tokens: int

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.span_tokens < 1 or self.span_tokens % self.block_size:
            raise ValueError(
                f"spans of {self.span_tokens} tokens are not made of blocks of {self.block_size}"
            )

    @property
    def span_blocks(self) -> int:
        """Blocks of one span."""
        return self.span_tokens // self.block_size

    def border(self, offset: int) -> int:
        """The last span border at or before token `offset`."""
        return offset - offset % self.span_tokens

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold so many tokens from a block border on."""
        return -(-num_tokens // self.block_size)

    def nbytes(self, start: int, end: int) -> int:
        """Bytes of the pages of tokens `[start, end)`; `start` is a block border."""
        return self.num_pages(end - start) * self.page_nbytes


def cut(ids: bytes, start: int, end: int) -> bytes:
    """Packed ids of tokens `[start, end)`."""
    return ids[start * TOKEN_NBYTES : end * TOKEN_NBYTES]
