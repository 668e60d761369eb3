"""Conversations over several workers, each with a cache of its own:
cases 33 and 48 of the collection of public reports.

The whole gateway over four engines of real parts. Every byte of a prompt is a token, and what was
read shows where a request went: only the worker that has computed a prefix can skip it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import anthropic
import openai
import orjson
import pytest

from gateway.backends.router import Router
from tests.fakes.engine_backend import EngineBackend
from tests.gateway.serving import ANTHROPIC, Served, serving

MODEL = "smollm2-135m-instruct"
CC = {"type": "ephemeral"}


def words(num_bytes: int, seed: str = "w") -> str:
    """A text of so many tokens, always the same."""
    return " ".join(f"{seed}{i}" for i in range(num_bytes))[:num_bytes]


@dataclass(frozen=True, slots=True)
class Floor:
    """A gateway over some workers, and which of them has started how many prompts."""

    served: Served
    workers: list[EngineBackend]

    async def asked(self) -> list[int]:
        """Prompts that each worker has started since it was made."""
        stats = [await worker.stats() for worker in self.workers]
        return [int(told.counters["cache_requests_total"]) for told in stats if told is not None]

    async def busy(self) -> list[int]:
        """The workers that have started any."""
        return [i for i, number in enumerate(await self.asked()) if number]

    async def messages(
        self, *messages: Any, headers: dict[str, str] | None = None, **body: Any
    ) -> Any:
        """Usage and headers of one request in Anthropic's format, for one token."""
        fields = {"model": MODEL, "max_tokens": 1, "messages": messages} | body
        sent = ANTHROPIC | (headers or {})
        async with self.served.http.post(
            "/v1/messages", data=orjson.dumps(fields), headers=sent
        ) as response:
            told = orjson.loads(await response.read())
            assert response.status == 200, told
            return told["usage"] | {"text": told["content"][0]["text"]}


@asynccontextmanager
async def floor(num_workers: int = 4, batches: Path | None = None) -> AsyncIterator[Floor]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(EngineBackend()) for _ in range(num_workers)]
        yield Floor(
            await stack.enter_async_context(serving(Router(workers), batches=batches)), workers
        )


def user(text: str, mark: bool = False) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "text", "text": text} | ({"cache_control": CC} if mark else {})],
    }


def turns(number: int) -> list[dict[str, Any]]:
    """A conversation of so many user turns, the last one marked."""
    said: list[dict[str, Any]] = []
    for i in range(number):
        said += [
            user(words(100, f"u{i}"), mark=i == number - 1),
            {"role": "assistant", "content": words(40, f"a{i}")},
        ]
    return said[:-1]


KEYED = [{"prompt_cache_key": "conversation-7"}, {}]


