"""Names for requests. Pure but for the random bits; knows no HTTP."""

from __future__ import annotations

import re
import secrets
from typing import Final

from gateway.request import WireName

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


def native_id(wire: WireName, request_id: str) -> str:
    """The id in the provider's own form: Anthropic's begin with `req_`."""
    if wire == "anthropic" and not request_id.startswith("req_"):
        return "req_" + request_id.replace("-", "")
    return request_id


def id_headers(wire: WireName, request_id: str) -> dict[str, str]:
    """The headers every answer names its request with: ours, and the one the provider's SDK
    reads."""
    name = "request-id" if wire == "anthropic" else "x-request-id"
    return {"pcg-request-id": request_id, name: native_id(wire, request_id)}
