"""Memory is bounded by bytes, whatever clients send and however little they read:
of a real `pcg serve`, measured.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.state.batches import OUTCOMES, Batch, BatchStore
from tests.fakes.upstream import SSE, FakeUpstream, Got, Say, say_json
from tests.gateway.serving import ANTHROPIC, OPENAI
from tests.gateway.whole_process import WholeProcess, whole_process

MIB = 1024**2
SLACK = 48 * MIB
"""What a process takes that is not counted: code that is loaded late, sockets, and what the
allocator keeps."""

USAGE = {"input_tokens": 1000, "output_tokens": 2000}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "usage": USAGE,
}


def body_of(content: bytes) -> bytes:
    return (
        b'{"model":"claude-x","max_tokens":5,"messages":[{"role":"user","content":'
        + content
        + b"}]}"
    )


LARGE = {
    "text": body_of(b'"' + b"a" * (20 * MIB) + b'"'),
    "lists": body_of(b"[" + b"[]," * (7 * MIB) + b"[]]"),
    "objects": body_of(b"[" + b'{"a":{}},' * (2 * MIB) + b"{}]"),
}


@asynccontextmanager
async def gateway(
    folder: Path, server: str, say: Any, more: str = ""
) -> AsyncIterator[tuple[WholeProcess, FakeUpstream, Any]]:
    """The process, its upstream, and a client of it."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FakeUpstream(say).listening())
        policy = f"server: {{drain: {{delay: 0s, timeout: 1s}}, {server}}}\n{more}"
        process = await stack.enter_async_context(whole_process(folder, policy, upstream.url))
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(process.url, connector=connector)
        )
        yield process, upstream, http


async def post(
    http: aiohttp.ClientSession, body: bytes, path: str = "/v1/messages", **headers: str
) -> tuple[int, Any, Any]:
    sent = (ANTHROPIC if path.startswith("/v1/messages") else OPENAI) | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    async with http.post(path, data=io.BytesIO(body), headers=sent) as response:
        return response.status, await response.json(), response.headers


