"""The gateway as a whole process would run it, over a worker without an engine: start,
failure to start, end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from engine.config import EngineConfig
from engine.errors import ModelError
from gateway.app import serve
from policies.schema import Policy
from tests.fakes.clock import FakeClock
from tests.gateway.serving import ANTHROPIC, OPENAI, anthropic_body, make_policy, openai_body

FAKE = Path(__file__).with_name("fake_worker.py")


class Run:
    """`serve` in a task of its own, and the URL it told."""

    def __init__(self, folder: Path, mode: str = "good", policy: Policy | None = None) -> None:
        policy = policy or make_policy("server: {drain: {delay: 0s}}")
        config = EngineConfig(
            model=policy.models[0].name, model_path=str(folder), root_secret=b"s" * 16, context=8192
        )
        self.url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        engines = {policy.models[0].name: [config] * policy.models[0].engine.workers}
        command = (sys.executable, str(FAKE), mode)
        self.task = asyncio.create_task(
            serve(policy, engines, FakeClock(), self.url.set_result, command=command)
        )


async def test_from_start_to_sigterm(tmp_path: Path) -> None:
    """Ready once the model is loaded, answers in both formats, returns on SIGTERM with the worker
    gone."""
    run = Run(tmp_path)
    async with aiohttp.ClientSession(await run.url) as http:
        async with http.post("/v1/messages", json=anthropic_body(), headers=ANTHROPIC) as response:
            assert (await response.json())["content"][0]["text"] == "Hello world"
        async with http.post(
            "/v1/chat/completions", json=openai_body(), headers=OPENAI
        ) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "Hello world"
        async with http.get("/metrics") as response:
            assert (
                'pcg_worker_up{model="smollm2-135m-instruct",worker="0"} 1.0'
                in await response.text()
            )
    os.kill(os.getpid(), signal.SIGTERM)
    await run.task


async def test_two_workers_of_one_model(tmp_path: Path) -> None:
    """Both are started, shown, flushed and pinned in; one that dies is replaced while the other one
    answers."""
    run = Run(
        tmp_path,
        policy=make_policy("models: [{engine: {workers: 2}}]\nserver: {drain: {delay: 0s}}"),
    )

    async def ask(text: str, **more: object) -> tuple[int, str]:
        body = anthropic_body(messages=[{"role": "user", "content": text}], **more)
        async with http.post("/v1/messages", json=body, headers=ANTHROPIC) as response:
            return response.status, await response.text()

    async with aiohttp.ClientSession(await run.url) as http:
        async with http.get("/health") as response:
            assert (await response.json())["models"]["smollm2-135m-instruct"]["workers"] == [
                True,
                True,
            ]
        async with http.get("/metrics") as response:
            text = await response.text()
            assert [
                f'pcg_worker_up{{model="smollm2-135m-instruct",worker="{i}"}} 1.0' in text
                for i in (0, 1)
            ] == [True] * 2
        async with http.post("/admin/cache/flush") as response:
            assert (await response.json())["num_blocks"] == 14
        assert (await ask("die", stream=True))[1].count("api_error") == 1
        assert (await ask("die"))[0] == 500
        status, text = await ask("hello")
        assert (status, "Hello world" in text) == (200, True)
        async with http.get("/metrics") as response:
            assert (await response.text()).count("pcg_worker_restarts_total{") == 2
    os.kill(os.getpid(), signal.SIGTERM)
    await run.task


async def test_streams_left_after_the_drain_end_with_an_error(tmp_path: Path) -> None:
    """A stream longer than `drain.timeout` gets its format's error event, not a torn connection."""
    run = Run(tmp_path, policy=make_policy("server: {drain: {delay: 0s, timeout: 10ms}}"))
    body = anthropic_body(stream=True, messages=[{"role": "user", "content": "hang"}])
    async with (
        aiohttp.ClientSession(await run.url) as http,
        http.post("/v1/messages", json=body, headers=ANTHROPIC) as response,
    ):
        await response.content.readuntil(b"Hello")
        os.kill(os.getpid(), signal.SIGTERM)
        assert b'"overloaded_error"' in await response.read()
    await run.task


async def test_ending_while_the_model_loads(tmp_path: Path) -> None:
    """A signal during the load ends the gateway without waiting for the model."""
    os.mkfifo(tmp_path / "go")
    run = Run(tmp_path, "slow")
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)
    await run.task
    assert not run.url.done()


async def test_a_model_that_cannot_be_loaded_ends_the_start(tmp_path: Path) -> None:
    """The engine's own words are the error."""
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated"):
        await Run(tmp_path, "refuse").task


async def test_a_port_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    """Before any model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        policy = make_policy()
        server = policy.server.model_copy(update={"port": other.getsockname()[1]})
        with pytest.raises(OSError, match="address already in use"):
            await Run(tmp_path, policy=policy.model_copy(update={"server": server})).task
    assert not (tmp_path / "ran").exists()
