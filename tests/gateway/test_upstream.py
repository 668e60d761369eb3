"""Upstreams over real sockets: what goes there and comes back, what goes wrong on the way,
and who may use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import orjson
import pytest
import structlog

from gateway.app import serve
from gateway.operate.cache_admin import operator_key
from gateway.operate.logs import log_record
from tests.fakes.backend import ScriptedBackend
from tests.fakes.clock import FakeClock
from tests.fakes.upstream import FakeUpstream, Say, say_events, say_json
from tests.gateway.proxying import CLAUDE, GPT, Answer, proxying
from tests.gateway.serving import (
    ANTHROPIC,
    Served,
    anthropic_body,
    make_policy,
    openai_body,
    serving,
)

MESSAGES, CHAT, RESPONSES = "/v1/messages", "/v1/chat/completions", "/v1/responses"
ROUTES = [(MESSAGES, CLAUDE), (CHAT, GPT), (RESPONSES, GPT), ("/v1/completions", GPT)]
QUESTION: Any = [{"role": "user", "content": "Hi"}]
CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.6",'
    b'"choices":[{"index":0,"delta":{}}]}\n\n'
)
START = (
    b"event: message_start\ndata: "
    b'{"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
    b'"model":"claude-sonnet-5","content":[],"stop_reason":null,"usage":{"input_tokens":7,"cache_read_input_tokens":90,'
    b'"output_tokens":1}}}\n\n'
)


def asking(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 5, "messages": QUESTION} | more


def error_of(path: str, answer: Answer) -> tuple[str, str]:
    """Type and message, after a look at the shape."""
    if path == MESSAGES:
        assert answer.json["type"] == "error"
        assert answer.json["request_id"].startswith("req_")
    else:
        assert {"message", "type", "param", "code"} <= set(answer.json["error"])
    return answer.json["error"]["type"], answer.json["error"]["message"]


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


# What goes wrong before the answer ----------------------------------------------------------------


@pytest.mark.parametrize(("path", "model"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_listens(path: str, model: str, stream: bool) -> None:
    """A refused connection is a 502 in the caller's format, which names the upstream and not its
    address."""
    port = free_port()
    api = "anthropic" if path == MESSAGES else "openai"
    policy = (
        f"models: []\nbackends: [{{name: gone, api: {api}, base_url: 'http://127.0.0.1:{port}'}}]"
    )
    async with serving(ScriptedBackend(), policy) as served:
        async with served.http.post(path, json=asking(model, stream=stream)) as response:
            answer = Answer(response.status, await response.read(), response.headers)
        assert answer.status == 502
        kind, message = error_of(path, answer)
        assert kind == ("api_error" if path == MESSAGES else "server_error")
        assert "gone" in message
        assert str(port) not in message
        record = served.records[-1]
        assert (record.error, record.bill, record.notes, record.upstream) == (
            "UpstreamFailed",
            None,
            (),
            "gone",
        )


@pytest.mark.parametrize(("path", "model"), ROUTES)
async def test_a_connection_that_breaks_before_the_answer(path: str, model: str) -> None:
    """A 502, and the request was sent once: whether it may be repeated is the client's to say."""
    async with proxying(Say(cut=True), Say(cut=True)) as passed:
        answer = await passed.post(path, asking(model))
        assert (answer.status, len(passed.anthropic.got) + len(passed.openai.got)) == (502, 1)
        assert "broke off the answer" in error_of(path, answer)[1]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_does_not_come(stream: bool) -> None:
    """Past `timeouts.answer` a 504; the upstream's connection is closed."""
    never = asyncio.Event()
    async with proxying(Say(before_head=never), claude=", timeouts: {answer: 200ms}") as passed:
        answer = await passed.post(MESSAGES, asking(CLAUDE, stream=stream))
        assert (answer.status, error_of(MESSAGES, answer)[0]) == (504, "timeout_error")
        if (
            passed.anthropic.held.is_set()
        ):  # on a busy machine the time may be over before the request has arrived
            async with asyncio.timeout(20):
                await passed.anthropic.left.wait()


async def test_an_answer_that_breaks_off() -> None:
    """A whole answer of which the end is missing is a 502: half of a JSON text helps nobody."""
    async with proxying(Say((b'{"usage": {"input_', b"tokens"), cut=True)) as passed:
        answer = await passed.post(MESSAGES, asking(CLAUDE))
        assert (answer.status, error_of(MESSAGES, answer)[1]) == (
            502,
            "upstream claudes broke off the rest of an answer",
        )


# What goes wrong in a stream ----------------------------------------------------------------------


async def test_a_stream_that_breaks_off() -> None:
    """The error event of the caller's format is the last one, and both SDKs raise it."""
    claude = say_events(START, b'event: content_block_delta\ndata: {"type":"content_', cut=True)
    async with (
        proxying(claude, say_events(CHUNK, b"data: {", cut=True)) as passed,
        anthropic.AsyncAnthropic(base_url=passed.served.url, api_key="k", max_retries=0) as first,
        openai.AsyncOpenAI(
            base_url=f"{passed.served.url}/v1", api_key="k", max_retries=0
        ) as second,
    ):
        with pytest.raises(anthropic.APIStatusError, match="broke off"):
            async with first.messages.stream(
                model=CLAUDE, max_tokens=5, messages=QUESTION
            ) as stream:
                await stream.get_final_text()
        chunks = await second.chat.completions.create(model=GPT, stream=True, messages=QUESTION)
        with pytest.raises(openai.APIError, match="broke off"):
            _ = [chunk async for chunk in chunks]
        events = await second.responses.create(model=GPT, stream=True, input="Hi")
        with pytest.raises(openai.APIError, match="broke off"):
            _ = [event async for event in events]
        records = passed.served.records
        assert [(r.outcome, r.status, r.error) for r in records] == [
            ("failed", 200, "UpstreamFailed")
        ] * 3


