"""The request header that every wire format understands alike: `Cache-Control`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.request import Directives

_SECONDS: Final = re.compile(r'"?(\d{1,10})"?')


def cache_directives(headers: Mapping[str, str]) -> Directives:
    """The directives of lower-case `headers`. Unknown ones are ignored, as RFC 9111 asks."""
    parts = (word.partition("=") for word in headers.get("cache-control", "").split(","))
    words = {name.strip().lower(): value.strip() for name, _, value in parts}
    seconds = _SECONDS.fullmatch(words.get("max-age", ""))
    return Directives(
        read=not words.keys() & {"no-store", "no-cache"},
        store="no-store" not in words,
        max_age_s=float(seconds[1]) if seconds else None,
        only_if_cached="only-if-cached" in words,
    )