async def unread(process: WholeProcess, request: bytes) -> socket.socket:
    """A connection on which a request was sent, and of whose answer nothing is read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", process.port))
    await asyncio.get_running_loop().sock_sendall(connection, request)
    return connection


def posted(body: bytes) -> bytes:
    """A request after whose answer the connection is to end."""
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    return head + body


async def closed(connection: socket.socket) -> int:
    """Read to the end of the connection, which has to come; how many bytes there were."""
    num_read = 0
    with connection:
        async with asyncio.timeout(30):
            try:
                while piece := await asyncio.get_running_loop().sock_recv(connection, 2**20):
                    num_read += len(piece)
            except ConnectionResetError:
                pass
    return num_read


async def test_small_bodies_that_become_large(tmp_path: Path) -> None:
    """Ten at once, of 20 KB: the one that fits is served, the others are refused before they are
    inflated."""
    gate = asyncio.Event()
    packed = gzip.compress(LARGE["text"])
    assert len(packed) < 64 * 1024
    say = replace(say_json(MESSAGE), before_head=gate)
    async with gateway(tmp_path, "memory: {bytes: 128MiB}", say) as (process, upstream, http):
        asked = [
            asyncio.create_task(post(http, packed, Content_Encoding="gzip")) for _ in range(10)
        ]
        answers = asyncio.as_completed(asked)
        for _ in range(9):
            status, told, headers = await next(answers)
            assert (status, told["error"]["type"], headers["Retry-After"]) == (
                529,
                "overloaded_error",
                "1",
            )
        await upstream.held.wait()
        assert (await post(http, packed, "/v1/chat/completions", Content_Encoding="gzip"))[0] == 503
        gate.set()
        assert (await next(answers))[0] == 200
        assert (await post(http, packed, Content_Encoding="gzip"))[
            0
        ] == 200  # what was held has been given back
        assert upstream.got[0].body == LARGE["text"]
        assert process.grown_nbytes < 128 * MIB + SLACK


@pytest.mark.parametrize("kind", LARGE)
async def test_bodies_that_are_decoded(tmp_path: Path, kind: str) -> None:
    """Ten at once whose objects would take up to thirty times as much as their bytes; half of them
    a tenth as long."""
    shorter = LARGE[kind][: 2 * MIB] + b"[]" * 64
    async with gateway(tmp_path, "memory: {bytes: 128MiB}", say_json(MESSAGE)) as (
        process,
        _,
        http,
    ):
        packed = [gzip.compress(body) for body in (LARGE[kind], shorter)] * 5
        asked = [
            post(http, body, "/v1/messages/batches", Content_Encoding="gzip") for body in packed
        ]
        statuses = {status for status, *_ in await asyncio.gather(*asked)}
        assert statuses <= {400, 413, 529}
        assert process.grown_nbytes < 128 * MIB + SLACK


async def test_what_can_never_fit_is_not_to_be_tried_again(tmp_path: Path) -> None:
    """A body that alone takes more than there is: a 413. Other encodings are refused unread."""
    async with gateway(tmp_path, "memory: {bytes: 64MiB}", say_json(MESSAGE)) as (process, _, http):
        for kind, pack, encoding in (("text", gzip.compress, "gzip"), ("lists", bytes, "identity")):
            status, told, _ = await post(http, pack(LARGE[kind]), Content_Encoding=encoding)
            assert (status, told["error"]["type"]) == (413, "request_too_large")
        for encoding in ("deflate", "br", "zstd", "gzip, gzip"):
            assert (await post(http, zlib.compress(LARGE["text"]), Content_Encoding=encoding))[
                0
            ] == 400
        assert process.grown_nbytes < 64 * MIB + SLACK


async def test_many_bodies_at_once(tmp_path: Path) -> None:
    """Each is small and all of them are not: those beyond the budget are refused, and the others
    served."""
    gate = asyncio.Event()
    body = body_of(b'"' + b"a" * MIB + b'"')
    say = replace(say_json(MESSAGE), before_head=gate)
    async with gateway(tmp_path, "memory: {bytes: 64MiB}", say) as (process, _, http):
        asked = [asyncio.create_task(post(http, body)) for _ in range(60)]
        answers = asyncio.as_completed(asked)
        for _ in range(45):
            assert (await next(answers))[0] == 529
        gate.set()
        assert {(await answered)[0] for answered in answers} <= {200, 529}
        assert sum(task.result()[0] == 200 for task in asked) >= 10
        assert process.grown_nbytes < 64 * MIB + SLACK


async def test_a_tenant_that_fills_its_share(tmp_path: Path) -> None:
    """It gets 429, and another tenant is served as if nothing was."""
    gate = asyncio.Event()
    body = body_of(b'"' + b"a" * (2 * MIB) + b'"')
    tenants = "tenants: [{name: alice, keys: [a-key]}, {name: bob, keys: [b-key]}]"

    def say(got: Got) -> Say:
        return replace(say_json(MESSAGE), before_head=None if b'"bob"' in got.body else gate)

    async with gateway(tmp_path, "memory: {bytes: 48MiB, tenant_bytes: 50%}", say, tenants) as (
        process,
        _,
        http,
    ):
        asked = [asyncio.create_task(post(http, body, x_api_key="a-key")) for _ in range(12)]
        answers = asyncio.as_completed(asked)
        for _ in range(9):
            status, told, headers = await next(answers)
            assert (status, told["error"]["type"], headers["Retry-After"]) == (
                429,
                "rate_limit_error",
                "1",
            )
        hers = body.replace(b'"user"', b'"bob"')
        assert (await post(http, hers, x_api_key="b-key"))[0] == 200
        gate.set()
        assert {(await answered)[0] for answered in answers} <= {200, 429}
        assert {record["tenant"] for record in process.records("failed")} == {"alice"}


async def test_whole_answers_that_nobody_reads(tmp_path: Path) -> None:
    """Forty of 8 MB: what does not fit is refused, the connections end, and what was produced is
    billed."""
    say = say_json(MESSAGE | {"padding": "x" * (8 * MIB)})
    server = "write_timeout: 500ms, memory: {bytes: 64MiB}"
    async with gateway(tmp_path, server, say) as (process, _, http):
        connections = [await unread(process, posted(body_of(b'"Hi"'))) for _ in range(40)]
        await process.until(
            lambda: len(process.records("cancelled")) + len(process.records("failed")) == 40
        )
        left = process.records("cancelled")
        assert {(record["status"], record["output"]) for record in left} == {(499, 2000)}
        assert {record["error"] for record in process.records("failed")} == {"Overloaded"}
        read = [await closed(connection) for connection in connections]
        assert max(read) < 8 * MIB
        assert process.grown_nbytes < 64 * MIB + SLACK
        assert (await post(http, body_of(b'"Hi"')))[0] == 200


async def test_streams_that_nobody_reads(tmp_path: Path) -> None:
    """A stream ends when it is not read, also one without an end: its slot at the upstream is
    another's, and it is billed."""
    start = {
        "type": "message_start",
        "message": MESSAGE | {"usage": {"input_tokens": 1000, "output_tokens": 1}},
    }
    delta = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "x" * 10_000},
    }
    events = [
        b"event: %b\ndata: %b\n\n" % (e["type"].encode(), orjson.dumps(e))
        for e in (start, *[delta] * 4000)
    ]  # type: ignore[attr-defined]
    never = asyncio.Event()
    body = body_of(b'"Hi"').replace(b'"max_tokens"', b'"stream":true,"max_tokens"')

    def say(got: Got) -> Say:
        return (
            Say(tuple(events), headers=SSE, before_piece={4000: never})
            if b"stream" in got.body
            else say_json(MESSAGE)
        )

    async with gateway(tmp_path, "write_timeout: 500ms, memory: {bytes: 64MiB}", say) as (
        process,
        upstream,
        http,
    ):
        connections = [await unread(process, posted(body)) for _ in range(64)]
        records = await process.until_recorded(64, "cancelled")
        assert {(record["status"], record["input"]) for record in records} == {(499, 1000)}
        assert (await post(http, body_of(b'"Hi"')))[0] == 200
        assert max([await closed(connection) for connection in connections]) < 40 * MIB
        assert process.grown_nbytes < 64 * 2 * MIB + SLACK
        await upstream.left.wait()


