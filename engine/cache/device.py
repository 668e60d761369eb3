"""What the cache asks of the device: moving pages. A part of the runner's contract; knows no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PageDevice(Protocol):
    """Copies, reads and writes whole pages. Calls take effect in the order they are made."""

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of a page in every layer."""
        ...

    def read_pages(self, pages: Sequence[int]) -> list[bytes]:
        """The raw KV bytes of each page."""
        ...

    def write_pages(self, pages: Sequence[int], payloads: Sequence[bytes]) -> None:
        """Put bytes that `read_pages` returned back into pages."""
        ...