async def test_half_an_event_is_never_sent() -> None:
    """What came before the break has passed and is billed; of the event it cut in two the client
    sees nothing."""
    gate = asyncio.Event()
    say = say_events(
        START,
        b'event: content_block_delta\ndata: {"type":"content_',
        before_piece={1: gate},
        cut=True,
    )
    async with proxying(say) as passed:
        async with passed.served.http.post(MESSAGES, json=asking(CLAUDE, stream=True)) as response:
            assert await response.content.readexactly(len(START)) == START
            gate.set()
            rest = await response.read()
        assert rest.startswith(b'event: error\ndata: {"type":"error"')
        bill = passed.served.records[-1].bill
        assert bill is not None
        assert bill.usage.cache_read == 90


USED = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.6","choices":[],'
    b'"usage":{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,'
    b'"prompt_tokens_details":{"cached_tokens":90}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
DELTA = (
    b"event: message_delta\ndata: "
    b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}\n\n'
)
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
COMPLETED = (
    b'data: {"type":"response.completed","response":{"usage":{"input_tokens":100,'
    b'"output_tokens":5,"input_tokens_details":{"cached_tokens":90}}}}\n\n'
)


@pytest.mark.parametrize("head", [b"Transfer-Encoding: chunked", b"Content-Length: 9999"])
@pytest.mark.parametrize(
    ("path", "sent", "received", "whole"),
    [
        (CHAT, CHUNK + USED + DONE, CHUNK + USED + DONE, True),
        (CHAT, CHUNK + USED + DONE[:-1], CHUNK + USED + DONE + b"\n", True),
        (CHAT, CHUNK + USED + DONE[:-2], CHUNK + USED + DONE, True),
        (CHAT, CHUNK + USED + DONE + b": a com", CHUNK + USED + DONE, True),
        (CHAT, CHUNK + USED, CHUNK + USED, False),
        (CHAT, CHUNK + USED[:-2], CHUNK + USED, False),
        (CHAT, CHUNK + USED + DONE[:-4], CHUNK + USED, False),
        (RESPONSES, COMPLETED, COMPLETED, True),
        (MESSAGES, START + DELTA + STOP, START + DELTA + STOP, True),
        (MESSAGES, START + DELTA + STOP[:-2], START + DELTA + STOP, True),
        (MESSAGES, START + DELTA, START + DELTA, False),
        (MESSAGES, START + DELTA + STOP[:-3], START + DELTA, False),
    ],
)
async def test_a_break_right_behind_the_data(
    path: str, sent: bytes, received: bytes, whole: bool, head: bytes
) -> None:
    """What came in one piece with the end of the connection is passed on and billed. A stream whose
    last event has come is over and no failure; any other one ends with an error."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        body = b"%x\r\n%b\r\n" % (len(sent), sent) if b"chunked" in head else sent
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%b\r\n\r\n%b" % (head, body)
        )

    model, api = (CLAUDE, "anthropic") if path == MESSAGES else (GPT, "openai")
    async with (
        raw_upstream(answer, api=api) as served,
        served.http.post(path, json=asking(model, stream=True)) as response,
    ):
        body = await response.read()
        assert body.startswith(received)
        assert (body == received) == whole
        assert (b"broke off" in body) != whole
        record = served.records[-1]
        assert record.outcome == ("answered" if whole else "failed")
        assert record.bill is not None
        assert (record.bill.usage.cache_read, record.bill.usage.output) == (90, 5)


async def test_a_whole_answer_whose_connection_breaks_behind_it() -> None:
    """A JSON text that is complete is an answer, though the last chunk never came."""
    body = orjson.dumps({"usage": {"prompt_tokens": 100, "completion_tokens": 5}})

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: "
            b"chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body)
        )

    async with raw_upstream(answer) as served, served.http.post(CHAT, json=asking(GPT)) as response:
        assert (response.status, await response.read()) == (200, body)
        record = served.records[-1]
        assert record.bill is not None
        assert (record.outcome, record.bill.usage.input) == ("answered", 100)


async def test_a_stream_that_is_over_may_fall_silent() -> None:
    """Behind its last event no error follows, though the upstream never closes."""
    gate = asyncio.Event()
    say = say_events(START, STOP, START, before_piece={2: gate})
    async with proxying(say, claude=", timeouts: {silence: 300ms}") as passed:
        answer = await passed.post(MESSAGES, asking(CLAUDE, stream=True))
        assert answer.body == START + STOP
        assert passed.served.records[-1].outcome == "answered"


async def test_the_last_event_may_lack_its_end() -> None:
    """Usage is read from it as well where a stream ends properly."""
    async with proxying(openai=say_events(CHUNK, USED[:-2])) as passed:
        assert (await passed.post(CHAT, asking(GPT, stream=True))).body == CHUNK + USED[:-2]
        bill = passed.served.records[-1].bill
        assert bill is not None
        assert bill.usage.cache_read == 90


async def test_a_stream_that_falls_silent() -> None:
    """Past `timeouts.silence` between two pieces the stream ends with a timeout error."""
    gate = asyncio.Event()
    say = say_events(START, START, before_piece={1: gate})
    async with proxying(say, claude=", timeouts: {silence: 1s}") as passed:
        answer = await passed.post(MESSAGES, asking(CLAUDE, stream=True))
        assert answer.body.startswith(START)
        assert b'"timeout_error"' in answer.body.removeprefix(START)


async def test_an_error_in_the_stream_is_an_error_in_the_record() -> None:
    """The upstream's own error event passes as it is, and the request counts as failed."""
    error = (
        b"event: error\ndata: "
        b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'
    )
    async with proxying(say_events(START, error)) as passed:
        assert (await passed.post(MESSAGES, asking(CLAUDE, stream=True))).body == START + error
        assert (passed.served.records[-1].outcome, passed.served.records[-1].error) == (
            "failed",
            "UpstreamRefused",
        )


