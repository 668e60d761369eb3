"""The address of a Redis as an operator writes it.

Knows no client; the password in it is never shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

REDIS_URL_PATTERN: Final = r"^((rediss?(\+cluster)?|valkeys?)://[^/?#\s]+|unix:///)\S*$"
"""Regular expression of the URLs a Redis, a Valkey or a Redis Cluster is reached by."""

_SCHEMES: Final = frozenset(
    {"redis", "rediss", "valkey", "valkeys", "redis+cluster", "rediss+cluster", "unix"}
)
_EXPECTED: Final = (
    "must be a URL such as redis://host:6379/0, rediss://user:password@host:6380, "
    "redis+cluster://host or unix:///path"
)


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A URL that may hold a user name and a password. Only `host` may be printed; `reveal` is for
    the client that connects."""

    _text: str = field(repr=False)

    @classmethod
    def parse(cls, value: object) -> RedisUrl:
        """Raises ValueError, without the value in its words."""
        if isinstance(value, RedisUrl):
            return value
        if not isinstance(value, str):
            raise ValueError(_EXPECTED)
        text = value.strip()
        try:
            parts = urlsplit(text)
            has_place = bool(parts.path) if parts.scheme == "unix" else bool(parts.hostname)
            _ = parts.port  # raises where it is no number
        except ValueError:
            raise ValueError(_EXPECTED) from None
        if parts.scheme not in _SCHEMES or not has_place or text != "".join(text.split()):
            raise ValueError(_EXPECTED)
        return cls(text)

    def reveal(self) -> str:
        """The URL as written, password included."""
        return self._text

    @property
    def host(self) -> str:
        """The address without user, password and options: `cache.example:6379`, or the path of a
        socket."""
        parts = urlsplit(self._text)
        if parts.scheme == "unix":
            return parts.path
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{host}:{parts.port or 6379}"
