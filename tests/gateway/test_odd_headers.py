"""Header fields that hold no text, whoever reads them: over a real socket, as nothing but bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from gateway.wire.plain import plain_headers
from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import Served, anthropic_body, openai_body, serving

ODD = [b"\xff", b"\xed\xa0\x80"]
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", anthropic_body()),
    ("/v1/messages", anthropic_body(diagnostics={"previous_message_id": None})),
    ("/v1/chat/completions", openai_body()),
    ("/v1/responses", {"model": "gpt-5.6", "input": "Hi"}),
]
READ = (
    b"anthropic-version",
    b"anthropic-beta",
    b"openai-beta",
    b"cache-control",
    b"x-session-id",
    b"x-request-id",
    b"x-api-key",
)
"""Fields that somebody reads."""


async def status(served: Served, request: bytes) -> int:
    """Of the answer to a request of these bytes."""
    reader, writer = await asyncio.open_connection(served.listener.host, served.listener.port)
    writer.write(request)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_field_that_is_no_text_is_as_good_as_not_sent(
    path: str, body: dict[str, Any], value: bytes
) -> None:
    """Whatever it would have said; also where whole answers are kept, whose keys hold some of
    them."""
    data = orjson.dumps(body)
    async with serving(
        ScriptedBackend(), "caching: {responses: {enabled: true, sampled: true}}"
    ) as served:
        for name in READ:
            head = (
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
                f"{len(data)}\r\n"
            ).encode()
            assert await status(served, head + name + b": " + value + b"\r\n\r\n" + data) == 200, (
                name
            )


@pytest.mark.parametrize("path", ["/health", "/admin/cache/stat", "/v1/models"])
async def test_a_key_that_is_no_text_is_none(path: str) -> None:
    """For clients and for operators alike."""
    async with serving(
        ScriptedBackend(), "tenants: [{name: a, keys: [key-of-a]}]", root_secret=b"s" * 32
    ) as served:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
        assert await status(served, head + b"x-api-key: \xff\r\n\r\n") == 401
        assert await status(served, head + b"x-api-key: key-of-a\r\n\r\n") == 200


def test_fields_are_plain() -> None:
    """Lower-case, joined, and nothing that could not be written again."""
    told = {"A": "1", "b": "\x01", "c": "\udcff", "d": "a\tb é", "E": "x\x7f"}
    assert plain_headers(told) == {"a": "1", "d": "a\tb é"}
