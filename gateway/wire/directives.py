"""The request headers both wire formats understand alike: `Cache-Control` (RFC 9111, section 5.2.1) for the prefix cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheDirectives:
    """`no-cache`: read nothing. `no-store`: read nothing and keep nothing."""

    read: bool
    store: bool


def cache_directives(headers: Mapping[str, str]) -> CacheDirectives:
    """`headers` has lower-case names. Unknown directives are ignored, as RFC 9111 asks."""
    words = {word.split("=")[0].strip().lower() for word in headers.get("cache-control", "").split(",")}
    return CacheDirectives(read=not words & {"no-store", "no-cache"}, store="no-store" not in words)
