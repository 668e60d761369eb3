"""The client's session of a request, as a hash.

Requests of one session go to one engine, and the hash does not reveal who asked.

Pure.

Only words whose meaning is a session count. Names of users (`metadata.user_id`, `user`,
`safety_identifier`) do not: one user's conversations have nothing in common, and many users' have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

SESSION_HEADERS: Final = (
    "x-session-affinity",
    "x-session-id",
    "session-id",
    "session_id",
    "x-claude-code-session-id",
)
"""The headers that clients send (opencode, Codex, Claude Code, and conventions of gateways).

The first one that is present counts.
"""


def routing_key(tenant: str, headers: Mapping[str, str], parameters: Mapping[str, Any]) -> bytes:
    """The same for requests of one tenant with the same `prompt_cache_key`, else the same session
    header; empty without.

    `headers` has lower-case names.
    """
    named = parameters.get("prompt_cache_key") or next(
        (headers[name] for name in SESSION_HEADERS if headers.get(name)), None
    )
    if named is None:
        return b""
    return hashlib.blake2b(
        f"{tenant}\0{named}".encode("utf-8", "surrogateescape"), digest_size=16
    ).digest()
