"""Reads the trace that a client's request is part of (W3C Trace Context)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MAX_STATE: Final = 512
"""Characters of `tracestate`: every system is to pass on so many."""

_PARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_MEMBER: Final = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x21-\x2b\x2d-\x3c\x3e-\x7e]{1,256}"
_STATE: Final = re.compile(rf"{_MEMBER}(\s*,\s*{_MEMBER}){{0,31}}")


def trace_of(headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """`traceparent`, and `tracestate` beside it, where they have the standard's form, else None: a
    log holds no other text of a client. Of later versions the fields that are known. `headers` has
    lower-case names."""
    sent = headers.get("traceparent", "")
    parent = _PARENT.match(sent)
    if parent is None or (sent != parent[0] and (sent[:2] == "00" or sent[parent.end()] != "-")):
        return None, None
    state = headers.get("tracestate", "").strip()
    fits = len(state) <= MAX_STATE and _STATE.fullmatch(state)
    return parent[0], state if fits else None