async def test_a_client_that_leaves_a_waiting_upstream() -> None:
    """Before any answer, too, the upstream's connection closes as soon as the client's does."""
    never = asyncio.Event()
    async with proxying(Say(before_head=never)) as passed:
        data = orjson.dumps(asking(CLAUDE))
        _, writer = await asyncio.open_connection(
            passed.served.listener.host, passed.served.listener.port
        )
        writer.write(
            f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        await passed.anthropic.held.wait()
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(20):
            await passed.anthropic.left.wait()
            while not passed.served.records:
                await asyncio.sleep(0)
        assert (passed.served.records[-1].outcome, passed.served.records[-1].status) == (
            "cancelled",
            499,
        )


# What goes there ----------------------------------------------------------------------------------


async def test_what_headers_an_upstream_gets() -> None:
    """The provider's own fields and the client's name pass; what belongs to the connection, or is
    meant for us, does not."""
    sent = {
        "anthropic-version": "2026-10-21",
        "anthropic-beta": "a-1,b-2",
        "x-stainless-lang": "python",
        "user-agent": "Anthropic/Python 2.14.0",
        "x-api-key": "the client's",
        "authorization": "Bearer the client's",
        "cookie": "a=b",
        "connection": "keep-alive, x-secret-hop",
        "x-secret-hop": "1",
        "te": "trailers",
        "x-forwarded-for": "10.0.0.1",
        "true-client-ip": "10.0.0.1",
        "x-client-ip": "10.0.0.1",
        "cf-connecting-ip": "10.0.0.1",
        "cf-access-jwt-assertion": "somebody",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
        "baggage": "user=somebody",
        "x-b3-traceid": "1",
        "x-amzn-trace-id": "Root=1",
        "accept-encoding": "gzip",
    }
    async with proxying(say_json({}), claude=", api_key: up-key") as passed:
        async with passed.served.http.post(
            f"{MESSAGES}?beta=true", data=orjson.dumps(asking(CLAUDE)), headers=sent
        ) as response:
            await response.read()
        (got,) = passed.anthropic.got
        expected = {
            name: sent[name]
            for name in (
                *("anthropic-version", "anthropic-beta", "x-stainless-lang", "user-agent"),
                *("traceparent", "tracestate"),
            )
        }
        length = str(len(got.body))
        more = {
            "x-api-key": "up-key",
            "accept-encoding": "identity",
            "content-length": length,
            "accept": "*/*",
        }
        host = passed.anthropic.url.removeprefix("http://")
        assert got.headers == expected | more | {
            "host": host,
            "content-type": "application/octet-stream",
        }
        assert got.target == f"{MESSAGES}?beta=true"


@pytest.mark.parametrize(
    ("claude", "gpt", "expected"),
    [
        (", api_key: k1", ", api_key: k2", [(None, "k1"), ("Bearer k2", None)]),
        (
            ", api_key: k1, key_header: bearer",
            ", api_key: k2, key_header: x-api-key",
            [("Bearer k1", None), (None, "k2")],
        ),
        ("", "", [(None, None), (None, None)]),
        (
            ", pass_client_key: true",
            ", pass_client_key: true",
            [("Bearer mine", None), ("Bearer mine", None)],
        ),
    ],
    ids=["auto", "turned round", "none", "the client's"],
)
async def test_which_key_an_upstream_gets(
    claude: str, gpt: str, expected: list[tuple[str | None, str | None]]
) -> None:
    """The policy's, in the header its API reads; the client's only where the policy says so."""
    async with proxying(say_json({}), say_json({}), claude=claude, gpt=gpt) as passed:
        for path, model in ((MESSAGES, CLAUDE), (CHAT, GPT)):
            await passed.post(path, asking(model), authorization="Bearer mine")
        seen = [got.headers for got in (*passed.anthropic.got, *passed.openai.got)]
        assert [
            (headers.get("authorization"), headers.get("x-api-key")) for headers in seen
        ] == expected


async def test_a_renamed_model_changes_only_its_bytes() -> None:
    """The requested id makes room for the upstream's; prices follow that one; everything else
    arrives as it was sent."""
    body = (
        b'{ "a": {"model":"x"}, "model" : "fast" ,"messages":[{"content":"\\u00e9 '
        b'model","role":"user"}]}'
    )
    answer = {
        "usage": {
            "prompt_tokens": 1_000_000,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
    }
    policy = "prices: {models: [{match: 'Big/Model-é', input: 7}]}"
    gpt = ", models: [{match: fast, model: Big/Model-é}]"
    renamed = "models: []\nbackends: [{{name: up, base_url: '{}'{}}}]\n{}"
    async with FakeUpstream(say_json(answer)).listening() as upstream:
        async with serving(ScriptedBackend(), renamed.format(upstream.url, gpt, policy)) as served:
            async with served.http.post(CHAT, data=body) as response:
                assert response.headers["pcg-prompt-cost-usd"] == "7.00000000"
            assert served.records[-1].model == "fast"
        assert upstream.got[0].body == body.replace(b'"fast"', '"Big/Model-é"'.encode())


async def test_a_compressed_body_arrives_decoded() -> None:
    """What the upstream gets is the body itself."""
    body = orjson.dumps(asking(CLAUDE))
    async with proxying(say_json({})) as passed:
        await passed.post(MESSAGES, gzip.compress(body), content_encoding="gzip")
        assert (
            passed.anthropic.got[0].body,
            "content-encoding" in passed.anthropic.got[0].headers,
        ) == (body, False)


async def test_a_large_body_arrives_whole() -> None:
    """Megabytes go in pieces: no warning that they hold up others."""
    body = orjson.dumps(asking(GPT, x_padding="é" * 2_000_000))
    async with proxying(openai=say_json({})) as passed:
        async with passed.served.http.post(CHAT, data=io.BytesIO(body)) as response:
            assert response.status == 200
        assert (
            passed.openai.got[0].body == body,
            passed.openai.got[0].headers["content-length"],
        ) == (True, str(len(body)))


# What comes back ----------------------------------------------------------------------------------


async def test_what_headers_a_client_gets() -> None:
    """Request ids, limits and hints pass; cookies, the upstream's own bills and what belongs to the
    connection do not."""
    told = {
        "Content-Type": "application/json",
        "request-id": "req_up",
        "retry-after": "3",
        "anthropic-ratelimit-tokens-remaining": "9",
        "Set-Cookie": "a=b",
        "Strict-Transport-Security": "max-age=1",
        "pcg-cost-usd": "99",
        "Cache-Status": "cdn; fwd=miss",
        "Server-Timing": "gpu;dur=1",
    }
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 90,
        "cache_creation_input_tokens": 0,
        "output_tokens": 2,
    }
    async with proxying(Say((orjson.dumps({"usage": usage}),), headers=told)) as passed:
        headers = (await passed.post(MESSAGES, asking(CLAUDE), x_request_id="mine-1")).headers
        assert headers["pcg-request-id"] == "mine-1"
        assert (headers["request-id"], headers["retry-after"]) == ("req_up", "3")
        assert headers["anthropic-ratelimit-tokens-remaining"] == "9"
        assert headers["Cache-Status"] == (
            "cdn; fwd=miss, claudes; fwd=partial; detail=from-usage; pcg-read=90; pcg-write=0; "
            "pcg-total=100"
        )
        assert headers["Server-Timing"].startswith("gpu;dur=1, read;dur=")
        assert headers["Cache-Control"] == "no-store"
        assert headers["pcg-cache"] == "hit"
        assert headers["pcg-cost-usd"] == "0.00005800"
        assert not {"Set-Cookie", "Strict-Transport-Security"} & set(headers)
        assert passed.served.records[-1].upstream_id == "req_up"


async def test_headers_that_are_no_text_do_not_pass() -> None:
    """Bytes that cannot be written again are left out, in both directions, and everything else
    passes."""
    told = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nx-ratelimit-odd: \xff\r\n"
        b"x-ratelimit-fine: "
        b"\xc3\xa9\r\nContent-Length: 2\r\n\r\n{}"
    )
    got = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.set_result(await reader.readuntil(b"\r\n\r\n"))
        writer.write(told)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as upstream:
        port = upstream.sockets[0].getsockname()[1]
        async with serving(
            ScriptedBackend(), f"models: []\nbackends: [{{base_url: 'http://127.0.0.1:{port}'}}]"
        ) as served:
            reader, writer = await asyncio.open_connection(
                served.listener.host, served.listener.port
            )
            data = orjson.dumps(asking(GPT))
            head = (
                f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                f"{len(data)}\r\nConnection: close\r\n"
            )
            writer.write(head.encode() + b"x-odd: \xff\r\nx-fine: \xc3\xa9\r\n\r\n" + data)
            reply = await reader.read()
            writer.close()
        assert reply.startswith(b"HTTP/1.1 200")
        for text in (reply, await got):
            assert b"-fine: \xc3\xa9" in text
            assert b"-odd" not in text