async def test_results_of_batches_that_nobody_reads(tmp_path: Path) -> None:
    """They are read from disk as they are taken, and a client that takes none has gone."""
    store = BatchStore(tmp_path / "home" / "batches", 2**30)
    batch = Batch(
        id="msgbatch_1",
        tenant="default",
        num_requests=32,
        created_at_s=2e9,
        headers={},
        counts=dict.fromkeys(OUTCOMES, 0),
        ended_at_s=2e9 + 1,
    )
    store.create(batch, b"")
    for i in range(32):
        store.add(batch, str(i), "succeeded", {"message": "x" * MIB})
    store.end(batch, 2e9 + 1)
    path = "/v1/messages/batches/msgbatch_1/results"
    async with gateway(tmp_path, "write_timeout: 500ms", say_json(MESSAGE)) as (process, _, http):
        async with http.get(path) as response:
            lines = (await response.read()).splitlines()
        assert (response.status, response.content_type) == (200, "application/x-jsonl")
        assert [orjson.loads(line)["custom_id"] for line in lines] == [str(i) for i in range(32)]
        connections = [
            await unread(process, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            for _ in range(20)
        ]
        await process.until_recorded(20, "cancelled")
        assert max([await closed(connection) for connection in connections]) < 32 * MIB
        assert process.grown_nbytes < SLACK


async def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    """Control: one that reads a little at a time, and always something, is not taken for one that
    has gone."""
    text = "x" * (8 * MIB)
    async with gateway(tmp_path, "write_timeout: 2s", say_json(MESSAGE | {"padding": text})) as (
        process,
        _,
        _,
    ):
        request = posted(body_of(b'"Hi"'))
        connection, got = await unread(process, request), bytearray()
        with connection:
            while piece := await asyncio.get_running_loop().sock_recv(connection, 10_000):
                got += piece
        assert orjson.loads(got.partition(b"\r\n\r\n")[2])["padding"] == text
        assert len(await process.until_recorded(1, "answered")) == 1
