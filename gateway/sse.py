"""Server-sent events as bytes (WHATWG HTML, section 9.2). Knows no provider and no socket."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SSE_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",
    }
)
"""Headers of every event stream: never stored, never held back by a buffering proxy."""

KEEPALIVE_COMMENT: Final = b": keepalive\n\n"
"""A comment: keeps idle connections open, and readers that follow the standard skip it."""


def encode_event(data: bytes, event: str | None = None) -> bytes:
    """One complete event with `data` as its payload, which must hold no line break (compact JSON never does)."""
    assert b"\n" not in data
    assert b"\r" not in data
    if event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.encode("ascii") + b"\ndata: " + data + b"\n\n"