@asynccontextmanager
async def raw_upstream(
    answer: Callable[[asyncio.StreamWriter], Awaitable[None]],
    policy: str = "",
    api: str = "openai",
) -> AsyncIterator[Served]:
    """A gateway in front of a server that reads a request's head and writes whatever `answer`
    writes."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await answer(writer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve_one, "127.0.0.1", 0) as upstream:
        url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
        async with serving(
            ScriptedBackend(),
            f"models: []\nbackends: [{{name: up, api: {api}, base_url: '{url}'}}]\n{policy}",
        ) as served:
            yield served


@pytest.mark.parametrize("odd", [b"\x01", b"\x1b[2J", b"\x7f"])
async def test_a_header_with_control_characters_costs_no_answer(odd: bytes) -> None:
    """It is left out, of the log as well, and the answer passes."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nx-request-id: a%sb\r\nretry-after: a\tb\r\n"
            b"Content-Length: 2\r\n\r\n{}" % odd
        )

    async with raw_upstream(answer) as served, served.http.post(CHAT, json=asking(GPT)) as response:
        assert (await response.read(), response.headers["retry-after"]) == (b"{}", "a\tb")
        assert response.headers["x-request-id"] == response.headers["pcg-request-id"]
        assert served.records[-1].upstream_id is None


