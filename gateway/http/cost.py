"""The memory that a JSON body takes once it is decoded, estimated from its bytes as they come.

The estimate is an upper bound of what CPython 3.11 to 3.14 and orjson take at the worst moment, at
most about twice it. Marks within strings count as if they were structure: to tell them apart costs
more time than it saves memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COSTS: Final = {b"{": 64, b"[": 96, b":": 160, b",": 72}
"""Bytes per mark: an object and a list, a key with its share of the table, a value with its
place."""

COPIES: Final = 2
"""Of every string at a time: as decoded, and as rendered or on its way to the engine."""

BYTE_COPIES: Final = 2
"""Of the body at a time: as read, and as sent on."""

_WIDEST: Final = tuple(bytes((lead,)) for lead in range(0xF0, 0xF5))
"""First bytes of characters beyond the basic plane."""


@dataclass(slots=True)
class BodyCost:
    """Adds up one body: `total` bytes, for what has been added so far. A string takes as many bytes
    per character as its widest needs, wherever in it that is."""

    total: int = 0
    _nbytes: int = 0
    _structure: int = 0
    _width: int = 1
    _escaping: bool = False

    def add(self, piece: bytes) -> int:
        """The total is now larger by this."""
        before = self.total
        self._nbytes += len(piece)
        split = self._escaping and piece.startswith(b"u")  # an escape on the border of two pieces
        self._width = 4 if split else max(self._width, _width(piece))
        self._escaping = piece.endswith(b"\\")
        self._structure += sum(piece.count(mark) * cost for mark, cost in COSTS.items())
        self.total = self._nbytes * (BYTE_COPIES + COPIES * self._width) + self._structure
        return self.total - before


def _width(piece: bytes) -> int:
    """Bytes per character of the widest string there can be in it. An escape `\\u` may be of any
    character."""
    if b"\\u" in piece:
        return 4
    if piece.isascii():
        return 1
    return 4 if any(lead in piece for lead in _WIDEST) else 2