@pytest.mark.parametrize("key", KEYED, ids=["key", "no key"])
async def test_case_48_ten_turns_go_to_one_worker(key: dict[str, Any]) -> None:
    """With a routing key and without: after the first turn every one reads what the turn before has
    written."""
    async with (
        floor() as desk,
        openai.AsyncOpenAI(base_url=f"{desk.served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        conversation: list[Any] = [{"role": "system", "content": words(120, "s")}]
        read = []
        for i in range(10):
            conversation.append({"role": "user", "content": words(100, f"u{i}")})
            answer = await gpt.chat.completions.create(
                model=MODEL, messages=conversation, max_tokens=4, **key
            )
            conversation.append({"role": "assistant", "content": answer.choices[0].message.content})
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            read.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
        assert len(await desk.busy()) == 1
        assert read[0] == 0
        assert all(later - earlier > 100 for earlier, later in pairwise(read))


@pytest.mark.parametrize("key", KEYED, ids=["key", "no key"])
async def test_case_48_when_the_worker_dies_another_one_takes_over_and_keeps_it(
    key: dict[str, Any],
) -> None:
    """The next turn is answered by another worker, cold; the turns after it stay there, also when
    the first one is back."""
    async with (
        floor() as desk,
        openai.AsyncOpenAI(base_url=f"{desk.served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):

        async def ask(text: str) -> int:
            said: list[Any] = [
                {"role": "system", "content": words(300, "s")},
                {"role": "user", "content": text},
            ]
            answer = await gpt.chat.completions.create(
                model=MODEL, messages=said, max_tokens=1, **key
            )
            assert answer.choices[0].message.content
            return int(answer.usage.prompt_tokens if answer.usage else 0)

        await ask("one")
        (first,) = await desk.busy()
        desk.workers[first].ready = False
        await ask("two")
        (second,) = set(await desk.busy()) - {first}
        desk.workers[first].ready, desk.workers[first].life = True, 2
        for text in ("three", "four", "five"):
            await ask(text)
        asked = await desk.asked()
        assert (asked[first], asked[second], sum(asked)) == (1, 4, 5)


async def test_case_48_a_user_is_no_routing_key() -> None:
    """One user's conversations spread, and a user's name changes nothing about where a conversation
    goes."""
    async with floor() as desk:
        for i in range(12):
            await desk.messages(user(words(200, f"c{i}x"), mark=True), metadata={"user_id": "me"})
        assert len(await desk.busy()) > 1
        first = await desk.messages(user(words(200, "z"), mark=True), metadata={"user_id": "me"})
        other = await desk.messages(user(words(200, "z"), mark=True), metadata={"user_id": "you"})
        assert other["cache_read_input_tokens"] == first["cache_creation_input_tokens"] > 200


async def test_case_48_a_session_header_is_one() -> None:
    """Where no prefix says it, the client's session does."""
    async with floor() as desk:
        for i in range(8):
            await desk.messages(
                user(words(200, f"c{i}x"), mark=True),
                headers={"x-claude-code-session-id": "session"},
            )
        assert len(await desk.busy()) == 1


async def test_case_33_one_system_text_and_other_questions_go_to_one_worker() -> None:
    """The key is the marked prefix and not the question; when the worker is gone, the next one
    keeps the requests."""
    system = [{"type": "text", "text": words(300, "s"), "cache_control": CC}]
    async with floor(2) as desk:
        read = [
            (await desk.messages(user(f"q{i}"), system=system))["cache_read_input_tokens"]
            for i in range(6)
        ]
        assert read[0] == 0
        assert min(read[1:]) > 300
        (first,) = await desk.busy()
        desk.workers[first].ready = False
        read = [
            (await desk.messages(user(f"r{i}"), system=system))["cache_read_input_tokens"]
            for i in range(3)
        ]
        assert [number > 300 for number in read] == [False, True, True]
        assert (await desk.asked())[first] == 6


async def test_a_marked_prefix_is_read_by_all_who_come_at_once() -> None:
    """One request warms the cache, eight follow together: nobody is sent to where it would have to
    be written again."""
    system = [{"type": "text", "text": words(2500, "s"), "cache_control": CC}]
    async with floor() as desk:
        warm = await desk.messages(user("first"), system=system)
        told = await asyncio.gather(
            *(desk.messages(user(f"q{i}"), system=system) for i in range(8))
        )
        assert {usage["cache_read_input_tokens"] for usage in told} == {
            warm["cache_creation_input_tokens"]
        }


async def test_the_answer_is_the_same_wherever_it_is_computed() -> None:
    """Routing decides what a request costs, never what it says: one worker or four, cold or
    warm."""

    async def told(num_workers: int) -> list[str]:
        async with floor(num_workers) as desk:
            return [
                (await desk.messages(*turns(number), max_tokens=8, temperature=0))["text"]
                for number in (1, 2, 3)
            ]

    assert await told(1) == await told(4)


async def test_conversations_that_have_nothing_in_common_use_all_workers() -> None:
    """Forty conversations over four workers, one after the other; each one's next turn finds its
    own."""
    async with floor() as desk:
        written = [await desk.messages(user(words(100, f"c{i}x"), mark=True)) for i in range(40)]
        assert min(await desk.asked()) >= 3
        for i, first in enumerate(written):
            again = await desk.messages(user(words(100, f"c{i}x"), mark=True))
            assert again["cache_read_input_tokens"] == first["cache_creation_input_tokens"]


async def test_operators_see_every_worker() -> None:
    """Metrics and statistics by worker, counts by any of them, ready while one is."""
    async with floor(2) as desk:
        await desk.messages(user(words(100), mark=True))
        async with desk.served.http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        asked = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("pcg_cache_req")
        }
        names = [f'pcg_cache_requests_total{{model="{MODEL}",worker="{i}"}}' for i in (0, 1)]
        assert sorted(asked[name] for name in names) == [0.0, 1.0]
        async with desk.served.http.get("/admin/cache/stat") as response:
            assert list((await response.json())["engines"]) == [f"{MODEL}#0", f"{MODEL}#1"]
        body = {"model": MODEL, "messages": [user("hi")]}
        counted = []
        for worker in desk.workers:
            async with desk.served.http.post(
                "/v1/messages/count_tokens", json=body, headers=ANTHROPIC
            ) as response:
                counted.append((await response.json())["input_tokens"])
            worker.ready = False
        assert counted[0] == counted[1] > 2
        async with desk.served.http.get("/readyz") as response:
            assert response.status == 503


async def test_batches_go_to_all_workers(tmp_path: Path) -> None:
    """The requests of a batch are routed as any other, and each gets its own answer."""
    requests = [
        {
            "custom_id": f"r{i}",
            "params": {"model": MODEL, "max_tokens": 2, "messages": [user(words(200, f"b{i}x"))]},
        }
        for i in range(12)
    ]
    async with (
        floor(batches=tmp_path / "b") as desk,
        anthropic.AsyncAnthropic(base_url=desk.served.url, api_key="k", max_retries=0) as claude,
    ):
        made = await claude.messages.batches.create(requests=requests)  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            while (await claude.messages.batches.retrieve(made.id)).processing_status != "ended":
                await asyncio.sleep(0)
        told = {
            line.custom_id: line.result.type
            async for line in await claude.messages.batches.results(made.id)
        }
        assert told == {f"r{i}": "succeeded" for i in range(12)}
        assert len(await desk.busy()) > 1