async def test_a_change_of_protocol_is_no_answer() -> None:
    """Nobody asked for it, and the client's connection would not be one of HTTP any more."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
        )

    async with raw_upstream(answer) as served, served.http.post(CHAT, json=asking(GPT)) as response:
        assert response.status == 502


@pytest.mark.parametrize(
    "garbage", [b"Traceback (most recent call last):\r\n", b"3\r\n:\n\nTraceback\r\n"]
)
async def test_a_stream_that_goes_on_as_something_else(garbage: bytes) -> None:
    """What is no HTTP any more, in the middle of an answer, ends it at once, though the connection
    stays open there."""
    heard, over = asyncio.Event(), asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "
            b"chunked\r\n\r\n"
        )
        writer.write(b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK))
        await heard.wait()
        writer.write(garbage)
        await over.wait()

    async with (
        asyncio.timeout(20),
        raw_upstream(answer) as served,
        served.http.post(CHAT, json=asking(GPT, stream=True)) as response,
    ):
        assert await response.content.readuntil(b"\n\n") == CHUNK
        heard.set()
        rest = await response.read()
        over.set()
        assert b"broke off the rest of an answer" in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        assert (served.records[-1].outcome, served.records[-1].error) == (
            "failed",
            "UpstreamFailed",
        )


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_encoded_though_nobody_asked_for_it(stream: bool) -> None:
    """Its bytes pass as they are, in one: between those of an encoded stream no keepalive can
    stand."""
    body, kind = gzip.compress(CHUNK), "text/event-stream" if stream else "application/json"
    async with proxying(
        openai=Say((body,), headers={"Content-Type": kind, "Content-Encoding": "gzip"})
    ) as passed:
        answer = await passed.post(CHAT, asking(GPT, stream=stream))
        assert (answer.headers["Content-Encoding"], answer.headers["Content-Length"]) == (
            "gzip",
            str(len(body)),
        )
        assert answer.body == CHUNK  # the client library has decoded it
        assert passed.served.records[-1].notes == ("usage_unknown",)


async def test_what_is_held_back_does_not_keep_the_client_asleep() -> None:
    """Half events and an upstream's heartbeats of one line are not passed on at once: the client
    hears comments meanwhile."""
    heard = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + CHUNK)
        while not heard.is_set():
            writer.write(b":\n")
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"\n" + CHUNK)

    async with (
        asyncio.timeout(20),
        raw_upstream(answer, "server: {sse: {keepalive: 50ms}}") as served,
        served.http.post(CHAT, json=asking(GPT, stream=True)) as response,
    ):
        assert await response.content.readuntil(b"\n\n") == CHUNK
        assert await response.content.readuntil(b"\n\n") == b": keepalive\n\n"
        heard.set()
        assert (await response.read()).endswith(b":\n\n" + CHUNK)


@pytest.mark.parametrize("number", ["1" * 120, "1e300", "-1e300", "9" * 17, "1e400"])
async def test_numbers_beyond_counting_are_no_usage(number: str) -> None:
    """The answer passes, and nothing is known of what it cost."""
    body = f'{{"usage":{{"prompt_tokens":{number},"completion_tokens":1}}}}'.encode()
    async with proxying(openai=Say((body,))) as passed:
        answer = await passed.post(CHAT, asking(GPT))
        assert (answer.status, answer.body) == (200, body)
        assert (passed.served.records[-1].bill, passed.served.records[-1].notes) == (
            None,
            ("usage_unknown",),
        )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "deep", [b'{"a":%b,"usage":{"prompt_tokens":5}}', b'{"usage":{"prompt_tokens":5,"a":%b}}']
)
@pytest.mark.parametrize("depth", [950, 5000])
async def test_an_answer_too_deep_to_be_read(stream: bool, deep: bytes, depth: int) -> None:
    """Nested beyond any reader it passes all the same, whether its usage could still be read or
    not."""
    deep %= b'{"a":' * depth + b"1" + b"}" * depth
    say = say_events(b"data: " + deep + b"\n\n", CHUNK) if stream else Say((deep,))
    async with proxying(openai=say) as passed:
        answer = await passed.post(CHAT, asking(GPT, stream=stream))
        assert (answer.status, answer.body) == (200, b"".join(say.pieces))
        assert passed.served.records[-1].outcome == "answered"
        assert passed.served.records[-1].notes in (("usage_unknown",), ("cache_usage_unknown",))


async def test_a_gateway_behind_a_gateway() -> None:
    """What one gateway bills for its own engine the next one reads from its answers, whole and
    streamed, in both formats."""
    async with serving(ScriptedBackend()) as behind:
        entries = [
            f"{{name: {api}, api: {api}, base_url: '{behind.url}'}}"
            for api in ("anthropic", "openai")
        ]
        async with (
            serving(ScriptedBackend(), f"models: []\nbackends: [{', '.join(entries)}]") as front,
            anthropic.AsyncAnthropic(base_url=front.url, api_key="k", max_retries=0) as claude,
            openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="k", max_retries=0) as gpt,
        ):
            whole = await claude.messages.with_raw_response.create(
                model=CLAUDE, max_tokens=5, messages=QUESTION
            )
            assert (await whole.parse()).content[0].text == "Hello world"
            async with claude.messages.stream(
                model=CLAUDE, max_tokens=5, messages=QUESTION
            ) as stream:
                assert await stream.get_final_text() == "Hello world"
            told = await gpt.chat.completions.create(model=GPT, messages=QUESTION)
            assert told.choices[0].message.content == "Hello world"
            options: Any = {"include_usage": True}
            chunks = await gpt.chat.completions.create(
                model=GPT, messages=QUESTION, stream=True, stream_options=options
            )
            assert (
                "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])
                == "Hello world"
            )
            response = await gpt.responses.create(model=GPT, input="Hi")
            assert response.output_text == "Hello world"
            async with gpt.responses.stream(model=GPT, input="Hi") as events:
                assert (await events.get_final_response()).output_text == "Hello world"
            assert len(front.records) == len(behind.records) == 6
            for first, second in zip(front.records, behind.records, strict=True):
                assert first.bill is not None
                assert second.bill is not None
                assert (first.bill.usage, first.bill.charge) == (
                    second.bill.usage,
                    second.bill.charge,
                )
                assert first.notes == ()


@pytest.mark.parametrize("status", [400, 403, 404, 413, 429, 500, 503, 529])
async def test_an_upstreams_error_passes(status: int) -> None:
    """Status, body and content type as they are, and the request owes nothing."""
    say = Say(
        (b'{"error" : "in its own words"}',),
        status,
        {"Content-Type": "application/problem+json", "x-should-retry": "true"},
    )
    async with proxying(openai=say) as passed:
        answer = await passed.post(CHAT, asking(GPT))
        assert (answer.status, answer.body) == (status, b'{"error" : "in its own words"}')
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.headers["x-should-retry"] == "true"
        assert "pcg-cache" not in answer.headers
        record = passed.served.records[-1]
        assert (record.status, record.outcome, record.bill, record.notes) == (
            status,
            "failed",
            None,
            (),
        )


@pytest.mark.parametrize(("key", "status"), [(", api_key: up-key", 502), ("", 401)])
async def test_a_refused_key(key: str, status: int) -> None:
    """Our own key's refusal is no word about the client's, and may quote ours; without a key of
    ours it passes."""
    refusal = {
        "type": "error",
        "error": {"type": "authentication_error", "message": "wrong: up-k***"},
    }
    async with proxying(say_json(refusal, 401), claude=key) as passed:
        answer = await passed.post(MESSAGES, asking(CLAUDE))
        assert (answer.status, b"up-k" in answer.body) == (status, status == 401)


async def test_redirects_are_not_followed() -> None:
    """Neither the body nor the key goes anywhere the policy does not name."""
    async with proxying(Say((), 307, {"Location": "http://127.0.0.1:1/"})) as passed:
        answer = await passed.post(MESSAGES, asking(CLAUDE))
        assert (answer.status, len(passed.anthropic.got)) == (502, 1)
        assert "127.0.0.1" not in answer.body.decode()


async def test_a_stream_without_usage_is_noted() -> None:
    """An OpenAI client that does not ask for usage gets none, and the record says that nothing is
    known."""
    async with proxying(openai=say_events(CHUNK, b"data: [DONE]\n\n")) as passed:
        answer = await passed.post(CHAT, asking(GPT, stream=True))
        assert not {
            name
            for name in answer.headers
            if name.lower() in ("cache-status", "pcg-cache", "pcg-cost-usd")
        }
        record = passed.served.records[-1]
        assert (record.outcome, record.bill, record.notes) == ("answered", None, ("usage_unknown",))


# Which requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "model", "name"),
    [(MESSAGES, GPT, "gpts"), (CHAT, CLAUDE, "claudes"), (RESPONSES, CLAUDE, "claudes")],
)
async def test_formats_are_not_translated(path: str, model: str, name: str) -> None:
    """A client of one format and a model behind the other: a 400 that names both, and nothing is
    sent."""
    async with proxying() as passed:
        answer = await passed.post(path, asking(model))
        assert answer.status == 400
        message = error_of(path, answer)[1]
        assert name in message
        assert "not translated" in message
        assert passed.anthropic.got + passed.openai.got == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b'{"model": 5, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}', 400),
        (orjson.dumps(asking("llama-9")), 404),
        (orjson.dumps(asking("claude-" + 300 * "x")), 404),
        (b'{"model":"claude-a","model":"claude-b","max_tokens":5,"messages":[]}', 400),
        (b'{"model":"claude-a","mod\\u0065l":"claude-b","max_tokens":5,"messages":[]}', 400),
    ],
)
async def test_bodies_that_name_no_one_model(body: bytes, status: int) -> None:
    """The provider's own error for what is no request, for an unknown model, and for two models at
    once."""
    async with proxying() as passed:
        answer = await passed.post(MESSAGES, body)
        assert (answer.status, passed.anthropic.got) == (status, [])
        assert error_of(MESSAGES, answer)[1]


async def test_counting_is_passed_and_free() -> None:
    """Token counts are the upstream's own, and no bill is expected of them."""
    async with proxying(say_json({"input_tokens": 42}), say_json({"input_tokens": 43})) as passed:
        answer = await passed.post("/v1/messages/count_tokens", asking(CLAUDE))
        assert answer.json == {"input_tokens": 42}
        assert "pcg-cache" not in answer.headers
        assert (
            await passed.post("/v1/responses/input_tokens", {"model": GPT, "input": "Hi"})
        ).json == {"input_tokens": 43}
        assert [(r.outcome, r.bill, r.notes) for r in passed.served.records] == [
            ("answered", None, ())
        ] * 2
        assert passed.anthropic.got[0].target == "/v1/messages/count_tokens"


