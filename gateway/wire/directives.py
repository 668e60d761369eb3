"""The request headers both wire formats understand alike:

`Cache-Control` (RFC 9111, section 5.2.1) for the prefix cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_SECONDS: Final = re.compile(r'"?(\d{1,10})"?')


@dataclass(frozen=True, slots=True)
class CacheDirectives:
    """`no-cache`: read nothing. `no-store`: read nothing and keep nothing. `max-age`: read nothing
    written longer ago. `only-if-cached`: fail rather than compute a prompt of which nothing can be
    read."""

    read: bool
    store: bool
    max_age_s: float | None = None
    only_if_cached: bool = False


def cache_directives(headers: Mapping[str, str]) -> CacheDirectives:
    """`headers` has lower-case names. Unknown directives are ignored, as RFC 9111 asks."""
    parts = (word.partition("=") for word in headers.get("cache-control", "").split(","))
    words = {name.strip().lower(): value.strip() for name, _, value in parts}
    seconds = _SECONDS.fullmatch(words.get("max-age", ""))
    return CacheDirectives(
        read=not words.keys() & {"no-store", "no-cache"},
        store="no-store" not in words,
        max_age_s=float(seconds[1]) if seconds else None,
        only_if_cached="only-if-cached" in words,
    )
