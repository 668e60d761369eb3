"""Who holds bytes of the budget, and for how long: of a gateway within the test,
whose backend it holds.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.fakes.backend import Script, ScriptedBackend
from tests.gateway.serving import ANTHROPIC, OPENAI, Served, anthropic_body, serving

MIB = 1024**2
LONG = "x" * 1_000_000


async def respond(served: Served, **more: Any) -> tuple[int, Any]:
    """POST /v1/responses."""
    body = {"model": "gpt-5.6", "input": LONG} | more
    async with served.http.post("/v1/responses", json=body, headers=OPENAI) as response:
        return response.status, await response.json()


async def test_a_response_in_the_background_holds_its_request() -> None:
    """Its client has gone, and its request is still in memory: until it is made, another one has no
    room."""
    gate = asyncio.Event()
    backend = ScriptedBackend(Script(before_text={0: gate}))
    async with serving(backend, "server: {memory: {bytes: 6MiB}}") as served:
        status, response = await respond(served, background=True)
        assert (status, response["status"]) == (200, "queued")
        await backend.held.wait()
        status, refusal = await respond(served)
        assert (status, refusal["error"]["code"]) == (503, "server_is_overloaded")
        gate.set()
        while served.gateway.background.running("default", response["id"]) is not None:
            await asyncio.sleep(0)
        assert (await respond(served))[0] == 200


async def test_a_response_that_is_cancelled_holds_nothing() -> None:
    """Also before it has begun."""
    gate = asyncio.Event()
    async with serving(
        ScriptedBackend(Script(before_text={0: gate})), "server: {memory: {bytes: 6MiB}}"
    ) as served:
        for _ in range(3):
            status, response = await respond(served, background=True)
            assert status == 200
            async with served.http.post(
                f"/v1/responses/{response['id']}/cancel", headers=OPENAI
            ) as cancelled:
                assert (await cancelled.json())["status"] == "cancelled"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_is_over_holds_nothing(stream: bool) -> None:
    """Whether it was answered, refused, or left by its client."""
    gate = asyncio.Event()
    backend = ScriptedBackend(
        lambda request: Script(before_text={0: gate} if request.sampling.max_tokens == 3 else {})
    )
    async with serving(backend, "server: {memory: {bytes: 6MiB}}") as served:
        messages = [{"role": "user", "content": LONG}]
        for more in ({}, {"temperature": "hot"}, {"max_tokens": 3}, {}):
            body = anthropic_body(messages=messages, stream=stream) | more
            asked = asyncio.create_task(
                served.http.post("/v1/messages", json=body, headers=ANTHROPIC)
            )
            if "max_tokens" in more:
                await backend.held.wait()
                asked.cancel()
                await asyncio.wait((asked,))
                await backend.aborted.wait()
                while len(served.records) < 3:
                    await asyncio.sleep(0)
                continue
            async with await asked as response:
                assert response.status == (400 if more else 200)
                await response.read()
        assert [record.outcome for record in served.records] == [
            "answered",
            "failed",
            "cancelled",
            "answered",
        ]


async def test_a_stored_response_that_nobody_reads() -> None:
    """Its download ends, as that of an answer does, and what it was keeps being there."""
    text = "x" * (16 * MIB)
    policy = "server: {write_timeout: 200ms}"
    async with serving(ScriptedBackend(Script(texts=(text,))), policy) as served:
        status, response = await respond(served, input="Hi")
        assert status == 200
        path = f"/v1/responses/{response['id']}"
        loop = asyncio.get_running_loop()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            await loop.sock_connect(connection, (served.listener.host, served.listener.port))
            await loop.sock_sendall(
                connection,
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(),
            )
            async with asyncio.timeout(30):
                while len(served.records) < 2:
                    await asyncio.sleep(0)
            record = served.records[1]
            assert (record.route, record.outcome, record.status, record.bill) == (
                "response",
                "cancelled",
                499,
                None,
            )
            num_read = 0
            while piece := await loop.sock_recv(connection, 2**20):
                num_read += len(piece)
            assert num_read < len(text)
        async with served.http.get(path, headers=OPENAI) as again:
            assert (await again.json())["output"][0]["content"][0]["text"] == text


async def test_heads_of_long_answers() -> None:
    """Control: HEAD of what would be sent in pieces has its length and no body, and its connection
    goes on."""
    async with serving(ScriptedBackend(Script(texts=(LONG,)))) as served:
        _, response = await respond(served, input="Hi")
        async with served.http.head(f"/v1/responses/{response['id']}", headers=OPENAI) as head:
            assert (head.status, int(head.headers["Content-Length"]) > len(LONG)) == (200, True)
        async with served.http.get(f"/v1/responses/{response['id']}", headers=OPENAI) as whole:
            assert whole.headers["Content-Length"] == head.headers["Content-Length"]
            assert len(await whole.read()) == int(head.headers["Content-Length"])
