"""A request's bill is computed once for its prompt and once for its answer.

Not once for every place that shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from engine.types import CacheReport
from gateway.dialects.registry import DIALECTS
from gateway.upstream.reported import reported_bill
from policies.pricing import charge
from tests.fakes.backend import Script, ScriptedBackend
from tests.fakes.calls import counting_calls
from tests.fakes.upstream import say_events, say_json
from tests.gateway.proxying import proxying
from tests.gateway.serving import ANTHROPIC, OPENAI, Served, anthropic_body, openai_body, serving


@dataclass(frozen=True, slots=True)
class Route:
    """A route with a minimal request to it."""

    path: str
    body: dict[str, object]
    headers: dict[str, str]


TEXT = {"model": "gpt-5.6"}
ROUTES = {
    "messages": Route("/v1/messages", anthropic_body(), ANTHROPIC),
    "chat": Route("/v1/chat/completions", openai_body(), OPENAI),
    "responses": Route("/v1/responses", TEXT | {"input": "Hi"}, OPENAI),
    "completions": Route("/v1/completions", TEXT | {"prompt": "Hi"}, OPENAI),
}


async def ask(served: Served, route: Route, **more: object) -> None:
    async with served.http.post(
        route.path, json=route.body | more, headers=route.headers
    ) as response:
        assert response.status == 200
        await response.read()


def calls_of(calls: Any, *functions: Callable[..., object]) -> tuple[int, ...]:
    return tuple(calls[function.__code__] for function in functions)


def usages(calls: Any) -> int:
    """Calls of any dialect's `usage`."""
    return sum(calls[code] for code in {each.usage.__code__ for each in DIALECTS.values()})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ROUTES)
async def test_two_computations(name: str, stream: bool) -> None:
    """Tokens once; money for the prompt, and again with the output."""
    async with serving(ScriptedBackend()) as served:
        with counting_calls("gateway", "policies") as calls:
            await ask(served, ROUTES[name], stream=stream)
        assert (usages(calls), *calls_of(calls, charge)) == (1, 2)
        assert served.records[-1].bill is not None


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_once_per_prompt(stream: bool) -> None:
    """Three prompts with two answers each are one bill of three reports."""
    async with serving(ScriptedBackend()) as served:
        with counting_calls("gateway", "policies") as calls:
            await ask(served, ROUTES["completions"], prompt=["a", "b", "c"], n=2, stream=stream)
        assert (usages(calls), *calls_of(calls, charge)) == (3, 2)
        assert served.totals["default", "smollm2-135m-instruct"].input == 30


async def test_an_answer_in_the_background() -> None:
    """The request that starts it is not billed: the answer is, as any other."""
    async with serving(ScriptedBackend()) as served:
        with counting_calls("gateway", "policies") as calls:
            await ask(served, ROUTES["responses"], background=True)
            while len(served.records) < 2:
                await asyncio.sleep(0)
        assert (usages(calls), *calls_of(calls, charge)) == (1, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cached_answer(stream: bool) -> None:
    """Nothing is computed: tokens and price are those of the answer when it was generated."""
    async with serving(ScriptedBackend(), "caching: {responses: {enabled: true}}") as served:
        await ask(served, ROUTES["messages"], temperature=0)
        with counting_calls("gateway", "policies") as calls:
            await ask(served, ROUTES["messages"], temperature=0, stream=stream)
        assert (usages(calls), *calls_of(calls, charge)) == (0, 0)
        assert served.records[-1].kind == "response_cache"


async def test_a_refusal_after_the_start() -> None:
    """The prompt's bill decides that nothing was cached; a request that failed owes nothing."""
    async with serving(ScriptedBackend(Script(CacheReport(num_prompt=10)))) as served:
        headers = ANTHROPIC | {"cache-control": "only-if-cached"}
        with counting_calls("gateway", "policies") as calls:
            async with served.http.post(
                "/v1/messages", json=anthropic_body(), headers=headers
            ) as response:
                assert response.status == 504
        assert (usages(calls), *calls_of(calls, charge)) == (1, 1)
        assert served.records[-1].bill is None


USAGE = {"input_tokens": 10, "cache_read_input_tokens": 0, "output_tokens": 2}
START = b'event: message_start\ndata: {"type":"message_start","message":{"usage":%b}}\n\n' % (
    b'{"input_tokens":10,"cache_read_input_tokens":0}'
)
END = b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":2}}\n\n'


@pytest.mark.parametrize("stream", [False, True])
async def test_one_reported_bill(stream: bool) -> None:
    """Of an upstream's answer: at its end, for headers, record, metrics and log alike."""
    say = say_events(START, END) if stream else say_json({"usage": USAGE})
    async with proxying(say) as passed:
        with counting_calls("gateway", "policies") as calls:
            answer = await passed.post("/v1/messages", anthropic_body(stream=stream))
        assert answer.status == 200
        assert calls_of(calls, reported_bill, charge) == (1, 1)
        assert passed.served.totals["default", "claudes"].output == 2
