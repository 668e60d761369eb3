"""Requests that end engines: who is suspect, who is not tried again,
and what clients and batches are told.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from engine.config import EngineConfig
from engine.prompt.types import Message, Prompt, TextPart
from engine.types import Sampling
from gateway.backends import poison
from gateway.backends.local import LocalBackend
from gateway.backends.poison import MOST_DEATHS, Poison
from gateway.backends.router import Router
from gateway.errors import EngineLost, Overloaded, Poisonous
from gateway.request import Request
from tests.fakes.backend import Script, ScriptedBackend
from tests.gateway.serving import serving
from tests.gateway.test_local_backend import collect, make_backend, prompt, request, running

KEYS = "tenants: [{name: one, keys: [one]}]"


def content(text: str, **sampling: Any) -> tuple[Prompt, Sampling]:
    return Prompt((Message("user", (TextPart(text),)),)), Sampling(5, **sampling)


def is_poison(known: Poison, text: str, **sampling: Any) -> bool:
    try:
        known.check(*content(text, **sampling))
    except Poisonous:
        return True
    return False


def test_the_only_one_present_is_not_tried_again() -> None:
    """Nor another answer to it; one that differs is."""
    known = Poison()
    known.died([content("a", seed=1), content("a", seed=2)])
    assert is_poison(known, "a", seed=3)
    assert not is_poison(known, "b")
    assert not is_poison(known, "a", temperature=0.5)


def test_one_of_several_may_come_once_more() -> None:
    """Who was there twice is not tried again, whoever else was there."""
    known = Poison()
    known.died([content("a"), content("b")])
    assert not is_poison(known, "a")
    known.died([content("a"), content("c")])
    assert is_poison(known, "a")
    assert not is_poison(known, "b")
    assert not is_poison(known, "c")
    assert MOST_DEATHS == 2


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten."""
    monkeypatch.setattr(poison, "NUM_KEPT", 3)
    known = Poison()
    for text in "abcde":
        known.died([content(text)])
    assert len(known) == 3
    assert [text for text in "abcde" if is_poison(known, text)] == ["c", "d", "e"]


@pytest.mark.parametrize("order", ["die", "garbage"])
async def test_what_ended_a_worker_is_refused_at_once(tmp_path: Path, order: str) -> None:
    """The second time no worker sees it: the next one lives on and serves others."""
    async with running(make_backend(tmp_path)) as backend:
        with pytest.raises(Poisonous):
            await collect(backend, order)
        assert await collect(backend, "next") == (4, "Hello world", "stop")
        life = backend.life
        for _ in range(3):
            with pytest.raises(Poisonous):
                await collect(backend, order)
        assert await collect(backend, "after") == (5, "Hello world", "stop")
        assert backend.life == life


async def test_who_was_there_may_come_again(tmp_path: Path) -> None:
    """A bystander is told to try again after one death; after two he is as suspect as who did
    it."""
    async with running(make_backend(tmp_path)) as backend:
        for num_deaths, expected in ((1, EngineLost), (2, Poisonous)):
            bystander = asyncio.create_task(collect(backend, "hang"))
            await backend.count(prompt("x"))
            with pytest.raises(expected):
                await collect(backend, "die")
            with pytest.raises(expected):
                await bystander
            async with asyncio.timeout(30):
                while backend.life == num_deaths:
                    await backend.wait_loaded()
        assert await collect(backend, "next") == (4, "Hello world", "stop")


async def test_an_engine_that_gives_up_has_died(tmp_path: Path) -> None:
    """It says so of every request before it goes."""
    async with running(make_backend(tmp_path)) as backend:
        for _ in range(2):
            with pytest.raises(Poisonous):
                await collect(backend, "fail:fatal")
        assert await collect(backend, "next") == (4, "Hello world", "stop")


async def test_stopping_poisons_nothing(tmp_path: Path) -> None:
    """A gateway that ends tells its requests to try again elsewhere."""
    known = Poison()
    async with running(make_backend(tmp_path, poison=known)) as backend:
        waiting = asyncio.create_task(collect(backend, "hang"))
        await backend.count(prompt("x"))
    with pytest.raises(EngineLost):
        await waiting
    assert len(known) == 0


