"""The Responses API behind a real socket, through the unmodified SDK: answers, streams,
conversations that are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from engine.messages import TextDelta, ToolCallDelta
from engine.prompt.types import Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from gateway.errors import Overloaded
from tests.fakes.backend import Script, ScriptedBackend
from tests.gateway.serving import Served, serving

MODEL = "gpt-5.6"
TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
CALLING = Script(
    texts=(),
    deltas=(
        TextDelta("r", "hm", (1,), thinking=True),
        TextDelta("r", "Let me see.", (2, 3)),
        ToolCallDelta("r", 0, "f", "", (4,)),
        ToolCallDelta("r", 0, None, '{"a":', (5,)),
        ToolCallDelta("r", 0, None, '"é"}', (6,)),
        ToolCallDelta("r", 1, "f", "{}", (7,)),
    ),
)


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
async def served(backend: ScriptedBackend) -> AsyncIterator[Served]:
    async with serving(backend) as running:
        yield running


@pytest.fixture
async def gpt(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="k", max_retries=0
    ) as client:
        yield client


async def test_text(gpt: openai.AsyncOpenAI) -> None:
    """The answer, its usage, and what a response repeats of its request."""
    response = await gpt.responses.create(
        model=MODEL, input="Hi", instructions="Be kind.", metadata={"a": "b"}
    )
    assert response.output_text == "Hello world"
    assert (response.status, response.object, response.error) == ("completed", "response", None)
    assert (response.instructions, response.metadata, response.store) == (
        "Be kind.",
        {"a": "b"},
        True,
    )
    assert response.usage is not None
    assert (
        response.usage.input_tokens,
        response.usage.output_tokens,
        response.usage.total_tokens,
    ) == (10, 2, 12)
    assert (
        response.usage.input_tokens_details.cached_tokens,
        response.usage.output_tokens_details.reasoning_tokens,
    ) == (0, 0)


async def test_the_stream_is_the_answer(gpt: openai.AsyncOpenAI) -> None:
    """Events are numbered from 0 in the provider's order, and end with the response that is
    kept."""
    events = [
        event async for event in await gpt.responses.create(model=MODEL, input="Hi", stream=True)
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    last = events[-1].response
    assert last.output_text == "Hello world"
    assert (await gpt.responses.retrieve(last.id)) == last


async def test_calls_stream_as_the_helper_reads_them(
    backend: ScriptedBackend, served: Served
) -> None:
    """Reasoning, text and two calls: the helper builds what the stream ends with, and a whole
    answer has the same items."""
    calling = ScriptedBackend(CALLING)
    async with (
        serving(calling) as other,
        openai.AsyncOpenAI(base_url=f"{other.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        async with gpt.responses.stream(model=MODEL, input="Hi", tools=[TOOL]) as stream:
            kinds = [event.type async for event in stream]
            built = await stream.get_final_response()
        assert kinds.count("response.function_call_arguments.delta") == 3
        assert kinds.count("response.reasoning_text.delta") == 1
        assert [item.type for item in built.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        whole = await gpt.responses.create(model=MODEL, input="Hi", tools=[TOOL])
        assert [strip(item) for item in whole.output] == [strip(item) for item in built.output]
        first, second = (item for item in whole.output if item.type == "function_call")
        assert (first.name, first.arguments, second.arguments) == ("f", '{"a":"é"}', "{}")
        assert first.call_id != second.call_id
        assert whole.usage is not None
        assert whole.usage.output_tokens_details.reasoning_tokens == 1


def strip(item: Any) -> dict[str, Any]:
    """An output item without the ids that name its response."""
    fields = item.to_dict()
    fields["content"] = [
        {name: part[name] for name in part if name != "parsed"}
        for part in fields.get("content") or []
    ]
    return {
        name: value
        for name, value in fields.items()
        if name not in ("id", "call_id", "parsed_arguments")
    }


def as_sent(item: Any) -> dict[str, Any]:
    """An output item without what the SDK's stream helper adds."""
    fields = item.to_dict()
    fields.pop("parsed_arguments", None)
    for part in fields.get("content") or []:
        part.pop("parsed", None)
    return fields


