"""Server-sent events as bytes (WHATWG HTML, section 9.2). Knows no provider and no socket."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

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
    """One complete event with `data` as its payload, which must hold no line break (compact JSON
    never does)."""
    assert b"\n" not in data
    assert b"\r" not in data
    if event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.encode("ascii") + b"\ndata: " + data + b"\n\n"


DONE: Final = b"[DONE]"
"""The data of the event that many streams end with; it is no JSON."""

MAX_EVENT_NBYTES: Final = 16 * 1024**2
"""Of an event that is read on the way: a longer one passes unread."""

_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_BOM: Final = b"\xef\xbb\xbf"
"""May begin a stream, and is no part of it."""

_LINE: Final = re.compile(rb"\r\n|\n|\r")


class Events(NamedTuple):
    """The events that a piece completed: the bytes up to the end of the last one, and the data of
    those that have any."""

    raw: bytes
    data: list[bytes]


class EventReader:
    """Finds the events in a stream that comes in pieces, wherever these begin and end. Every byte
    comes out once, in order."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skipping = False

    @property
    def between(self) -> bool:
        """Whether the bytes that have come out so far end with an event."""
        return not self._skipping

    def feed(self, piece: bytes) -> Events:
        """An event longer than `MAX_EVENT_NBYTES` comes out unread, and before its end."""
        search_from = max(0, len(self._rest) - 3)
        self._rest += piece
        found: list[bytes] = []
        begin = 0
        for match in _BLANK_LINE.finditer(self._rest, search_from):
            data = b"" if self._skipping else _data(bytes(self._rest[begin : match.start()]))
            self._skipping = False
            begin = match.end()
            if data:
                found.append(data)
        if len(self._rest) - begin > MAX_EVENT_NBYTES:
            self._skipping = True
        if self._skipping:
            begin = max(begin, len(self._rest) - 3)
        raw = bytes(self._rest[:begin])
        del self._rest[:begin]
        return Events(raw, found)

    @property
    def rest_data(self) -> bytes:
        """The data of the bytes that have not come out yet, as if their event ended here."""
        return b"" if self._skipping else _data(bytes(self._rest))

    def rest(self) -> bytes:
        """The bytes after the last whole event, at the end of the stream."""
        raw = bytes(self._rest)
        self._rest.clear()
        return raw


def _data(event: bytes) -> bytes:
    """The `data` field of one event (WHATWG HTML, section 9.2.6)."""
    lines = (line.partition(b":") for line in _LINE.split(event.removeprefix(_BOM)))
    return b"\n".join(value.removeprefix(b" ") for name, _, value in lines if name == b"data")
