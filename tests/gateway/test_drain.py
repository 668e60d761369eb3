"""How the gateway ends: not ready first, then nothing new, then what is in flight is finished."""

from __future__ import annotations

import asyncio
import os
import signal

import aiohttp
import pytest

from gateway.app import drain
from gateway.signals import stop_signals
from tests.fakes.backend import Script, ScriptedBackend
from tests.gateway.serving import ANTHROPIC, OPENAI, anthropic_body, serving

MESSAGES = "/v1/messages"


async def test_a_drain_lets_answers_finish() -> None:
    """While it drains the gateway is alive and not ready; a stream that had begun ends as it would
    have."""
    gate = asyncio.Event()
    async with serving(ScriptedBackend(Script(before_text={1: gate}))) as served:
        async with served.http.get("/readyz") as ready:
            assert ready.status == 200
        async with served.http.post(
            MESSAGES, json=anthropic_body(stream=True), headers=ANTHROPIC
        ) as response:
            draining = asyncio.create_task(
                drain(served.gateway, served.listener, delay_s=60.0, hurry=asyncio.Event())
            )
            await asyncio.sleep(0)
            async with served.http.get("/readyz") as ready:
                assert (ready.status, ready.headers["Connection"]) == (503, "close")
            async with served.http.get("/livez") as alive:
                assert alive.status == 200
            gate.set()
            async with served.http.post(
                MESSAGES, json=anthropic_body(), headers=ANTHROPIC
            ) as still:
                assert (still.status, still.headers["Connection"]) == (200, "close")
            assert b"message_stop" in await response.read()
        draining.cancel()


async def test_after_the_delay_nothing_new_is_taken() -> None:
    """New connections are refused, requests on open ones are told to go elsewhere, and the drain
    ends with the last."""
    gate = asyncio.Event()
    backend = ScriptedBackend(Script(before_text={0: gate}))
    async with serving(backend) as served:
        answer = asyncio.create_task(
            served.http.post(MESSAGES, json=anthropic_body(), headers=ANTHROPIC)
        )
        await backend.held.wait()
        async with served.http.get("/livez") as kept_open:
            await kept_open.read()
        draining = asyncio.create_task(
            drain(served.gateway, served.listener, delay_s=0.0, hurry=asyncio.Event())
        )
        while served.listener.open:
            await asyncio.sleep(0)
        async with served.http.post(MESSAGES, json=anthropic_body(), headers=ANTHROPIC) as refused:
            assert refused.status == 529
        async with aiohttp.ClientSession(served.url) as newcomer:
            with pytest.raises(aiohttp.ClientConnectorError):
                await newcomer.get("/livez")
        assert not draining.done()
        gate.set()
        async with await answer as response:
            assert response.status == 200
        await draining


async def test_a_drain_waits_for_what_nobody_waits_for() -> None:
    """An answer in the background ends before the gateway does, and is kept."""
    gate = asyncio.Event()
    backend = ScriptedBackend(Script(before_text={1: gate}))
    async with serving(backend) as served:
        body = {"model": "gpt-5.6", "input": "Hi", "background": True}
        async with served.http.post("/v1/responses", json=body, headers=OPENAI) as response:
            name = (await response.json())["id"]
        await backend.held.wait()
        draining = asyncio.create_task(
            drain(served.gateway, served.listener, delay_s=0.0, hurry=asyncio.Event())
        )
        while served.listener.open:
            await asyncio.sleep(0)
        assert not draining.done()
        gate.set()
        await draining
        async with served.http.get(f"/v1/responses/{name}", headers=OPENAI) as response:
            assert (await response.json())["status"] == "completed"


async def test_a_second_signal_hurries() -> None:
    """`hurry` ends both waits: the delay, and the wait for what is in flight."""
    hurry = asyncio.Event()
    backend = ScriptedBackend(Script(before_started=asyncio.Event()))
    async with serving(backend) as served:
        answer = asyncio.create_task(
            served.http.post(MESSAGES, json=anthropic_body(), headers=ANTHROPIC)
        )
        await backend.held.wait()
        hurry.set()
        await drain(served.gateway, served.listener, delay_s=3600.0, hurry=hurry)
        assert len(served.gateway.in_flight) == 1
        answer.cancel()


async def test_a_drain_has_an_end() -> None:
    """After `drain.timeout` the drain returns with requests still in flight."""
    backend = ScriptedBackend(Script(before_started=asyncio.Event()))
    async with serving(backend, "server: {drain: {timeout: 10ms}}") as served:
        answer = asyncio.create_task(
            served.http.post(MESSAGES, json=anthropic_body(), headers=ANTHROPIC)
        )
        await backend.held.wait()
        await drain(served.gateway, served.listener, delay_s=0.0, hurry=asyncio.Event())
        assert len(served.gateway.in_flight) == 1
        answer.cancel()


async def test_signals_become_events() -> None:
    """The first asks, the second insists, and SIGINT is told apart."""
    with stop_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.asked.wait()
        assert (stop.interrupted, stop.insisted.is_set()) == (False, False)
        os.kill(os.getpid(), signal.SIGINT)
        await stop.insisted.wait()
        assert stop.interrupted


async def test_readiness_follows_the_backend() -> None:
    """A model that is loading is not ready, and `/health` says which."""
    backend = ScriptedBackend()
    async with serving(backend) as served:
        backend.ready = False
        async with served.http.get("/readyz") as response:
            assert response.status == 503
            assert "smollm2-135m-instruct" in await response.text()
        async with served.http.get("/health") as response:
            assert (await response.json())["status"] == "loading"
        async with served.http.get("/metrics") as response:
            assert (
                'pcg_worker_up{model="smollm2-135m-instruct",worker="0"} 0.0'
                in await response.text()
            )


async def test_health_needs_a_key_where_there_are_tenants() -> None:
    """RFC 9457 on our own routes; probes and metrics stay open."""
    async with serving(ScriptedBackend(), "tenants: [{name: a, keys: [key-of-a]}]") as served:
        async with served.http.get("/health") as response:
            assert response.status == 401
            assert response.headers["Content-Type"] == "application/problem+json"
        async with served.http.get("/health", headers={"x-api-key": "key-of-a"}) as response:
            assert response.status == 200
        for path in ("/livez", "/readyz", "/metrics", "/version"):
            async with served.http.get(path) as response:
                assert response.status == 200
