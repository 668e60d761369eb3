"""The address and the key of an upstream, as an operator writes them.

Knows no client; the key is never shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

BASE_URL_PATTERN: Final = r"^https?://[^/?#\s@]+(/[^?#\s]*)?$"
"""Regular expression of the URLs an upstream's API is reached at."""

_BASE_URL: Final = re.compile(BASE_URL_PATTERN)
_EXPECTED: Final = (
    "must be a URL such as http://127.0.0.1:8000 or https://api.example.com/v1, "
    "without user, query and fragment"
)
_VERSIONED: Final = re.compile(r"/v\d+[a-z0-9]*$")
_VERSION: Final = "/v1"
"""Begins every path that clients use here."""

_KEY: Final = re.compile(r"[\x21-\x7e]{1,4096}")


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """The root of an upstream's API, without a slash at the end."""

    text: str

    @classmethod
    def parse(cls, value: object) -> BaseUrl:
        """Raises ValueError, without the value in its words: a password may stand where none
        belongs."""
        if isinstance(value, BaseUrl):
            return value
        if not isinstance(value, str) or _BASE_URL.match(value.strip()) is None:
            raise ValueError(_EXPECTED)
        text = value.strip().rstrip("/")
        try:
            parts = urlsplit(text)
            _ = parts.port  # raises where it is no number
        except ValueError:
            raise ValueError(_EXPECTED) from None
        if not parts.hostname:
            raise ValueError(_EXPECTED)
        return cls(text)

    def join(self, path: str) -> str:
        """The URL of a client's path, which begins with /v1. A base that ends in a version of its
        own replaces that one."""
        return self.text + (path.removeprefix(_VERSION) if _VERSIONED.search(self.text) else path)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Secret:
    """A key to be shown to an upstream. Never printed; `reveal` is for the client that sends it."""

    _text: str = field(repr=False)

    @classmethod
    def parse(cls, value: object) -> Secret:
        """Raises ValueError for a text that cannot stand in a header."""
        if isinstance(value, Secret):
            return value
        if not isinstance(value, str):
            raise ValueError("must be text in quotes, best ${ENV:NAME} or ${FILE:/path}")
        text = value.strip()
        if _KEY.fullmatch(text) is None:
            raise ValueError("must be a key of visible ASCII characters without spaces")
        return cls(text)

    def reveal(self) -> str:
        """The key as written."""
        return self._text
