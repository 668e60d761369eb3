"""The pool of device pages: which are free, handed out in contiguous runs where possible. Knows no blocks and no bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_FREE: Final = b"\x01"
_USED: Final = b"\x00"


class PagePool:
    """Pages `0 .. num_pages - 1`, each free or handed out once."""

    __slots__ = ("_cursor", "_free", "num_free", "num_pages")

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool needs at least one page, not {num_pages}")
        self.num_pages = num_pages
        self.num_free = num_pages
        self._free = bytearray(_FREE * num_pages)
        self._cursor = 0

    def allocate(self, num_pages: int, after: int | None = None, room: int = 0) -> list[int]:
        """Take `num_pages` pages, in ascending runs.

        They continue the run that ends with page `after` as far as it is free; where a new run must start, one with
        `room` free pages is preferred, so that its owner can grow in place. Raises `MemoryError` when too few are free.
        """
        if num_pages > self.num_free:
            raise MemoryError(f"{num_pages} pages wanted, {self.num_free} free")
        pages: list[int] = []
        if after is not None and num_pages:
            self._take(after + 1, min(num_pages, self._run_at(after + 1)), pages)
        while missing := num_pages - len(pages):
            room = max(room, missing)
            start = self._find_run(room)
            if start is None:
                start, room = self._find_shorter_run(room, missing)
            self._take(start, min(missing, room), pages)
            self._cursor = (start + room) % self.num_pages
            room = 0
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back; one that is not out is a bug."""
        for page in pages:
            assert self._free[page] == 0, f"page {page} is free already"
            self._free[page] = 1
            self.num_free += 1

    def is_free(self, page: int) -> bool:
        """Whether `page` is in the pool."""
        return self._free[page] == 1

    def check(self) -> None:
        """Raise AssertionError if the count and the map disagree."""
        assert len(self._free) == self.num_pages
        assert self._free.count(1) == self.num_free

    def _run_at(self, start: int) -> int:
        """Length of the free run that begins at `start`; 0 past the end."""
        end = self._free.find(_USED, start)
        return max(0, (self.num_pages if end < 0 else end) - start)

    def _find_run(self, length: int) -> int | None:
        """Start of some free run of `length` pages: the first after the last one handed out, else the first of all."""
        if length > self.num_free:
            return None
        pattern = _FREE * length
        start = self._free.find(pattern, self._cursor)
        if start < 0:
            start = self._free.find(pattern)
        return None if start < 0 else start

    def _find_shorter_run(self, length: int, missing: int) -> tuple[int, int]:
        """Start and length of the longest run found by halving; at least one page is free."""
        length = min(missing, length // 2) if length > missing else length // 2
        while (start := self._find_run(length)) is None:
            length //= 2
        return start, length

    def _take(self, start: int, num_pages: int, pages: list[int]) -> None:
        self._free[start : start + num_pages] = _USED * num_pages
        self.num_free -= num_pages
        pages.extend(range(start, start + num_pages))
