"""Connections of a real `pcg serve`:
those that wait do not keep those that work from being served.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gateway.http.connections import most_connections
from tests.fakes.upstream import FakeUpstream, Say, say_json
from tests.gateway.serving import ANTHROPIC, anthropic_body
from tests.gateway.whole_process import WholeProcess, whole_process

USAGE = {"input_tokens": 3, "output_tokens": 2}
ANSWER = say_json(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": USAGE,
    }
)
HEAD = b"GET /livez HTTP/1.1\r\nHost: x\r\n"

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def gateway(folder: Path, server: str, say: Say = ANSWER) -> AsyncIterator[WholeProcess]:
    policy = f"server: {{drain: {{delay: 0s, timeout: 1s}}, {server}}}"
    async with (
        FakeUpstream(say).listening() as upstream,
        whole_process(folder, policy, upstream.url) as process,
    ):
        yield process


async def connect(process: WholeProcess, sent: bytes = b"") -> Ends:
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
    writer.write(sent)
    return reader, writer


async def ended(ends: Ends) -> bytes:
    """What comes until the other side closes the connection, which it has to."""
    reader, writer = ends
    async with asyncio.timeout(30):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


async def told(ends: Ends) -> bytes:
    """The first line of an answer."""
    async with asyncio.timeout(30):
        return await ends[0].readline()


async def ask(process: WholeProcess) -> int:
    """The status of a request on a connection of its own."""
    body = anthropic_body()
    async with (
        aiohttp.ClientSession(process.url) as http,
        http.post("/v1/messages", json=body, headers=ANTHROPIC) as response,
    ):
        await response.read()
        return response.status


@pytest.mark.parametrize(
    ("asked", "num_upstream", "files", "most"),
    [
        (0, 0, 1024, 880),
        (0, 256, 1024, 624),
        (100, 256, 1024, 100),
        (5000, 0, 1024, 880),
        (0, 512, 256, 16),
        (0, 0, -1, 2**20),
    ],
)
def test_connections_and_files(
    monkeypatch: pytest.MonkeyPatch, asked: int, num_upstream: int, files: int, most: int
) -> None:
    """Whatever is asked for, there are files left for the rest; without a limit of files there is
    one all the same."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (files, files))
    assert most_connections(asked, num_upstream) == most


@pytest.mark.parametrize("sent", [b"", b"G", HEAD, HEAD + b"Cookie: " + b"x" * 1000])
async def test_half_a_head(tmp_path: Path, sent: bytes) -> None:
    """Nothing, or not all of a head: the connection ends unanswered, the first time and behind an
    answer."""
    async with gateway(tmp_path, "header_timeout: 300ms") as process:
        assert await ended(await connect(process, sent)) == b""
        if sent:
            ends = await connect(process, HEAD + b"\r\n")
            assert await told(ends) == b"HTTP/1.1 200 OK\r\n"
            ends[1].write(sent)
            assert b"HTTP/1.1" not in await ended(ends)


async def test_what_waits_makes_room(tmp_path: Path) -> None:
    """Of idle connections and half heads the one that has waited longest goes, and everybody who
    asks is answered."""
    async with gateway(tmp_path, "header_timeout: 1m, max_connections: 8") as process:
        waiting = [await connect(process, HEAD) for _ in range(4)]
        for ends in (idle := [await connect(process, HEAD + b"\r\n") for _ in range(4)]):
            await told(ends)
        for _ in range(20):
            while await ask(process) == 529:  # those that wait have only just come
                pass
        assert await ended(waiting[0]) == b""
        for _, writer in (*waiting, *idle):
            writer.close()


async def test_where_all_work_probes_are_answered(tmp_path: Path) -> None:
    """Beyond the limit health is told, everything else is refused as overload, and what works is
    left alone."""
    gate = asyncio.Event()
    say = Say(ANSWER.pieces, headers=ANSWER.headers, before_head=gate)
    async with (
        gateway(tmp_path, "max_connections: 4", say) as process,
        aiohttp.ClientSession(process.url) as http,
    ):
        working = [asyncio.create_task(ask(process)) for _ in range(5)]
        refused, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in refused] == [529]
        for path in ("/livez", "/readyz", "/metrics"):
            async with http.get(path) as response:
                assert response.status == 200
        async with http.get("/v1/models", headers=ANTHROPIC) as response:
            assert (response.status, response.headers["Connection"]) == (529, "close")
        gate.set()
        assert sorted([await task for task in working]) == [200, 200, 200, 200, 529]


async def test_without_files_left_the_log_stays_small(tmp_path: Path) -> None:
    """Where the system has no more files for connections after all, that is one line a second."""
    async with gateway(tmp_path, "header_timeout: 1m") as process:
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (24, hard))
        many = [await connect(process, HEAD) for _ in range(60)]
        await process.until(lambda: "connections cannot be accepted" in str(process.lines))
        for _, writer in many:
            writer.close()
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        async with aiohttp.ClientSession(process.url) as http, http.get("/livez") as response:
            assert response.status == 200
        assert len(process.lines) < 10
        assert "Traceback" not in str(process.lines)


async def test_a_crowd_of_half_heads(tmp_path: Path) -> None:
    """Many more than the limit at once: no error, and health is told."""
    async with gateway(tmp_path, "header_timeout: 1m, max_connections: 64") as process:
        many = [await connect(process, HEAD) for _ in range(256)]
        async with aiohttp.ClientSession(process.url) as http, http.get("/livez") as response:
            assert response.status == 200
        assert "cannot be accepted" not in str(process.lines)
        for _, writer in many:
            writer.close()
