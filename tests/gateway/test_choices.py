"""Several answers to one prompt: one bill for the prompt, everyone's output, and one fate."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import openai
import orjson
import pytest

from engine.messages import Finished, Started, TextDelta
from gateway.calls.choices import MAX_AT_ONCE, merge_choices, variant
from gateway.errors import EngineFailed
from gateway.request import Request
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.completions import COMPLETIONS_WIRE
from tests.fakes.backend import Script, ScriptedBackend, report_for
from tests.gateway.serving import openai_body, serving


def a_request(num_choices: int, seed: int | None = 7) -> Request:
    """A parsed request of `num_choices` answers."""
    return CHAT_WIRE.parse(orjson.dumps(openai_body(n=num_choices, seed=seed)), {}, request_id="r")


def number(request: Request) -> int:
    """Which of the answers an engine request is for."""
    return int(request.id.partition(".")[2] or 0)


def scripts() -> ScriptedBackend:
    """Answer number i says `i` i + 1 times."""
    return ScriptedBackend(
        lambda request: Script(texts=(str(number(request)),) * (number(request) + 1))
    )


async def test_every_answer_is_whole_and_the_prompt_starts_once() -> None:
    """The others are asked for when the first has its first token: what they share is cached by
    then."""
    backend, texts, events = scripts(), defaultdict(str), []
    async for event in merge_choices(backend, a_request(3)):
        events.append(event)
        if isinstance(event.event, TextDelta):
            texts[event.index] += event.event.text
        if isinstance(event.event, Started):
            assert [request.id for request in backend.requests] == ["r"]
    assert texts == {0: "0", 1: "11", 2: "222"}
    assert [type(event.event) for event in events].count(Started) == 1
    assert sorted(event.index for event in events if isinstance(event.event, Finished)) == [0, 1, 2]
    assert backend.num_open == 0


def test_every_answer_has_a_seed_of_its_own() -> None:
    """Reproducible, different, and within 64 bits; no seed stays no seed."""
    seeds = [variant(a_request(3), i).sampling.seed for i in range(3)]
    assert seeds == [7, 8, 9]
    assert variant(a_request(2, 2**63 - 1), 1).sampling.seed == -(2**63)
    assert variant(a_request(2, None), 1).sampling.seed is None


async def test_one_failure_ends_them_all() -> None:
    """The error of any answer is the request's, and no engine request stays behind."""
    gate = asyncio.Event()

    def script(request: Request) -> Script:
        fails = number(request) == 1
        return Script(
            error=EngineFailed("x") if fails else None,
            error_after=1,
            before_text={} if fails else {1: gate},
        )

    backend = ScriptedBackend(script)
    with pytest.raises(EngineFailed):
        async for _ in merge_choices(backend, a_request(3)):
            pass
    assert backend.num_open == 0
    assert len(backend.requests) == 3


async def test_many_answers_leave_room_for_others() -> None:
    """A few are in the engine at a time, and every one is given in the end."""
    backend, most, finished = scripts(), 0, []
    async for event in merge_choices(backend, a_request(40)):
        most = max(most, backend.num_open)
        finished += [event.index] if isinstance(event.event, Finished) else []
    assert most == MAX_AT_ONCE
    assert sorted(finished) == list(range(40))
    assert backend.num_open == 0


async def test_leaving_aborts_them_all() -> None:
    """Closing the merged stream closes every engine request."""
    gate = asyncio.Event()
    backend = ScriptedBackend(Script(before_text={1: gate}))
    merged = merge_choices(backend, a_request(3))
    seen = [await anext(merged) for _ in range(4)]
    assert {event.index for event in seen} == {0, 1, 2}
    assert backend.num_open == 3
    await merged.aclose()
    assert backend.num_open == 0
    assert backend.aborted.is_set()


def several(num_prompts: int, num_choices: int) -> Request:
    """A parsed request of several raw prompts, each of which names itself."""
    body = {
        "model": "gpt-5.6",
        "prompt": [f"p{i}" for i in range(num_prompts)],
        "n": num_choices,
        "seed": 7,
    }
    return COMPLETIONS_WIRE.parse(orjson.dumps(body), {}, request_id="r")


