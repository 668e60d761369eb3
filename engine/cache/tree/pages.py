"""The pool of device pages: which are free, handed out in contiguous runs where possible.

Knows no blocks and no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_USED: Final = b"\x00"
_FREE: Final = b"\x01"
_CLAIMED: Final = b"\x02"
"""Free, and in the way of a run that its owner said would grow: taken by others only where nothing
else is as long."""


class PagePool:
    """Pages `0 .. num_pages - 1`, each free or handed out once.

    The lowest free run that is long enough is taken: pages that were used before come before memory
    that was never touched, which costs many times as much to write.
    """

    __slots__ = ("_states", "num_free", "num_pages")

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool needs at least one page, not {num_pages}")
        self.num_pages = num_pages
        self.num_free = num_pages
        self._states = bytearray(_FREE * num_pages)

    def allocate(self, num_pages: int, after: int | None = None, room: int = 0) -> list[int]:
        """Take `num_pages` pages, in ascending runs.

        They continue the run that ends with page `after` as far as it is free; where a new run must
        start, one with `room` free pages is preferred, so that its owner can grow in place, and the
        rest of it is claimed until the owner's `settle`. Raises `MemoryError` when too few are
        free.
        """
        if num_pages > self.num_free:
            raise MemoryError(f"{num_pages} pages wanted, {self.num_free} free")
        pages: list[int] = []
        if after is not None and num_pages:
            self._take(after + 1, min(num_pages, self._run_at(after + 1)), pages)
        while missing := num_pages - len(pages):
            start, length = self._find(missing, max(room, missing))
            self._take(start, min(missing, length), pages)
            self._states[start + missing : start + length] = _CLAIMED * (length - missing)
            room = 0
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back; one that is not out is a bug."""
        for page in pages:
            assert self._states[page] == _USED[0], f"page {page} is free already"
            self._states[page] = _FREE[0]
            self.num_free += 1

    def settle(self, page: int) -> None:
        """The run that ends with `page` will not grow any more."""
        end = start = page + 1
        while self._states[end : end + 1] == _CLAIMED:
            end += 1
        self._states[start:end] = _FREE * (end - start)

    def is_free(self, page: int) -> bool:
        """Whether `page` is in the pool."""
        return self._states[page] != _USED[0]

    def check(self) -> None:
        """Raise AssertionError if the count and the map disagree."""
        assert len(self._states) == self.num_pages
        assert self.num_pages - self._states.count(_USED) == self.num_free

    def _run_at(self, start: int) -> int:
        """Length of the free run that begins at `start`; 0 past the end."""
        end = self._states.find(_USED, start)
        return max(0, (self.num_pages if end < 0 else end) - start)

    def _find(self, missing: int, room: int) -> tuple[int, int]:
        """The start and length of a free run to take `missing` pages from.

        It is a run with `room` if there is one, else a run that holds the missing pages, else, over
        all claims, the longest found by halving. At least one page is free.
        """
        length = room
        while (start := self._states.find(_FREE * length)) < 0:
            if length > missing:
                length = max(missing, length // 2)
            elif _CLAIMED in self._states:
                self._states = self._states.replace(_CLAIMED, _FREE)
            else:
                length //= 2
        return start, length

    def _take(self, start: int, num_pages: int, pages: list[int]) -> None:
        self._states[start : start + num_pages] = _USED * num_pages
        self.num_free -= num_pages
        pages.extend(range(start, start + num_pages))
