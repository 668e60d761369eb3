"""SIGHUP to a real `pcg serve`: nothing ends."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import orjson

from tests.fakes.upstream import FakeUpstream, say_events
from tests.gateway.serving import ANTHROPIC, anthropic_body
from tests.gateway.whole_process import whole_process

START = {"type": "message_start", "message": {"usage": {"input_tokens": 1000, "output_tokens": 7}}}


async def test_a_hangup_ends_nothing(tmp_path: Path) -> None:
    """A stream goes on to its end, the log says that it is ignored, and the process ends later as
    it should."""
    gate = asyncio.Event()
    events = (b"data: %b\n\n" % orjson.dumps(event) for event in (START, {"type": "message_stop"}))
    async with (
        FakeUpstream(say_events(*events, before_piece={1: gate})).listening() as upstream,
        whole_process(tmp_path, "server: {drain: {delay: 0s}}", upstream.url) as process,
        aiohttp.ClientSession(process.url) as http,
    ):
        async with http.post(
            "/v1/messages", json=anthropic_body(stream=True), headers=ANTHROPIC
        ) as response:
            assert b"message_start" in await response.content.readline()
            os.kill(process.pid, signal.SIGHUP)
            await process.until(lambda: "SIGHUP is ignored" in str(process.lines))
            os.kill(process.pid, signal.SIGHUP)
            gate.set()
            assert b"message_stop" in await response.read()
        (record,) = await process.until_recorded(1, "answered")
        assert (record["input"], record["output"]) == (1000, 7)
