"""Streams over a real socket: when headers leave, what fills silence, errors on the way,
and clients that leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator

import anthropic
import openai
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from engine.messages import Finished, Started, TextDelta
from engine.types import CacheReport
from gateway.app import build_app, listening
from gateway.backends.base import Event
from gateway.bill.record import Record
from gateway.errors import Overloaded
from gateway.request import Request
from tests.fakes.backend import Script, ScriptedBackend
from tests.fakes.clock import FakeClock
from tests.gateway.serving import (
    ANTHROPIC,
    OPENAI,
    Served,
    anthropic_body,
    make_policy,
    openai_body,
    serving,
)

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
ROUTES = [(MESSAGES, anthropic_body(), ANTHROPIC), (CHAT, openai_body(), OPENAI)]
HURRIED = "server: {sse: {early_headers_after: 10ms, keepalive: 10ms}}"
PATIENT = "server: {sse: {early_headers_after: none, keepalive: none}}"


async def settled(served: Served, num: int = 1) -> None:
    """Returns when `num` requests have been recorded."""
    async with asyncio.timeout(20):
        while len(served.records) < num:
            await asyncio.sleep(0)


@pytest.mark.parametrize(("path", "body", "headers"), ROUTES)
async def test_headers_wait_for_the_bill(
    path: str, body: dict[str, object], headers: dict[str, str]
) -> None:
    """Within the deadline the headers of a stream hold the exact counts, before the first text
    exists."""
    gate = asyncio.Event()
    async with (
        serving(ScriptedBackend(Script(before_text={0: gate})), PATIENT) as served,
        served.http.post(path, json=body | {"stream": True}, headers=headers) as response,
    ):
        assert response.headers["pcg-uncached-tokens"] == "10"
        assert response.headers["Cache-Control"] == "no-store"
        assert "Content-Length" not in response.headers
        gate.set()
        assert b"Hello" in await response.read()


@pytest.mark.parametrize(("path", "body", "headers"), ROUTES)
async def test_late_starts_send_headers_without_counts(
    path: str, body: dict[str, object], headers: dict[str, str]
) -> None:
    """Past the deadline headers leave without counts and keepalives begin; the counts are exact in
    the stream."""
    gate = asyncio.Event()
    async with serving(ScriptedBackend(Script(before_started=gate)), HURRIED) as served:
        async with served.http.post(
            path, json=body | {"stream": True}, headers=headers
        ) as response:
            assert response.status == 200
            assert "pcg-uncached-tokens" not in response.headers
            assert "Cache-Status" not in response.headers
            first = await response.content.readuntil(b"\n\n")
            second = await response.content.readuntil(b"\n\n")
            assert b"Hello" not in first + second
            gate.set()
            text = (await response.read()).decode()
        assert "Hello" in text
        if path == MESSAGES:
            start = next(
                line
                for line in text.splitlines()
                if line.startswith("data:") and "message_start" in line
            )
            assert json.loads(start[5:])["message"]["usage"]["input_tokens"] == 10


async def test_silence_between_texts_is_filled() -> None:
    """Anthropic's clients get pings, OpenAI's get comments, and both SDKs read on."""
    gate = asyncio.Event()
    async with (
        serving(ScriptedBackend(Script(before_text={1: gate})), HURRIED) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as claude,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        async with served.http.post(
            MESSAGES, json=anthropic_body(stream=True), headers=ANTHROPIC
        ) as response:
            while b"event: ping" not in await response.content.readuntil(b"\n\n"):
                pass
        async with served.http.post(
            CHAT, json=openai_body(stream=True), headers=OPENAI
        ) as response:
            while not (await response.content.readuntil(b"\n\n")).startswith(b":"):
                pass
        gate.set()
        async with claude.messages.stream(
            model="claude-sonnet-5", max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
        ) as stream:
            assert await stream.get_final_text() == "Hello world"
        chunks = await gpt.chat.completions.create(
            model="gpt-5.6", stream=True, messages=[{"role": "user", "content": "Hi"}]
        )
        assert (
            "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])
            == "Hello world"
        )


async def test_thoughts_that_are_not_shown_do_not_keep_the_client_waiting_in_silence() -> None:
    """A model that thinks for long says something all the time, and where the client is to see none
    of it it gets pings."""
    heard = asyncio.Event()

    class Thinker(ScriptedBackend):
        async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
            yield Started(request.id, CacheReport(num_prompt=10), 0.0, 0.0, 0.0)
            while not heard.is_set():
                yield TextDelta(request.id, "hm", (1,), thinking=True)
                await asyncio.sleep(0)
            yield TextDelta(request.id, "Yes", (2,))
            yield Finished(request.id, "stop", 2, None, 0.0, 0.0)

    thinking = {"type": "adaptive", "display": "omitted"}
    async with (
        serving(Thinker(), "server: {sse: {keepalive: 50ms}}") as served,
        asyncio.timeout(20),
    ):
        body = anthropic_body(stream=True, max_tokens=5, thinking=thinking)
        async with served.http.post(MESSAGES, json=body, headers=ANTHROPIC) as response:
            assert response.status == 200
            for _ in range(2):
                while b"event: ping" not in await response.content.readuntil(b"\n\n"):
                    pass
            heard.set()
            assert b"Yes" in await response.read()


@pytest.mark.parametrize(
    "error", [Overloaded("the engine restarted; please try again"), ValueError("quotes the prompt")]
)
async def test_errors_on_the_way_are_events(error: Exception) -> None:
    """After the headers an error is the format's own error event: both SDKs raise, and nothing is
    billed."""
    async with (
        serving(ScriptedBackend(Script(error=error, error_after=1))) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as claude,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        with pytest.raises(anthropic.APIStatusError) as told:
            async with claude.messages.stream(
                model="claude-sonnet-5", max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
            ) as stream:
                await stream.get_final_text()
        assert "quotes" not in str(told.value)
        chunks = await gpt.chat.completions.create(
            model="gpt-5.6", stream=True, messages=[{"role": "user", "content": "Hi"}]
        )
        with pytest.raises(openai.APIError):
            _ = [chunk async for chunk in chunks]
        assert [(r.outcome, r.status, r.bill) for r in served.records] == [
            ("failed", 200, None)
        ] * 2


async def leave(
    served: Served, path: str, body: dict[str, object], until: bytes, backend: ScriptedBackend
) -> None:
    """Send a request, read until `until` has come and the backend is held at a gate, then close the
    connection."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(served.listener.host, served.listener.port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        f"{len(data)}\r\nanthropic-version: "
        "2023-06-01\r\n\r\n"
    )
    writer.write(head.encode() + data)
    if until:
        await reader.readuntil(until)
    await backend.held.wait()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(("path", "body", "headers"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_start_is_free(
    path: str, body: dict[str, object], headers: dict[str, str], stream: bool
) -> None:
    """A client gone before `Started` ends the work and owes nothing."""
    backend = ScriptedBackend(Script(before_started=asyncio.Event()))
    async with serving(backend, PATIENT) as served:
        await leave(served, path, body | {"stream": stream}, b"", backend)
        async with asyncio.timeout(20):
            await backend.aborted.wait()
        await settled(served)
        (record,) = served.records
        assert (record.outcome, record.status, record.bill) == ("cancelled", 499, None)
        assert (backend.num_open, len(served.gateway.in_flight)) == (0, 0)
        assert served.totals == {}


@pytest.mark.parametrize(("path", "body", "headers"), ROUTES)
async def test_leaving_a_stream_costs_what_was_used(
    path: str, body: dict[str, object], headers: dict[str, str]
) -> None:
    """A client gone after the first text owes the prompt and that one token."""
    backend = ScriptedBackend(Script(before_text={1: asyncio.Event()}))
    async with serving(backend, PATIENT) as served:
        await leave(served, path, body | {"stream": True}, b"Hello", backend)
        async with asyncio.timeout(20):
            await backend.aborted.wait()
        await settled(served)
        (record,) = served.records
        assert record.outcome == "cancelled"
        assert record.bill is not None
        assert (record.bill.usage.num_prompt, record.bill.usage.output) == (10, 1)
        (totals,) = served.totals.values()
        assert totals.cost_usd == record.bill.charge.total > 0


async def test_leaving_a_whole_answer_after_the_start() -> None:
    """Also without streaming the disconnect is seen at once: prompt and tokens so far are owed."""
    backend = ScriptedBackend(Script(before_text={1: asyncio.Event()}))
    async with serving(backend) as served:
        await leave(served, MESSAGES, anthropic_body(), b"", backend)
        async with asyncio.timeout(20):
            await backend.aborted.wait()
        await settled(served)
        (record,) = served.records
        assert record.bill is not None
        assert record.bill.usage.output == 1


async def test_a_prewarm_request_is_answered_empty() -> None:
    """`max_tokens: 0` bills the prompt and no output, whatever the engine had to sample."""
    async with serving(ScriptedBackend(Script(texts=("x",)))) as served:
        async with served.http.post(
            MESSAGES, json=anthropic_body(max_tokens=0), headers=ANTHROPIC
        ) as response:
            content = await response.json()
        assert (content["content"], content["stop_reason"], content["usage"]["output_tokens"]) == (
            [],
            "max_tokens",
            0,
        )
        assert content["usage"]["input_tokens"] == 10


async def test_the_clock_is_the_gateways() -> None:
    """The request's TTL clock starts when it arrives, on the injected clock."""
    backend = ScriptedBackend()
    async with serving(backend) as served:
        served.clock.advance(1000)
        async with served.http.post(CHAT, json=openai_body(), headers=OPENAI) as response:
            assert response.status == 200
        assert backend.requests[0].started_at_s == served.clock()


@pytest.mark.parametrize(("max_tokens", "warned"), [(8182, False), (8183, True), (None, False)])
async def test_clamped_answers_are_announced(max_tokens: int | None, warned: bool) -> None:
    """An answer allowed to be longer than the free context is said to be clamped; one without a
    limit is not."""
    body = openai_body() if max_tokens is None else openai_body(max_completion_tokens=max_tokens)
    async with (
        serving(ScriptedBackend()) as served,
        served.http.post(CHAT, json=body, headers=OPENAI) as response,
    ):
        assert ("max_tokens-clamped" in response.headers.get("pcg-warning", "")) is warned


async def test_repeated_header_fields_are_one_list() -> None:
    """A directive in a second `Cache-Control` field counts like one in the first."""
    backend = ScriptedBackend()
    headers = [*OPENAI.items(), ("Cache-Control", "max-age=1"), ("Cache-Control", "no-store")]
    async with (
        serving(backend) as served,
        served.http.post(CHAT, json=openai_body(), headers=headers) as response,
    ):
        assert response.status == 200
        assert (backend.requests[0].plan.read, backend.requests[0].plan.store) == (False, False)


async def test_leaving_at_the_very_end_is_no_error() -> None:
    """Many clients close the connection at the last event, and do not wait for the end of the
    stream: nothing is logged."""
    connections: list[asyncio.Transport] = []

    async def remember(http: web.Request, response: web.StreamResponse) -> None:
        assert isinstance(http.transport, asyncio.Transport)
        connections.append(http.transport)

    def leave_now(record: Record) -> None:
        connections[-1].abort()

    policy = make_policy()
    gateway = build_app(
        policy, {policy.models[0].name: ScriptedBackend()}, FakeClock(), on_record=leave_now
    )
    gateway.app.on_response_prepare.append(remember)
    with capture_logs() as told:
        async with listening(gateway) as listener:
            reader, writer = await asyncio.open_connection(listener.host, listener.port)
            data = json.dumps(openai_body(stream=True)).encode()
            writer.write(
                f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Length: {len(data)}\r\n\r\n".encode()
                + data
            )
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
    assert len(connections) == 1
    assert told == []
