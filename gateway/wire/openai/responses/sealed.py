"""Reasoning as `encrypted_content`: opaque to clients,
for those that keep nothing here and send it back.

Knows no items.

It is the client's own answer, so it is packed, not encrypted: a client that unpacks it reads the
text of `content`.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Final, NamedTuple

PREFIX: Final = "pcg1."
MAX_NBYTES: Final = 4 * 1024 * 1024
"""Of all reasoning of a body, unpacked: a small body must not become a large prompt."""


def sealed(text: str) -> str:
    """The text, packed."""
    return PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()


class Unsealed(NamedTuple):
    """A text, empty where there is none, and how many bytes were unpacked to know it."""

    text: str
    nbytes: int = 0


def unsealed(content: str, max_nbytes: int = MAX_NBYTES) -> Unsealed:
    """The text that was sealed, if it has at most `max_nbytes`; empty for anything else."""
    if not content.startswith(PREFIX):
        return Unsealed("")
    data = b""
    try:
        packed = base64.urlsafe_b64decode(content.removeprefix(PREFIX))
        data = zlib.decompressobj().decompress(packed, max_nbytes + 1)
        text = data.decode() if len(data) <= max_nbytes else ""
    except (binascii.Error, zlib.error, ValueError):
        text = ""
    return Unsealed(text, min(len(data), max_nbytes))
