"""Cases of public reports that need no model: silence before the first token, replayed answers,
reasoning that is stripped."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import orjson
import pytest

from engine.prompt.render import Renderer
from engine.prompt.types import Position
from gateway.wire.openai import CHAT_WIRE
from tests.fakes.backend import Script, ScriptedBackend
from tests.fakes.tokenizer import ByteTokenizer
from tests.gateway.serving import serving
from tests.prompt.kit import template

HURRIED = "server: {sse: {early_headers_after: 10ms, keepalive: 10ms}}"


PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/completions", {"prompt": "Hi"}),
]


@pytest.mark.parametrize(("path", "prompt"), PROMPTS, ids=[path for path, _ in PROMPTS])
async def test_case_37_silence_before_the_first_token_is_filled(
    path: str, prompt: dict[str, Any]
) -> None:
    """Comments from the start, also while the prompt waits; the events that follow are whole."""
    gate = asyncio.Event()
    async with (
        serving(ScriptedBackend(Script(before_started=gate)), HURRIED) as served,
        served.http.post(path, json={"model": "gpt-5.6", "stream": True} | prompt) as response,
    ):
        for _ in range(2):
            assert (await response.content.readuntil(b"\n\n")).startswith(b":")
        gate.set()
        assert b"Hello" in await response.read()


async def test_case_37_the_sdk_reads_on_after_silence() -> None:
    """Comments are no events to the official client, in either API."""
    gate = asyncio.Event()
    async with (
        serving(ScriptedBackend(Script(before_text={1: gate})), HURRIED) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        stream = await gpt.responses.create(model="gpt-5.6", input="Hi", stream=True)
        chat = await gpt.chat.completions.create(
            model="gpt-5.6", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        gate.set()
        events = [event async for event in stream]
        assert events[-1].type == "response.completed"
        assert (
            "".join([c.choices[0].delta.content or "" async for c in chat if c.choices])
            == "Hello world"
        )


async def test_case_39_a_stored_answer_costs_nothing_again() -> None:
    """Retrieving it shows the usage it had and bills no one: no cost header, nothing in the
    record."""
    async with (
        serving(ScriptedBackend()) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        first = await gpt.responses.create(model="gpt-5.6", input="Hi")
        spent = dict(served.totals)
        cost = spent["default", "smollm2-135m-instruct"].cost_usd
        raw = await gpt.responses.with_raw_response.retrieve(first.id)
        assert raw.parse().usage == first.usage
        assert "pcg-cost-usd" not in raw.headers
        assert served.totals["default", "smollm2-135m-instruct"].cost_usd == cost > 0
        assert served.records[-1].bill is None


async def test_case_39_a_repeated_answer_costs_nothing() -> None:
    """Given again to the same request, in either API: usage as before, cost 0, all of it saved, and
    the model is not asked."""
    backend = ScriptedBackend()
    async with (
        serving(backend, "caching: {responses: {enabled: true}}") as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        raw = gpt.chat.completions.with_raw_response
        hi: Any = [{"role": "user", "content": "Hi"}]
        chats = [
            await raw.create(model="gpt-5.6", messages=hi, temperature=0, user=user)
            for user in ("a", "b")
        ]
        said = [
            await gpt.responses.with_raw_response.create(
                model="gpt-5.6", input="Hi", temperature=0, metadata={"n": str(i)}
            )
            for i in range(2)
        ]
        for first, second in (chats, said):
            assert second.parse().usage == first.parse().usage
            assert second.headers["pcg-cost-usd"] == "0.00000000"
            assert (
                second.headers["pcg-cost-saved-usd"]
                == first.headers["pcg-cost-usd"]
                != "0.00000000"
            )
            assert second.headers["Cache-Status"] == "pcg-resp; hit; ttl=600"
        assert said[1].parse().metadata == {"n": "1"}
    assert len(backend.requests) == 2


def test_case_29_reasoning_that_the_template_strips() -> None:
    """The next turn reads through the last user turn, whether the client sends the reasoning back
    or not."""
    user, more = {"role": "user", "content": "Q" * 40}, {"role": "user", "content": "And?"}
    answer = {"role": "assistant", "content": "A"}
    renderer, wire = Renderer(ByteTokenizer(), template("qwen3")), CHAT_WIRE

    def tokens(*messages: dict[str, Any]) -> tuple[tuple[int, ...], int]:
        body = orjson.dumps({"model": "m", "messages": list(messages)})
        rendered = renderer.render(wire.parse(body, {}, request_id="r").prompt)
        return rendered.token_ids, rendered.offsets[Position("messages", 0, 0)]

    first, end = tokens(user)
    for turn in (answer, answer | {"reasoning_content": "hm"}):
        second, _ = tokens(user, turn, more)
        assert second[:end] == first[:end]
        assert end >= 40
