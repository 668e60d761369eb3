"""`Cache-Control` of a request: what each directive asks of the prefix cache."""

from __future__ import annotations

import pytest

from gateway.wire.directives import CacheDirectives, cache_directives


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", CacheDirectives(True, True)),
        ("no-cache", CacheDirectives(False, True)),
        ("No-Store", CacheDirectives(False, False)),
        ("max-age=0", CacheDirectives(True, True, 0.0)),
        ('max-age="60", only-if-cached', CacheDirectives(True, True, 60.0, True)),
        ("max-age=, max-stale, private=x", CacheDirectives(True, True)),
        ("max-age=-5", CacheDirectives(True, True)),
    ],
)
def test_directives(value: str, expected: CacheDirectives) -> None:
    """Names in any case, values quoted or not; what is unknown or malformed asks for nothing."""
    assert cache_directives({"cache-control": value}) == expected
    assert cache_directives({}) == CacheDirectives(True, True)