async def test_several_prompts_are_asked_each_once_and_then_for_more() -> None:
    """Every prompt starts once, the first one first; its further answers begin when it has its
    first token."""
    asked: list[tuple[str, int | None]] = []

    def script(request: Request) -> Script:
        assert isinstance(request.prompt.raw, str)
        asked.append((request.prompt.raw, request.sampling.seed))
        return Script(texts=(request.prompt.raw, str(request.sampling.seed)))

    events = [event async for event in merge_choices(ScriptedBackend(script), several(3, 2))]
    started = [event.index for event in events if isinstance(event.event, Started)]
    assert started[0] == 0
    assert sorted(started) == [0, 2, 4]
    texts = defaultdict(str)
    for event in events:
        if isinstance(event.event, TextDelta):
            texts[event.index] += event.event.text
    assert texts == {0: "p07", 1: "p08", 2: "p17", 3: "p18", 4: "p27", 5: "p28"}
    assert asked[0] == ("p0", 7)
    for prompt in ("p0", "p1", "p2"):
        assert asked.index((prompt, 7)) < asked.index((prompt, 8))


async def test_many_prompts_leave_room_for_others() -> None:
    """A few are in the engine at a time, and none is forgotten."""
    backend = ScriptedBackend()
    most, ended = 0, set[int]()
    async for event in merge_choices(backend, several(40, 3)):
        most = max(most, backend.num_open)
        if isinstance(event.event, Finished):
            ended.add(event.index)
    assert most <= MAX_AT_ONCE
    assert ended == set(range(120))


def halved(request: Request) -> Script:
    """Prompt number i has 10 (i + 1) tokens, all but one of which are written, or read where i is
    odd."""
    assert isinstance(request.prompt.raw, str)
    number = int(request.prompt.raw[1:])
    size = 10 * (number + 1)
    return Script(report_for(request, size, size - 1, warm=number % 2 == 1), texts=("a",))


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_are_one_bill(stream: bool) -> None:
    """Counts of all prompts and answers are summed, in the body, the headers and the record: one
    request."""
    async with (
        serving(
            ScriptedBackend(halved), "dialects: [{match: '*', preset: openai, min_tokens: 1}]"
        ) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as client,
    ):
        more: Any = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        raw = await client.completions.with_raw_response.create(
            model="gpt-5.6", prompt=["p0", "p1", "p2"], n=2, max_tokens=3, **more
        )
        told = raw.parse()
        if stream:
            chunks = [chunk async for chunk in told]
            usage = chunks[-1].usage
            assert {choice.index for chunk in chunks for choice in chunk.choices} == set(range(6))
            assert "pcg-cache-read-tokens" not in raw.headers
        else:
            usage = told.usage
            assert [choice.index for choice in told.choices] == list(range(6))
            assert raw.headers["pcg-cache-read-tokens"] == "19"
            assert raw.headers["pcg-cache"] == "partial"
        assert usage is not None
        details = usage.prompt_tokens_details
        assert (usage.prompt_tokens, usage.completion_tokens) == (60, 6)
        assert (details.cached_tokens, details.cache_write_tokens) == (19, 38)
        (record,) = served.records
        assert record.bill is not None
        assert (
            record.bill.usage.num_prompt,
            record.bill.usage.output,
            record.bill.report.skipped,
        ) == (60, 6, 19)


async def test_the_sdk_reads_several_answers() -> None:
    """Whole and streamed: the prompt is billed once, the outputs are summed."""
    async with (
        serving(scripts()) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as client,
    ):
        whole = await client.chat.completions.create(
            model="gpt-5.6", n=3, messages=[{"role": "user", "content": "Hi"}]
        )
        assert [(c.index, c.message.content) for c in whole.choices] == [
            (0, "0"),
            (1, "11"),
            (2, "222"),
        ]
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (10, 6)
        stream = await client.chat.completions.create(
            model="gpt-5.6",
            n=3,
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        texts, chunks = defaultdict(str), [chunk async for chunk in stream]
        for choice in (choice for chunk in chunks for choice in chunk.choices):
            texts[choice.index] += choice.delta.content or ""
        assert texts == {0: "0", 1: "11", 2: "222"}
        assert chunks[-1].usage == whole.usage
        assert [record.bill.usage.output for record in served.records if record.bill] == [6, 6]
