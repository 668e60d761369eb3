"""Durations and TTL classes as people write them: "5m", "300s", "1h30m", 2.5. Knows no policy."""

from __future__ import annotations

import math
import re
import sys
from typing import Final

DURATION_PATTERN: Final = r"^(\d+(\.\d+)?(ms|s|m|h|d))+$"
"""Regular expression of a duration in text form."""

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE: Final = re.compile(DURATION_PATTERN)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_EXPECTED: Final = "must be a duration such as 30s, 5m or 1h"


def parse_duration(value: object) -> float:
    """Seconds, finite and not negative. A bare number counts seconds. Raises ValueError."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = _sum_of_units(text) if _WHOLE.match(text) else float(text)
        except ValueError:
            raise ValueError(_EXPECTED) from None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= sys.float_info.max
    ):
        raise ValueError(_EXPECTED)
    return float(value)


def _sum_of_units(text: str) -> float:
    return math.fsum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def format_duration(seconds: float) -> str:
    """The shortest exact text with one unit: 300 -> "5m", 3600 -> "1h", 90 -> "90s", 86400 ->
    "24h", 0.05 -> "50ms"."""
    for unit in ("h", "m", "s", "ms"):
        number = round(seconds / _SECONDS[unit], 9)
        if number.is_integer() and (number >= 1 or (unit == "s" and not seconds)):
            return f"{number:.0f}{unit}"
    return f"{seconds:.9f}".rstrip("0") + "s"


def ttl_class_name(seconds: float) -> str:
    """The name of a TTL class in usage fields, headers and metrics: 300 -> "5m", 43200 -> "12h"."""
    return format_duration(seconds)