async def test_a_conversation_goes_on(backend: ScriptedBackend, gpt: openai.AsyncOpenAI) -> None:
    """`previous_response_id`: the earlier turns come first, its instructions do not."""
    first = await gpt.responses.create(model=MODEL, input="Hi", instructions="Be kind.")
    second = await gpt.responses.create(
        model=MODEL, input="More", instructions="Be brief.", previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    third = await gpt.responses.create(
        model=MODEL,
        input=[{"role": "developer", "content": "late"}],
        previous_response_id=second.id,
    )
    told = backend.requests[-1].prompt
    assert third.status == "completed"
    assert told.system == ()
    assert [(message.role, message.parts[0]) for message in told.messages] == [
        ("user", TextPart("Hi")),
        ("assistant", TextPart("Hello world")),
        ("user", TextPart("More")),
        ("assistant", TextPart("Hello world")),
        ("system", TextPart("late")),
    ]
    assert backend.requests[1].prompt.system == (TextPart("Be brief."),)


async def test_kept_or_sent_back_it_is_the_same_prompt() -> None:
    """A client that keeps the items and one that names the response ask for the same tokens."""
    backend = ScriptedBackend(CALLING)
    async with (
        serving(backend) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        first = await gpt.responses.create(
            model=MODEL,
            input="Hi",
            tools=[TOOL],
            include=["reasoning.encrypted_content"],
            instructions="Be kind.",
        )
        outputs: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "r"}
            for item in first.output
            if item.type == "function_call"
        ]
        kept: dict[str, Any] = {"model": MODEL, "tools": [TOOL], "instructions": "Be kind."}
        await gpt.responses.create(input=outputs, previous_response_id=first.id, **kept)
        echoed: Any = [item.to_dict() | {"id": f"fresh_{i}"} for i, item in enumerate(first.output)]
        await gpt.responses.create(
            input=[{"role": "user", "content": "Hi"}, *echoed, *outputs], store=False, **kept
        )
        sealed: Any = [
            {k: v for k, v in item.items() if item["type"] != "reasoning" or k != "content"}
            for item in echoed
        ]
        await gpt.responses.create(
            input=[{"role": "user", "content": "Hi"}, *sealed, *outputs], store=False, **kept
        )
        prompts = [request.prompt for request in backend.requests[1:]]
        assert prompts[0] == prompts[1] == prompts[2]
        assert [type(part) for part in prompts[0].messages[1].parts] == [
            ThinkingPart,
            TextPart,
            ToolCallPart,
            ToolCallPart,
        ]
        assert prompts[0].messages[2] == Message(
            "tool", (ToolResultPart(outputs[0]["call_id"], "r"),)
        )


async def test_an_answer_stays_in_its_order() -> None:
    """Text behind a call stays there: streamed, whole, kept, referred to and gone on with, it is
    the same items and prompt."""
    call = ToolCallDelta("r", 0, "f", "{}", (2,))
    mixed = (
        TextDelta("r", "First.", (1,)),
        call,
        TextDelta("r", "Then", (3,)),
        TextDelta("r", " more.", (4,)),
    )
    backend = ScriptedBackend(Script(texts=(), deltas=mixed))
    async with (
        serving(backend) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        async with gpt.responses.stream(model=MODEL, input="Hi", tools=[TOOL]) as stream:
            streamed = await stream.get_final_response()
        whole = await gpt.responses.create(model=MODEL, input="Hi", tools=[TOOL])
        kept = await gpt.responses.retrieve(streamed.id)
        assert [item.type for item in streamed.output] == ["message", "function_call", "message"]
        assert [item.to_dict() for item in kept.output] == [
            as_sent(item) for item in streamed.output
        ]
        assert [strip(item) for item in whole.output] == [strip(item) for item in streamed.output]
        more: Any = {"role": "user", "content": "And?"}
        named: Any = [{"type": "item_reference", "id": item.id} for item in streamed.output]
        await gpt.responses.create(
            model=MODEL, input=[{"role": "user", "content": "Hi"}, *named, more]
        )
        await gpt.responses.create(model=MODEL, input=[more], previous_response_id=streamed.id)
        assert backend.requests[-1].prompt == backend.requests[-2].prompt


async def test_what_is_kept_can_be_listed_and_deleted(gpt: openai.AsyncOpenAI) -> None:
    """Retrieve, list in pages, delete; afterwards it is nowhere. What was not to be stored never
    was."""
    items: Any = [{"role": "user", "content": f"q{i}"} for i in range(3)]
    response = await gpt.responses.create(model=MODEL, input=items)
    page = await gpt.responses.input_items.list(response.id, order="asc", limit=2)
    assert [item.content[0].text for item in page.data] == ["q0", "q1"]
    assert page.has_more
    assert [
        item.content[0].text async for item in gpt.responses.input_items.list(response.id, limit=1)
    ] == ["q2", "q1", "q0"]
    for limit in ("0", "x", "101", "0" * 5000 + "1", "9" * 5000):
        with pytest.raises(openai.BadRequestError, match="Invalid 'limit'"):
            await gpt.responses.input_items.list(response.id, extra_query={"limit": limit})
    with pytest.raises(openai.BadRequestError, match="Cannot cancel"):
        await gpt.responses.cancel(response.id)
    with pytest.raises(
        openai.BadRequestError, match="'stream' is for responses made in the background"
    ):
        await gpt.responses.retrieve(response.id, stream=True)
    await gpt.responses.delete(response.id)
    for lost in (
        response.id,
        "resp_none",
        (await gpt.responses.create(model=MODEL, input="Hi", store=False)).id,
    ):
        with pytest.raises(openai.NotFoundError):
            await gpt.responses.retrieve(lost)
        with pytest.raises(openai.BadRequestError) as told:
            await gpt.responses.create(model=MODEL, input="Hi", previous_response_id=lost)
        assert (told.value.code, told.value.param) == (
            "previous_response_not_found",
            "previous_response_id",
        )


async def test_tenants_do_not_see_each_other() -> None:
    """Another tenant's response is not there: not to read, not to continue, not to compare with,
    not to delete."""
    policy = "tenants: [{name: a, keys: [ka]}, {name: b, keys: [kb]}]"
    async with (
        serving(ScriptedBackend(), policy) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="ka", max_retries=0) as a,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="kb", max_retries=0) as b,
    ):
        mine = (await a.responses.create(model=MODEL, input="Hi")).id
        for reach in (
            b.responses.retrieve,
            b.responses.delete,
            b.responses.cancel,
            b.responses.input_items.list,
        ):
            with pytest.raises(openai.NotFoundError):
                await reach(mine)
        with pytest.raises(openai.BadRequestError):
            await b.responses.create(model=MODEL, input="Hi", previous_response_id=mine)
        compared = await b.responses.create(
            model=MODEL, input="Hi", prompt_cache_options={"comparison_response_id": mine}
        )
        assert compared.prompt_cache_diagnostics is not None
        assert compared.prompt_cache_diagnostics.type == "comparison_response_not_found"
        assert (await a.responses.retrieve(mine)).id == mine