async def test_workers_share_what_they_died_of(tmp_path: Path) -> None:
    """Behind a router: the other worker never sees it, and serves all others."""
    known = Poison()
    workers = []
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
        workers.append(make_backend(tmp_path / name, poison=known))
    async with running(workers[0]), running(workers[1]):
        router = Router(workers)
        for _ in range(3):
            with pytest.raises(Poisonous):
                async for _ in router.generate(request("die")):
                    pass
        await asyncio.gather(*(worker.wait_loaded() for worker in workers))
        assert sorted(worker.life for worker in workers) in ([1, 1], [1, 2])
        assert [event async for event in router.generate(request("next"))]


async def test_a_router_passes_on_no_request_whose_worker_died() -> None:
    """Neither an answer nor a count; a mere refusal is passed on as ever."""

    class Dying(ScriptedBackend):
        async def count(self, prompt: Prompt) -> int:
            raise EngineLost("died")

    dying, healthy = Dying(Script(error=EngineLost("died"))), ScriptedBackend()
    asked = Request(id="r", wire="openai", model="m", prompt=prompt("x"), sampling=Sampling(5))
    router = Router([dying, healthy])
    with pytest.raises(EngineLost):
        await anext(router.generate(asked))
    with pytest.raises(EngineLost):
        await router.count(asked.prompt)
    assert not healthy.requests
    full = Router([ScriptedBackend(Script(error=Overloaded("full"))), healthy])
    assert [event async for event in full.generate(asked)]


async def test_clients_are_told_not_to_retry() -> None:
    """Both SDKs obey; a lost engine is retriable as a full one is."""
    for error, num_tries in (
        (Poisonous("it ended the engine"), 1),
        (EngineLost("gone", retry_after_s=0.001), 2),
    ):
        backend = ScriptedBackend(Script(error=error))
        async with serving(backend, KEYS) as served:
            async with anthropic.AsyncAnthropic(
                base_url=served.url, api_key="one", max_retries=1
            ) as client:
                with pytest.raises(anthropic.InternalServerError):
                    await client.messages.create(
                        model="claude-sonnet-5",
                        max_tokens=5,
                        messages=[{"role": "user", "content": "x"}],
                    )
            assert len(backend.requests) == num_tries
            backend.requests.clear()
            async with openai.AsyncOpenAI(
                base_url=f"{served.url}/v1", api_key="one", max_retries=1
            ) as client:
                with pytest.raises(openai.InternalServerError):
                    await client.chat.completions.create(
                        model="gpt-5", messages=[{"role": "user", "content": "x"}]
                    )
            assert len(backend.requests) == num_tries


async def test_a_batch_does_not_try_it_again(tmp_path: Path) -> None:
    """The item's result is the error, and the others are answered."""

    def script(asked: Request) -> Script:
        bad = asked.prompt.messages[-1].parts[-1].text == "bad"  # type: ignore[union-attr]
        return Script(error=Poisonous("it ended the engine")) if bad else Script()

    backend = ScriptedBackend(script)
    async with (
        serving(backend, KEYS, batches=tmp_path) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="one", max_retries=0) as client,
    ):
        batches, body = client.messages.batches, {"model": "claude-sonnet-5", "max_tokens": 5}
        made = await batches.create(
            requests=[
                {
                    "custom_id": text,
                    "params": body | {"messages": [{"role": "user", "content": text}]},
                }
                for text in ("bad", "good")
            ]
        )
        async with asyncio.timeout(30):
            while (await batches.retrieve(made.id)).processing_status != "ended":
                await asyncio.sleep(0)
        found = {line.custom_id: line.result.type async for line in await batches.results(made.id)}
    assert found == {"bad": "errored", "good": "succeeded"}
    assert len(backend.requests) == 2


def test_a_backend_has_a_list_of_its_own(tmp_path: Path) -> None:
    """Where it is the only worker of its model."""
    config = EngineConfig(model="fake", model_path=str(tmp_path), root_secret=b"0123456789abcdef")
    one, other = (LocalBackend(config, lambda: 0.0) for _ in range(2))
    assert one._poison is not other._poison
