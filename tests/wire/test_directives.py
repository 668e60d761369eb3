"""`Cache-Control` of a request: what each directive asks of the prefix cache."""

from __future__ import annotations

import pytest

from gateway.request import Directives
from gateway.wire.directives import cache_directives


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", Directives(True, True)),
        ("no-cache", Directives(False, True)),
        ("No-Store", Directives(False, False)),
        ("max-age=0", Directives(True, True, 0.0)),
        ('max-age="60", only-if-cached', Directives(True, True, 60.0, True)),
        ("max-age=, max-stale, private=x", Directives(True, True)),
        ("max-age=-5", Directives(True, True)),
    ],
)
def test_directives(value: str, expected: Directives) -> None:
    """Names in any case, values quoted or not; what is unknown or malformed asks for nothing."""
    assert cache_directives({"cache-control": value}) == expected
    assert cache_directives({}) == Directives(True, True)
