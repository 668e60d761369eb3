"""Streams to clients of HTTP/1.0, which know no chunks: the connection's end is theirs."""

from __future__ import annotations

import asyncio
import re

import orjson
import pytest

from tests.fakes.backend import ScriptedBackend
from tests.fakes.upstream import SSE, Say
from tests.gateway.proxying import GPT, proxying
from tests.gateway.serving import Served, anthropic_body, openai_body, serving

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
BODIES = {MESSAGES: anthropic_body, CHAT: openai_body}
KEPT = "Connection: keep-alive\r\n"


async def exchanged(served: Served, path: str, body: object, version: str, more: str) -> bytes:
    """All that comes until the gateway closes the connection."""
    data = orjson.dumps(body)
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\n{more}Content-Length: {len(data)}"
    reader, writer = await asyncio.open_connection(served.listener.host, served.listener.port)
    try:
        async with asyncio.timeout(10):
            writer.write(f"{head}\r\n\r\n".encode() + data)
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


def split(answer: bytes) -> tuple[bytes, bytes]:
    """The head in lower case, and the body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower(), body


@pytest.mark.parametrize("more", [KEPT, "", "Connection: Keep-Alive, x\r\nKeep-Alive: 60\r\n"])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_a_stream_ends_with_its_connection(path: str, more: str) -> None:
    """Though the client asks to keep it, as nginx does toward upstreams: no length, no chunks."""
    async with serving(ScriptedBackend()) as served:
        head, body = split(await exchanged(served, path, BODIES[path](stream=True), "1.0", more))
        assert b" 200 " in head
        assert b"transfer-encoding" not in head
        assert b"content-length" not in head
        assert b"connection: keep-alive" not in head
        assert body.startswith((b"event: message_start", b"data: {"))
        assert body.endswith((b'{"type":"message_stop"}\n\n', b"data: [DONE]\n\n"))
        assert served.records[-1].outcome == "answered"


async def test_a_stream_of_an_upstream_ends_with_its_connection() -> None:
    """It passes through the same place."""
    events = (b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n")
    async with proxying(openai=Say(events, headers=SSE)) as passed:
        asked = {"model": GPT, "stream": True, "messages": []}
        head, body = split(await exchanged(passed.served, CHAT, asked, "1.0", KEPT))
        assert body == b"".join(events)
        assert b"connection: keep-alive" not in head


async def test_a_stream_that_fails_ends_with_its_connection() -> None:
    """An error event is its last one."""
    async with proxying(
        openai=Say((b'data: {"choices":[]}\n\n',), headers=SSE, cut=True)
    ) as passed:
        asked = {"model": GPT, "stream": True, "messages": []}
        _, body = split(await exchanged(passed.served, CHAT, asked, "1.0", KEPT))
        assert b'"error"' in body


@pytest.mark.parametrize("large", [False, True])
async def test_a_whole_answer_keeps_its_connection(large: bool) -> None:
    """Its length is known: two requests on one connection, both answered, large ones in pieces."""
    content = orjson.dumps({"x": "y" * (300_000 if large else 10)})
    data = orjson.dumps({"model": GPT, "messages": []})
    async with proxying(openai=Say((content,))) as passed:
        served = passed.served
        reader, writer = await asyncio.open_connection(served.listener.host, served.listener.port)
        for _ in range(2):
            head = f"POST {CHAT} HTTP/1.0\r\nHost: localhost\r\n{KEPT}Content-Length: {len(data)}"
            writer.write(f"{head}\r\n\r\n".encode() + data)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b"connection: keep-alive" in answer.lower()
            length = re.search(rb"Content-Length: (\d+)", answer)
            assert length is not None
            assert await reader.readexactly(int(length[1])) == content
        writer.close()
        await writer.wait_closed()


async def test_the_chunks_of_a_later_version_stay() -> None:
    """HTTP/1.1 as before."""
    async with serving(ScriptedBackend()) as served:
        more = "Connection: close\r\n"
        head, body = split(await exchanged(served, CHAT, openai_body(stream=True), "1.1", more))
        assert b"transfer-encoding: chunked" in head
        assert body.endswith(b"0\r\n\r\n")
