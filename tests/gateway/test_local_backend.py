"""The local backend against a worker process that speaks the frames: order, failures, cancellation,
restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.messages import PROTOCOL_VERSION, Finished, Started, TextDelta
from engine.prompt.types import Message, Prompt, TextPart
from engine.types import Sampling
from gateway.backends.local import LocalBackend, WorkerTimeouts
from gateway.backends.process import ProcessTimeouts
from gateway.errors import (
    BadPrompt,
    ContextExceeded,
    EngineFailed,
    EngineLost,
    GatewayError,
    Overloaded,
    Poisonous,
)
from gateway.request import Request
from tests.fakes.clock import FakeClock

FAKE = Path(__file__).with_name("fake_worker.py")


def make_backend(folder: Path, mode: str = "good", **options: object) -> LocalBackend:
    """A backend whose workers are `fake_worker.py MODE`."""
    config = EngineConfig(
        model="fake", model_path=str(folder), root_secret=b"0123456789abcdef", context=100
    )
    options.setdefault("patience", WorkerTimeouts(ready_s=20.0, tick_s=0.01, backoff_s=(0.0,)))
    return LocalBackend(
        config, FakeClock(1000.0), command=(sys.executable, str(FAKE), mode), **options
    )  # type: ignore[arg-type]


@asynccontextmanager
async def running(backend: LocalBackend) -> AsyncIterator[LocalBackend]:
    """The backend with its first worker loaded."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(backend.run())
        async with asyncio.timeout(30):
            await backend.wait_loaded()
        yield backend
        task.cancel()


def prompt(order: str) -> Prompt:
    return Prompt(messages=(Message("user", (TextPart(order),)),))


def request(order: str, request_id: str = "r") -> Request:
    return Request(
        id=request_id,
        wire="openai",
        model="m",
        prompt=prompt(order),
        sampling=Sampling(max_tokens=5),
    )


async def collect(backend: LocalBackend, order: str) -> tuple[int, str, str]:
    """Prompt tokens, text and finish reason of one answer; deltas may arrive joined."""
    text = ""
    num_prompt = -1
    async with aclosing(backend.generate(request(order))) as events:
        async for event in events:
            match event:
                case Started():
                    num_prompt = event.report.num_prompt
                case TextDelta():
                    text += event.text
                case Finished():
                    return num_prompt, text, event.reason
    raise AssertionError("the stream ended without Finished")


async def test_an_answer_arrives_in_order(tmp_path: Path) -> None:
    """Started, text, Finished; then counting, flushing, pinning and statistics on the same
    connection."""
    async with running(make_backend(tmp_path)) as backend:
        assert await collect(backend, "abc") == (3, "Hello world", "stop")
        assert await backend.count(prompt("12345")) == 5
        assert await backend.flush("tenant") == 7
        assert (await backend.pin(bytes(32), pinned=True)).used_nbytes == 32
        assert backend.ready
        assert backend.model is not None
        assert backend.model.name == "fake"
        assert backend.model.context == 100


async def test_the_worker_is_told_the_time(tmp_path: Path) -> None:
    """Ticks carry the injected clock, not the wall clock."""
    async with running(make_backend(tmp_path)) as backend, asyncio.timeout(20):
        stats = await backend.stats()
        while stats is None or stats.counters["ticks"] < 3:
            stats = await backend.stats()
        assert stats.gauges["now_s"] == 1000.0


@pytest.mark.parametrize(
    ("order", "error"),
    [
        ("fail:overloaded", Overloaded),
        ("fail:context_exceeded", ContextExceeded),
        ("fail:bad_prompt", BadPrompt),
        ("fail:internal", EngineFailed),
        ("wrong kind", EngineFailed),
    ],
)
async def test_failures_of_the_engine_are_named(
    tmp_path: Path, order: str, error: type[GatewayError]
) -> None:
    """Each kind of `Failed` is the gateway error of the same situation."""
    async with running(make_backend(tmp_path)) as backend:
        with pytest.raises(error):
            await collect(backend, order)
        assert await collect(backend, "after") == (5, "Hello world", "stop")


async def test_repeated_request_ids_do_not_mix(tmp_path: Path) -> None:
    """Two requests in flight under one client-chosen id each get their own answer."""
    async with running(make_backend(tmp_path)) as backend:
        answers = await asyncio.gather(collect(backend, "a"), collect(backend, "bb"))
        assert [num_prompt for num_prompt, _, _ in answers] == [1, 2]


@pytest.mark.parametrize("order", ["hang", "silence"])
async def test_cancelling_aborts_and_leaks_nothing(tmp_path: Path, order: str) -> None:
    """1,000 cancelled requests, before and after Started: the worker heard 1,000 aborts, nothing is
    left on either side."""
    async with running(make_backend(tmp_path)) as backend:
        for _ in range(10):
            tasks = [asyncio.create_task(collect(backend, order)) for _ in range(100)]
            stats = await backend.stats()
            while stats is None or stats.gauges["open"] < 100:
                stats = await backend.stats()
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        stats = await backend.stats()
        assert stats is not None
        assert stats.counters["aborted"] == 1000
        assert stats.gauges["open"] == 0
        assert backend.num_open == 0


async def test_closing_the_iterator_aborts(tmp_path: Path) -> None:
    """`aclose` after the first event is an abort like any other."""
    async with running(make_backend(tmp_path)) as backend:
        async with aclosing(backend.generate(request("hang"))) as events:
            assert isinstance(await anext(events), Started)
        stats = await backend.stats()
        assert stats is not None
        assert stats.counters["aborted"] == 1