async def test_responses_are_forgotten_in_time(served: Served, gpt: openai.AsyncOpenAI) -> None:
    """After `server.responses.max_age`, on the gateway's clock."""
    response = await gpt.responses.create(model=MODEL, input="Hi")
    served.clock.advance(30 * 86400.0 + 1)
    with pytest.raises(openai.NotFoundError):
        await gpt.responses.retrieve(response.id)


async def test_count(gpt: openai.AsyncOpenAI) -> None:
    """`input_tokens.count` counts the conversation a response would be asked with."""
    counted = await gpt.responses.input_tokens.count(model=MODEL, input="Hi")
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 7)


async def test_prewarm(gpt: openai.AsyncOpenAI, backend: ScriptedBackend) -> None:
    """Nothing is generated: a completed response without output, whole and streamed; the engine is
    asked for no token."""
    options: Any = {"prewarm": True}
    response = await gpt.responses.create(model=MODEL, input="Hi", prompt_cache_options=options)
    assert (response.status, response.output) == ("completed", [])
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 0)
    stream = await gpt.responses.create(
        model=MODEL, input="Hi", prompt_cache_options=options, stream=True
    )
    assert [event.type async for event in stream] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert [request.sampling.max_tokens for request in backend.requests] == [0, 0]


async def test_a_limit_makes_it_incomplete() -> None:
    """Status, reason, terminal event and the last item all say so."""
    async with (
        serving(ScriptedBackend(Script(reason="length"))) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        response = await gpt.responses.create(model=MODEL, input="Hi", max_output_tokens=2)
        assert (response.status, response.output[0].status) == ("incomplete", "incomplete")
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        events = [
            event
            async for event in await gpt.responses.create(model=MODEL, input="Hi", stream=True)
        ]
        assert events[-1].type == "response.incomplete"
        assert events[-1].response.output[0].status == "incomplete"


async def test_an_error_on_the_way_raises() -> None:
    """Readers of events see `response.failed`; the SDK raises what the engine said."""
    async with (
        serving(ScriptedBackend(Script(error=Overloaded("full"), error_after=1))) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        seen: list[Any] = []
        stream = await gpt.responses.create(model=MODEL, input="Hi", stream=True)
        with pytest.raises(openai.APIError, match="full") as told:
            await read_into(seen, stream)
        assert told.value.code == "server_is_overloaded"
        assert seen[-1].type == "response.failed"
        assert seen[-1].response.error.code == "server_error"


async def read_into(seen: list[Any], stream: Any) -> None:
    async for event in stream:
        seen.append(event)
