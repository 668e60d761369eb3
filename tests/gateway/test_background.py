"""Responses made in the background, through the unmodified SDK: polled, followed, cancelled,
and bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from gateway.errors import ContextExceeded, Overloaded
from gateway.state.background import KEPT_S, Background, EventLog
from tests.fakes.backend import Script, ScriptedBackend
from tests.fakes.clock import FakeClock
from tests.gateway.serving import Served, serving

MODEL = "gpt-5.6"


@asynccontextmanager
async def opened(
    script: Script | None = None, policy: str = ""
) -> AsyncIterator[tuple[Served, openai.AsyncOpenAI]]:
    """A gateway over a script, and a client of it."""
    async with (
        serving(ScriptedBackend(script), policy) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        yield served, gpt


async def ended(gpt: openai.AsyncOpenAI, response_id: str) -> Any:
    """The response once it is over, asked for again and again as a client does."""
    async with asyncio.timeout(20):
        while True:
            response = await gpt.responses.retrieve(response_id)
            if response.status not in ("queued", "in_progress"):
                return response


async def test_polling() -> None:
    """Queued at once, in progress once there are events, completed with the answer and its usage;
    billed once."""
    started, text = asyncio.Event(), asyncio.Event()
    async with opened(Script(before_started=started, before_text={1: text})) as (served, gpt):
        response = await gpt.responses.create(
            model=MODEL, input="Hi", background=True, metadata={"a": "b"}
        )
        assert (response.status, response.background, response.output) == ("queued", True, [])
        assert (await gpt.responses.retrieve(response.id)).status == "queued"
        started.set()
        async with asyncio.timeout(20):
            while (await gpt.responses.retrieve(response.id)).status != "in_progress":
                pass
        text.set()
        done = await ended(gpt, response.id)
        assert (done.id, done.status, done.output_text, done.metadata) == (
            response.id,
            "completed",
            "Hello world",
            {"a": "b"},
        )
        assert (done.background, done.usage.input_tokens, done.usage.output_tokens) == (True, 10, 2)
        assert [record.route for record in served.records if record.bill is not None] == [
            "background"
        ]
        items = await gpt.responses.input_items.list(response.id)
        assert items.data[0].content[0].text == "Hi"  # type: ignore[union-attr]
        more = await gpt.responses.create(
            model=MODEL, input="More", previous_response_id=response.id
        )
        assert more.status == "completed"


async def test_a_stream_that_was_left_is_taken_up_again() -> None:
    """The answer goes on without its client, which later reads from the event it knows on; every
    event has its number."""
    gate = asyncio.Event()
    async with opened(Script(before_text={1: gate})) as (_, gpt):
        stream = await gpt.responses.create(model=MODEL, input="Hi", background=True, stream=True)
        seen = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        gate.set()
        response_id = seen[0].response.id  # type: ignore[union-attr]
        rest = await gpt.responses.retrieve(
            response_id, stream=True, starting_after=seen[-1].sequence_number
        )
        seen += [event async for event in rest]
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert seen[-1].type == "response.completed"
        assert seen[-1].response.output_text == "Hello world"
        again = [event async for event in await gpt.responses.retrieve(response_id, stream=True)]
        assert [event.to_dict() for event in again] == [event.to_dict() for event in seen]


async def test_a_stream_that_is_followed_is_billed_once() -> None:
    """By the answer in the background, and not again by the request that watched it; what that took
    is counted once, too."""
    async with opened() as (served, gpt):
        stream = await gpt.responses.create(
            model=MODEL, input="Hi", background=True, stream=True, tools=[{"type": "web_search"}]
        )
        assert [event async for event in stream][-1].type == "response.completed"
        async with asyncio.timeout(20):
            while len(served.records) < 2:
                await asyncio.sleep(0)
        assert sorted((record.route, record.bill is not None) for record in served.records) == [
            ("background", True),
            ("responses", False),
        ]
        (totals,) = served.totals.values()
        assert (totals.num_requests, totals.input, totals.output) == (1, 10, 2)
        async with served.http.get("/metrics") as response:
            shown = (await response.text()).splitlines()
        assert 'pcg_changed_requests_total{warning="hosted-tools-ignored"} 1.0' in shown
        assert 'pcg_overhead_seconds_count{phase="parse"} 1.0' in shown


async def test_cancelling() -> None:
    """What runs stops and says so, for good; what is over stays; a client that waited for its
    answer cannot cancel."""
    gate = asyncio.Event()
    async with opened(Script(before_text={1: gate})) as (served, gpt):
        running = await gpt.responses.create(model=MODEL, input="Hi", background=True)
        async with asyncio.timeout(20):
            while (await gpt.responses.retrieve(running.id)).status != "in_progress":
                pass
        assert (await gpt.responses.cancel(running.id)).status == "cancelled"
        assert (await gpt.responses.retrieve(running.id)).status == "cancelled"
        assert (await gpt.responses.cancel(running.id)).status == "cancelled"
        assert len(served.gateway.in_flight) == 0
        gate.set()
        done = await ended(
            gpt, (await gpt.responses.create(model=MODEL, input="Hi", background=True)).id
        )
        assert (await gpt.responses.cancel(done.id)).output_text == "Hello world"
        plain = await gpt.responses.create(model=MODEL, input="Hi")
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
            await gpt.responses.cancel(plain.id)
        gone = await gpt.responses.create(model=MODEL, input="Hi", background=True)
        await gpt.responses.delete(gone.id)
        for ask in (gpt.responses.retrieve, gpt.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await ask(gone.id)


@pytest.mark.parametrize("error_after", [None, 1])
async def test_what_fails_says_why(error_after: int | None) -> None:
    """Before its first event or after: the response is there, failed, and so are its events."""
    async with opened(Script(error=Overloaded("full"), error_after=error_after)) as (served, gpt):
        response = await gpt.responses.create(model=MODEL, input="Hi", background=True)
        failed = await ended(gpt, response.id)
        assert (failed.status, failed.error.code, failed.error.message) == (
            "failed",
            "server_error",
            "full",
        )
        seen: list[Any] = []
        with pytest.raises(openai.APIError, match="full"):
            await read_into(seen, await gpt.responses.retrieve(response.id, stream=True))
        assert seen[-1].type == "response.failed"
        assert [record.error for record in served.records if record.route == "background"] == [
            "Overloaded"
        ]


async def read_into(seen: list[Any], stream: Any) -> None:
    async for event in stream:
        seen.append(event)


async def test_what_is_refused_at_once() -> None:
    """A body, model or conversation that is wrong is told to the client that waits; so is a wish to
    keep nothing."""
    async with opened() as (_, gpt):
        with pytest.raises(openai.BadRequestError) as told:
            await gpt.responses.create(model=MODEL, input="Hi", background=True, store=False)
        assert told.value.param == "background"
        with pytest.raises(openai.NotFoundError):
            await gpt.responses.create(model="llama", input="Hi", background=True)
        with pytest.raises(openai.BadRequestError):
            await gpt.responses.create(
                model=MODEL, input="Hi", background=True, previous_response_id="resp_none"
            )
        done = await gpt.responses.create(model=MODEL, input="Hi", background=True)
        await ended(gpt, done.id)
        with pytest.raises(openai.BadRequestError, match="starting_after"):
            await gpt.responses.retrieve(done.id, stream=True, extra_query={"starting_after": "x"})


async def test_tenants_do_not_see_each_others() -> None:
    """Running or over: not to read, to follow, to cancel or to delete."""
    gate = asyncio.Event()
    policy = "tenants: [{name: a, keys: [k]}, {name: b, keys: [kb]}]"
    async with opened(Script(before_started=gate), policy) as (served, gpt):
        mine = (await gpt.responses.create(model=MODEL, input="Hi", background=True)).id
        async with openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="kb", max_retries=0
        ) as other:
            for _ in range(2):
                for reach in (
                    other.responses.retrieve,
                    other.responses.cancel,
                    other.responses.delete,
                ):
                    with pytest.raises(openai.NotFoundError):
                        await reach(mine)
                with pytest.raises(openai.NotFoundError):
                    await other.responses.retrieve(mine, stream=True)
                gate.set()
                await ended(gpt, mine)


async def test_a_failure_of_the_prompt() -> None:
    """What only the engine finds out is the response's error, not the client's that asked for
    it."""
    async with opened(Script(error=ContextExceeded(9000, 8192))) as (_, gpt):
        failed = await ended(
            gpt, (await gpt.responses.create(model=MODEL, input="Hi", background=True)).id
        )
        assert failed.error.code == "invalid_prompt"


async def test_events_are_kept_for_a_while_and_within_bounds() -> None:
    """Of answers that are over the oldest go first; nothing is taken in when nobody works."""
    clock = FakeClock()
    idle = Background(clock)
    with pytest.raises(Overloaded):
        idle.begin("t", "a", lambda *, begun: b"", say)
    jobs = Background(clock, max_kept_nbytes=20)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(jobs.run())
        await asyncio.sleep(0)
        for name in ("a", "b", "c"):
            jobs.begin("t", name, lambda *, begun: b"", say)
        async with asyncio.timeout(10):
            while any(jobs.running("t", name) for name in ("a", "b", "c")):
                await asyncio.sleep(0)
        assert [jobs.log("t", name) is not None for name in ("a", "b", "c")] == [False, True, True]
        jobs.forget("t", "b")
        assert jobs.log("t", "b") is None
        clock.advance(KEPT_S + 1)
        assert jobs.log("t", "c") is None
        running.cancel()


async def say(log: EventLog) -> None:
    """One event of nine bytes, and a comment that is none."""
    await log.write(b": comment\n\ndata: 123\n\n")
    assert log.events == [b"data: 123\n\n"]


async def test_a_bug_in_one_job_ends_no_other() -> None:
    """It is logged, its log ends, and the next job is done."""
    jobs = Background(FakeClock())
    async with asyncio.TaskGroup() as group:
        running = group.create_task(jobs.run())
        await asyncio.sleep(0)
        broken = jobs.begin("t", "broken", lambda *, begun: b"", breaks)
        assert [event async for event in broken.follow(0, None)] == []
        log = jobs.begin("t", "whole", lambda *, begun: b"", say)
        assert [event async for event in log.follow(0, 0.001)][-1] == b"data: 123\n\n"
        running.cancel()


async def breaks(log: EventLog) -> None:
    raise RuntimeError("x")