async def test_what_only_upstreams_serve() -> None:
    """Embeddings pass and are billed, whichever header has the key; a model without an upstream is
    a 404, like other paths."""
    answer = {
        "data": [{"embedding": [0.1]}],
        "usage": {"prompt_tokens": 1000, "total_tokens": 1000},
    }
    async with proxying(openai=say_json(answer)) as passed:
        got = await passed.post("/v1/embeddings", {"model": "gpt-embed", "input": "Hi"})
        assert (got.json, passed.openai.got[0].target) == (answer, "/v1/embeddings")
        assert got.headers["pcg-prompt-cost-usd"] == "0.00300000"
        for key in ({"x_api_key": "k"}, {"anthropic_version": "2023-06-01"}):
            assert (
                await passed.post("/v1/embeddings", {"model": "gpt-embed"}, **key)
            ).json == answer
        assert (
            await passed.post("/v1/embeddings", {"model": "other", "input": "Hi"})
        ).status == 404
        assert (await passed.post("/v1/files", {"model": GPT})).status == 404
        assert len(passed.openai.got) == 3
    async with (
        serving(ScriptedBackend()) as served,
        served.http.post("/v1/embeddings", json={"model": GPT}) as response,
    ):
        assert response.status == 404


async def test_models_are_listed() -> None:
    """Ids that are written out, to clients of the upstream's format, after our own models; patterns
    are no ids."""
    policy = (
        "models: [{aliases: [mine]}]\nbackends: [{name: up, api: openai, models: [{match: gpt-x}, "
        "{match: 'a-*'}]}, "
        "{name: other, api: anthropic, models: [{match: claude-x}]}]"
    )
    async with (
        serving(ScriptedBackend(), policy) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k") as gpt,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k") as claude,
    ):
        assert [m.id async for m in gpt.models.list()] == ["smollm2-135m-instruct", "mine", "gpt-x"]
        assert [m.id async for m in claude.models.list()] == [
            "smollm2-135m-instruct",
            "mine",
            "claude-x",
        ]
        assert (await gpt.models.retrieve("a-1")).owned_by == "up"
        assert (await claude.models.retrieve("claude-x")).max_input_tokens is None
        with pytest.raises(openai.NotFoundError):
            await gpt.models.retrieve("nothing")


