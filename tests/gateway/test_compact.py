"""Compacted conversations and items that are only named, through the unmodified SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from engine.messages import TextDelta, ToolCallDelta
from engine.prompt.types import Message, TextPart, ThinkingPart, ToolCallPart
from gateway.wire.openai.responses.compact import ASKING
from gateway.wire.openai.responses.items import SUMMARY
from tests.fakes.backend import Script, ScriptedBackend
from tests.gateway.serving import serving

MODEL = "gpt-5.6"
TURNS: Any = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "first"},
    {
        "role": "user",
        "content": [{"type": "input_text", "text": "two"}, {"type": "input_text", "text": "three"}],
    },
]


@asynccontextmanager
async def opened(
    script: Script | None = None, policy: str = ""
) -> AsyncIterator[tuple[ScriptedBackend, openai.AsyncOpenAI]]:
    """A backend, and a client of the gateway over it."""
    backend = ScriptedBackend(script)
    async with (
        serving(backend, policy) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        yield backend, gpt


async def test_a_compacted_conversation_goes_on() -> None:
    """The user's messages and one opaque item; sent back, the model is told the summary where the
    conversation was."""
    async with opened(Script(texts=("A sum", "mary."))) as (backend, gpt):
        raw = await gpt.responses.with_raw_response.compact(model=MODEL, input=TURNS)
        compacted = raw.parse()
        assert (compacted.object, compacted.usage.input_tokens, compacted.usage.output_tokens) == (
            "response.compaction",
            10,
            2,
        )
        *said, item = compacted.output
        assert [[part.text for part in message.content] for message in said] == [
            ["one"],
            ["two", "three"],
        ]  # type: ignore[union-attr]
        assert item.type == "compaction"
        await gpt.responses.create(
            model=MODEL, input=[*json.loads(raw.content)["output"], TURNS[1]]
        )
        asked, then = (request.prompt for request in backend.requests)
        assert asked.messages[:-1] == (
            Message("user", (TextPart("one"),)),
            Message("assistant", (TextPart("first"),)),
            Message("user", (TextPart("two"), TextPart("three"))),
        )
        assert asked.messages[-1] == Message("user", (TextPart(ASKING),))
        assert then.messages[2] == Message("system", (TextPart(f"{SUMMARY}\nA summary."),))
        assert then.messages[3] == Message("user", (TextPart("one"),))


async def test_a_stored_conversation_can_be_compacted() -> None:
    """By its last response's id, without an input; nothing of the compaction is stored."""
    async with opened() as (backend, gpt):
        first = await gpt.responses.create(model=MODEL, input="one")
        compacted = await gpt.responses.compact(model=MODEL, previous_response_id=first.id)
        assert [part.text for part in compacted.output[0].content] == ["one"]  # type: ignore[union-attr]
        assert [message.role for message in backend.requests[-1].prompt.messages] == [
            "user",
            "assistant",
            "user",
        ]
        with pytest.raises(openai.NotFoundError):
            await gpt.responses.retrieve(compacted.id)
        with pytest.raises(openai.BadRequestError) as told:
            await gpt.responses.compact(model=MODEL)
        assert told.value.param == "input"


async def test_items_that_are_only_named() -> None:
    """Of an answer or of an input that is kept: the prompt is the same as if they had been sent."""
    deltas = (
        TextDelta("r", "hm", (1,), thinking=True),
        TextDelta("r", "Yes.", (2,)),
        ToolCallDelta("r", 0, "f", "{}", (3,)),
    )
    tools: Any = [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    ]
    async with opened(Script(texts=(), deltas=deltas)) as (backend, gpt):
        first = await gpt.responses.create(model=MODEL, input="one", tools=tools)
        (asked,) = (await gpt.responses.input_items.list(first.id)).data
        named: Any = [{"type": "item_reference", "id": item.id} for item in (asked, *first.output)]
        result = {
            "type": "function_call_output",
            "call_id": first.output[-1].call_id,
            "output": "r",
        }  # type: ignore[union-attr]
        await gpt.responses.create(model=MODEL, input=[*named, result], tools=tools)
        question, answer, _ = backend.requests[-1].prompt.messages
        assert question == Message("user", (TextPart("one"),))
        assert [type(part) for part in answer.parts] == [ThinkingPart, TextPart, ToolCallPart]
        counted = await gpt.responses.input_tokens.count(
            model=MODEL, input=[*named, result], tools=tools
        )
        assert counted.input_tokens == backend.num_tokens


@pytest.mark.parametrize("name", ["msg_none_0", "x", "", "msg_0"])
async def test_items_that_are_not_there(name: str) -> None:
    """Nor another tenant's: each says where it was named."""
    policy = "tenants: [{name: a, keys: [k]}, {name: b, keys: [kb]}]"
    async with opened(policy=policy) as (_, gpt), gpt.with_options(api_key="kb") as other:
        mine = (await gpt.responses.create(model=MODEL, input="one")).output[0].id
        for client, lost in ((gpt, name), (other, mine)):
            items: Any = [{"role": "user", "content": "x"}, {"type": "item_reference", "id": lost}]
            with pytest.raises(openai.BadRequestError) as told:
                await client.responses.create(model=MODEL, input=items)
            assert (told.value.param, told.value.code) == ("input[1].id", "item_not_found")
