"""Decodes a large JSON text in pieces, so that no single call holds up other threads for long.
Pure."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import orjson

from gateway.wire import json_text

_SPACES: Final = re.compile(rb"[ \t\r\n]*")

PIECE_NBYTES: Final = 256 * 1024
"""Decoded in one call. A string is one piece, however long it is."""


def loads(text: bytes | memoryview) -> Any:
    """As `json_text.loads`; what is wrong far down in a large text is told with its place in its
    own part of it."""
    if len(text) <= PIECE_NBYTES:
        return json_text.loads(text)
    try:
        spaces = _SPACES.match(text)
        assert spaces is not None
        match bytes(text[spaces.end() : spaces.end() + 1]):
            case b"{":
                fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
                return {key: loads(memoryview(value)) for key, value in fields.items()}
            case b"[":
                return [
                    loads(memoryview(item))
                    for item in msgspec.json.decode(text, type=list[msgspec.Raw])
                ]
    except msgspec.DecodeError as error:
        raise orjson.JSONDecodeError(str(error), "", 0) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise orjson.JSONDecodeError(type(error).__name__, "", 0) from None
    return json_text.loads(text)
