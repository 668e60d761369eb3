"""What is no HTTP: refused, and nothing of it in any log, over a real socket."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import serving

START = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        START + b"Transfer-Encoding: chunked\r\n\r\n7\r\nsecret prompt\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\nsecret\r\n",
        START + b"x-api-key: secret\x01\r\n\r\n",
        START + b"x-api-key: " + b"secret" * 20_000 + b"\r\n\r\n",
        b"POST /v1/secret\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"secret\r\n\r\n",
    ],
    ids=["chunk", "chunk size", "control character", "too long", "path", "no request"],
)
async def test_what_cannot_be_read_is_not_logged(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It may hold a prompt or a key; what kind of error it was is."""
    with capture_logs() as told, caplog.at_level("DEBUG"):
        async with serving(ScriptedBackend()) as served:
            reader, writer = await asyncio.open_connection(
                served.listener.host, served.listener.port
            )
            writer.write(request_bytes)
            async with asyncio.timeout(20):
                assert (await reader.read()).split(b" ", 2)[1] == b"400"
            writer.close()
            await writer.wait_closed()
    assert "secret" not in caplog.text
    assert "secret" not in str(told)
    assert [(line["event"], line["log_level"]) for line in told] == [("http", "error")]
    assert told[0]["error"] in (
        "BadHttpMessage",
        "BadStatusLine",
        "BadHttpMethod",
        "InvalidURLError",
        "LineTooLong",
    )
