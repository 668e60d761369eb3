"""The cache's contract with the device: moving pages.

A part of the runner's contract; knows no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PageDevice(Protocol):
    """Copies, reads and writes whole pages. Calls take effect in the order they are made."""

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of a page in every layer."""
        ...

    def read_pages(self, pages: Sequence[int]) -> memoryview:
        """The raw KV bytes, page after page, in memory of their own."""
        ...

    def write_pages(self, pages: Sequence[int], body: memoryview) -> None:
        """Put the bytes of `read_pages`, or whole pages of them, into pages."""
        ...