async def test_a_model_of_ours_beside_upstreams() -> None:
    """Own names stay; upstreams come before aliases that are patterns, and after ids that are
    written out."""
    async with FakeUpstream(say_json({})).listening() as upstream:
        backend = ScriptedBackend()
        policy = (
            f"models: [{{aliases: [gpt-mine, 'gpt-*', 'claude-*']}}]\nbackends: "
            f"[{{base_url: "
            f"'{upstream.url}'}}]"
        )
        async with serving(backend, policy) as served:
            for model in ("smollm2-135m-instruct", "gpt-mine", "gpt-other"):
                async with served.http.post(CHAT, json=openai_body(model=model)) as response:
                    assert response.status == 200
            async with served.http.post(
                MESSAGES, json=anthropic_body(), headers=ANTHROPIC
            ) as response:
                assert response.status == 200
        assert [request.model for request in backend.requests] == [
            "smollm2-135m-instruct",
            "gpt-mine",
            "claude-sonnet-5",
        ]
        assert [orjson.loads(got.body)["model"] for got in upstream.got] == ["gpt-other"]


async def test_only_if_cached_is_not_passed_on() -> None:
    """What an upstream would compute is not known before: the request that must not cost anything
    fails."""
    async with proxying() as passed:
        answer = await passed.post(MESSAGES, asking(CLAUDE), cache_control="only-if-cached")
        assert (answer.status, passed.anthropic.got) == (504, [])


