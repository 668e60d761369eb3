"""Ids of requests. Pure but for the random bits; knows no HTTP and no provider."""

from __future__ import annotations

import re
import secrets
from typing import Final

_SANE: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id(client: str | None, now_s: float) -> str:
    """The client's own id if it is short and plain, else a UUIDv7 (RFC 9562 §5.7) of `now_s`:
    sorted by time."""
    if client is not None and _SANE.fullmatch(client):
        return client
    milliseconds = int(now_s * 1000) & (2**48 - 1)
    value = (
        milliseconds << 80
        | 0x7 << 76
        | secrets.randbits(12) << 64
        | 0b10 << 62
        | secrets.randbits(62)
    )
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
