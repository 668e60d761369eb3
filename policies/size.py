"""Sizes of memory and files as people write them: "8GiB", "25%", 1048576. Knows no machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

SIZE_PATTERN: Final = r"^\d+(\.\d+)?\s*([KMGT]i?B|B|%)?$"
"""Regular expression of a size in text form."""

_SIZE: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*([KMGT]i?B|B|%)?$")
_UNITS: Final = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
}
_EXPECTED: Final = "must be a size such as 8GiB, 512MiB or 25%"


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes, or a share of some memory that only the caller can measure."""

    nbytes: int = 0
    share: Fraction | None = None

    @classmethod
    def parse(cls, value: object) -> Size:
        """Reads "8GiB", "25%" or a count of bytes. Raises ValueError."""
        if isinstance(value, Size):
            return value
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(_EXPECTED)
        match = _SIZE.match(str(value).strip())
        if match is None:
            raise ValueError(_EXPECTED)
        number, unit = Fraction(match[1]), match[2] or "B"
        if unit != "%":
            return cls(nbytes=int(number * _UNITS[unit]))
        if number > 100:
            raise ValueError("must be at most 100%")
        return cls(share=number / 100)

    def resolve(self, total_nbytes: int) -> int:
        """Bytes, where `total_nbytes` is the memory a share is taken of. Rounds down."""
        return self.nbytes if self.share is None else int(self.share * total_nbytes)

    def __str__(self) -> str:
        if self.share is not None:
            return f"{Decimal(self.share.numerator * 100) / self.share.denominator:f}%"
        for unit, factor in reversed(_UNITS.items()):
            if unit.endswith("iB") and self.nbytes and self.nbytes % factor == 0:
                return f"{self.nbytes // factor}{unit}"
        return str(self.nbytes)


def parse_nbytes(value: object) -> int:
    """As `Size.parse` for places where a share means nothing. Raises ValueError."""
    size = Size.parse(value)
    if size.share is not None:
        raise ValueError("must be a size such as 8GiB or 512MiB")
    return size.nbytes
