"""Replies to operators: JSON, and errors as RFC 9457 problems."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from gateway.errors import GatewayError


def json_reply(
    content: Any, status: int = 200, content_type: str = "application/json"
) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(content),
        headers={"Content-Type": content_type, "Cache-Control": "no-store"},
    )


def problem(status: int, error: GatewayError) -> web.Response:
    """RFC 9457, for routes that are ours alone."""
    content = {
        "type": "about:blank",
        "title": type(error).__name__,
        "status": status,
        "detail": error.message,
    }
    return json_reply(content, status, "application/problem+json")