async def test_no_more_than_so_many_at_a_time() -> None:
    """Past `max_requests` a request is refused at once as overload; the place is free again
    afterwards."""
    gate = asyncio.Event()
    async with (
        proxying(Say((b"{}",), before_head=gate), claude=", max_requests: 1") as passed,
        asyncio.TaskGroup() as group,
    ):
        first = group.create_task(passed.post(MESSAGES, asking(CLAUDE)))
        await passed.anthropic.held.wait()
        answer = await passed.post(MESSAGES, asking(CLAUDE))
        assert (answer.status, error_of(MESSAGES, answer)[0]) == (529, "overloaded_error")
        gate.set()
        assert (await first).status == 200
        assert (await passed.post(MESSAGES, asking(CLAUDE))).status == 200


async def test_tenants_and_their_keys() -> None:
    """Unknown keys are refused before anything is sent; a tenant's key stays here; the record has
    its name."""
    policy = "tenants: [{name: a, keys: [key-of-a]}]"
    answer = {"usage": {"input_tokens": 10, "cache_read_input_tokens": 0, "output_tokens": 2}}
    async with proxying(say_json(answer), policy=policy) as passed:
        assert (await passed.post(MESSAGES, asking(CLAUDE), x_api_key="wrong")).status == 401
        assert passed.anthropic.got == []
        assert (await passed.post(MESSAGES, asking(CLAUDE), x_api_key="key-of-a")).status == 200
        assert "key-of-a" not in str(passed.anthropic.got[0].headers)
        assert passed.served.totals["a", "claudes"].input == 10


async def test_batches_are_for_our_own_models(tmp_path: Path) -> None:
    """A batched request for an upstream's model is an errored result that says so."""
    policy = "backends: [{name: up, api: anthropic, models: [{match: 'claude-up'}]}]"
    async with serving(ScriptedBackend(), policy, batches=tmp_path) as served:
        request = {"custom_id": "a", "params": asking("claude-up")}
        async with served.http.post(
            f"{MESSAGES}/batches", json={"requests": [request]}, headers=ANTHROPIC
        ) as response:
            name = (await response.json())["id"]
        async with asyncio.timeout(20):
            result = None
            while result is None:
                async with served.http.get(
                    f"{MESSAGES}/batches/{name}/results", headers=ANTHROPIC
                ) as response:
                    result = (
                        json.loads(await response.text())["result"]
                        if response.status == 200
                        else None
                    )
        assert (result["type"], "batches" in str(result)) == ("errored", True)


async def test_nothing_secret_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """One line per request, with the upstream's id for it, and neither keys nor texts nor the
    upstream's address."""
    structlog.reset_defaults()
    body = asking(CLAUDE, messages=[{"role": "user", "content": "a secret question"}])
    answer = {
        "content": [{"type": "text", "text": "a secret answer"}],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    async with proxying(
        say_json(answer, request_id="req_up"), claude=", api_key: up-key"
    ) as passed:
        await passed.post(MESSAGES, body, x_api_key="my-key")
        assert "up-key" not in repr(passed.served.gateway.policy)
        log_record(passed.served.records[-1])
        line = "".join(capsys.readouterr())
        assert "req_up" in line
        assert "cache_usage_unknown" in line
        assert [
            word for word in ("secret", "up-key", "my-key", passed.anthropic.url) if word in line
        ] == []


async def test_the_end_may_come_while_a_wait_runs_out() -> None:
    """Closing an upstream at the very moment a request of its is timed out is no error."""
    loop = asyncio.get_running_loop()
    closed = loop.create_future()
    async with proxying(
        Say(before_head=asyncio.Event()), claude=", timeouts: {answer: 300ms}"
    ) as passed:
        (upstream, _) = passed.served.gateway.upstreams
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(passed.post(MESSAGES, asking(CLAUDE)))
            while not upstream._waits:
                await asyncio.sleep(0)
            (wait,) = upstream._waits
            expires_at_s = wait.when()
            assert expires_at_s is not None
            loop.call_at(expires_at_s + 1e-9, lambda: closed.set_result(upstream.close()))
        assert closed.done()
        assert (await answering).status == 529


# The process --------------------------------------------------------------------------------------


async def test_a_gateway_with_nothing_but_upstreams() -> None:
    """It is ready at once, answers, knows its operator, and at its end tells streams that are still
    open."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    gate = asyncio.Event()
    async with FakeUpstream(
        say_events(START, START, before_piece={1: gate})
    ).listening() as upstream:
        backends = f"models: []\nbackends: [{{api: anthropic, base_url: '{upstream.url}'}}]\n"
        policy = make_policy(
            backends
            + "server: {drain: {delay: 0s, timeout: 10ms}}\ntenants: [{name: a, keys: [key-of-a]}]"
        )
        running = asyncio.create_task(
            serve(policy, {}, FakeClock(), url.set_result, root_secret=b"s" * 16)
        )
        async with aiohttp.ClientSession(await url) as http:
            async with http.get("/readyz") as response:
                assert response.status == 200
            async with http.get(
                "/admin/cache/stat", headers={"x-api-key": operator_key(b"s" * 16)}
            ) as response:
                assert response.status == 200
            async with http.post(
                MESSAGES, json=asking(CLAUDE, stream=True), headers={"x-api-key": "key-of-a"}
            ) as response:
                assert await response.content.readexactly(len(START)) == START
                os.kill(os.getpid(), signal.SIGTERM)
                assert b'"overloaded_error"' in await response.read()
        await running