@pytest.mark.parametrize("order", ["die", "garbage"])
async def test_a_worker_that_dies_is_replaced(tmp_path: Path, order: str) -> None:
    """The request in flight is told to try again, others in flight too; the next one is served by a
    new process."""
    restarts: list[None] = []
    async with running(make_backend(tmp_path, on_restart=lambda: restarts.append(None))) as backend:
        first = backend.pid
        bystander = asyncio.create_task(collect(backend, "hang"))
        await backend.count(prompt("x"))
        with pytest.raises(EngineLost, match="restarted") as caught:
            await collect(backend, order)
        assert caught.value.retry_after_s
        with pytest.raises(EngineLost):
            await bystander
        assert await collect(backend, "next") == (4, "Hello world", "stop")
        assert backend.pid != first
        assert len(restarts) == 1
        assert backend.num_open == 0


async def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    """Alive and connected but getting nowhere: its request is not tried again, and the next one is
    served."""
    patience = WorkerTimeouts(ready_s=20.0, tick_s=0.01, watch_s=0.05, hang_s=1.5, backoff_s=(0.0,))
    backend = make_backend(tmp_path, patience=patience, limits=ProcessTimeouts(term_s=0.1))
    async with running(backend):
        first = backend.pid
        with pytest.raises(Poisonous):
            await collect(backend, "freeze")
        assert await collect(backend, "next") == (4, "Hello world", "stop")
        assert backend.pid != first


async def test_killed_from_outside(tmp_path: Path) -> None:
    """SIGKILL while idle: a later request waits for the new worker instead of failing."""
    async with running(make_backend(tmp_path)) as backend:
        assert backend.pid is not None
        os.kill(backend.pid, signal.SIGKILL)
        while backend.ready:
            await asyncio.sleep(0)
        assert await collect(backend, "next") == (4, "Hello world", "stop")


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("refuse", "model.safetensors is truncated"),
        ("exit", "exited with status 7"),
        ("version", rf"speaks protocol {PROTOCOL_VERSION + 1}, this gateway {PROTOCOL_VERSION}"),
    ],
)
async def test_a_first_worker_that_cannot_load_is_said(
    tmp_path: Path, mode: str, text: str
) -> None:
    """`run` ends with the reason, so that the command can print it and exit."""
    with pytest.raises(ModelError, match=text):
        await make_backend(tmp_path, mode).run()


async def test_loading_has_an_end(tmp_path: Path) -> None:
    """A worker that never says Hello is given up, and gone."""
    os.mkfifo(tmp_path / "go")
    with pytest.raises(ModelError, match="within"):
        await make_backend(tmp_path, "slow", limits=ProcessTimeouts(load_s=0.5, term_s=5.0)).run()


async def test_requests_wait_for_a_slow_start(tmp_path: Path) -> None:
    """A request made while the model loads is answered once it has loaded."""
    os.mkfifo(tmp_path / "go")
    backend = make_backend(tmp_path, "slow")
    async with asyncio.TaskGroup() as group:
        run = group.create_task(backend.run())
        answer = group.create_task(collect(backend, "early"))
        await asyncio.to_thread((tmp_path / "go").write_bytes, b"!")
        assert await answer == (5, "Hello world", "stop")
        run.cancel()


async def test_waiting_for_a_start_is_bounded(tmp_path: Path) -> None:
    """A request does not wait for ever for a worker."""
    backend = make_backend(tmp_path, patience=WorkerTimeouts(ready_s=0.01))
    with pytest.raises(Overloaded, match="loading"):
        await collect(backend, "early")
    assert not backend.ready
    assert await backend.stats() is None


async def test_a_replacement_that_cannot_load_leaves_the_gateway_up(tmp_path: Path) -> None:
    """Only the first failure to load ends `run`; later ones are retried while requests are told to
    wait."""
    backend = make_backend(
        tmp_path, "once", patience=WorkerTimeouts(ready_s=0.3, tick_s=1.0, backoff_s=(0.0,))
    )
    async with running(backend):
        with pytest.raises(Poisonous):
            await collect(backend, "die")
        with pytest.raises(Overloaded, match="loading"):
            await collect(backend, "next")
        (tmp_path / "ran").unlink()
        async with asyncio.timeout(30):
            await backend.wait_loaded()


async def test_a_replacement_that_cannot_start_leaves_the_gateway_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system that has no process or no folder to give is asked again, as after any death."""
    backend = make_backend(
        tmp_path, patience=WorkerTimeouts(ready_s=0.3, tick_s=1.0, backoff_s=(0.0, 0.01))
    )
    async with running(backend):
        with monkeypatch.context() as full:
            full.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
            with pytest.raises(Poisonous):
                await collect(backend, "die")
            with pytest.raises(Overloaded, match="loading"):
                await collect(backend, "next")
        async with asyncio.timeout(30):
            await backend.wait_loaded()


async def test_stopping_leaves_no_process_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `run` is cancelled the worker is gone and so is the private folder of its socket."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with running(make_backend(tmp_path)) as backend:
        pid = backend.pid
        (folder,) = tmp_path.glob("pcg-*")
        assert folder.stat().st_mode & 0o777 == 0o700
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not list(tmp_path.glob("pcg-*"))
