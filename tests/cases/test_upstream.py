"""What users of prompt caching ran into with gateways in front of providers:
cases of public bug reports, over real sockets.
"""

from __future__ import annotations

import asyncio
import hashlib
from decimal import Decimal
from typing import Any

import anthropic
import orjson
import pytest

from gateway.upstream.reported import ReportedBill
from tests.fakes.upstream import SSE, Say, say_events, say_json
from tests.gateway.proxying import CLAUDE, GPT, Proxied, proxying

MESSAGES, CHAT, RESPONSES = "/v1/messages", "/v1/chat/completions", "/v1/responses"
PRICES = (
    "prices: {usd_per_mtok: {input: 5.00, output: 15.00}, "
    "multipliers: {read: 0.1, write: {5m: 1.25, 1h: 2.0, 30m: 1.25, 12h: 2.5}}, models: []}"
)


def message(**usage: Any) -> dict[str, Any]:
    """An answer of Anthropic's."""
    content = [{"type": "text", "text": "Hi"}]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": CLAUDE,
        "content": content,
        "usage": usage,
    }


def completion(**usage: Any) -> dict[str, Any]:
    """An answer of OpenAI's."""
    choices = [
        {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": GPT,
        "choices": choices,
        "usage": usage,
    }


def event(kind: str, **fields: Any) -> bytes:
    return (
        b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"
    )


def claude_stream(start: dict[str, Any] | None, end: dict[str, Any]) -> Say:
    """A stream whose usage is told at the start, at the end, or at both."""
    begun = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": CLAUDE,
        "content": [],
        "stop_reason": None,
    }
    if start is not None:
        begun["usage"] = start
    return say_events(
        event("message_start", message=begun),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"}),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage=end),
        event("message_stop"),
    )


def asking(model: str = CLAUDE, **more: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]} | more


def bill(passed: Proxied) -> ReportedBill:
    """Of the last request that is over."""
    told = passed.served.records[-1].bill
    assert isinstance(told, ReportedBill)
    return told


async def metric(passed: Proxied, sample: str) -> float:
    """One sample of `/metrics`, 0 where there is none."""
    async with passed.served.http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return next(
        (float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{sample} ")), 0.0
    )


# 13 -----------------------------------------------------------------------------------------------


async def test_13_one_hour_writes_have_their_own_price() -> None:
    """600k written for five minutes and 400k for an hour at 5.00: 3.75 + 4.00 USD, exactly,
    everywhere."""
    split = {"ephemeral_5m_input_tokens": 600_000, "ephemeral_1h_input_tokens": 400_000}
    usage = message(
        input_tokens=0, output_tokens=0, cache_creation_input_tokens=1_000_000, cache_creation=split
    )
    usage["usage"]["cache_read_input_tokens"] = 0
    async with proxying(say_json(usage), policy=PRICES) as passed:
        answer = await passed.post(MESSAGES, asking())
        assert Decimal(answer.headers["pcg-cost-usd"]) == Decimal("7.75")
        assert answer.headers["pcg-cache-write-5m-tokens"] == "600000"
        assert answer.headers["pcg-cache-write-1h-tokens"] == "400000"
        assert "pcg-warning" not in answer.headers
        assert bill(passed).usage.cache_write == ((3600.0, 400_000), (300.0, 600_000))
        totals = passed.served.totals["default", "claudes"]
        assert (totals.cost_usd, totals.cache_write, totals.num_noted) == (
            Decimal("7.75"),
            1_000_000,
            0,
        )
        assert await metric(passed, 'pcg_cost_usd_total{kind="cache_write"}') == 7.75


async def test_13_a_write_of_unknown_class_is_an_estimate() -> None:
    """Only the total: priced as five minutes, and said to be an estimate in header, record and
    metric."""
    usage = message(
        input_tokens=0,
        output_tokens=0,
        cache_creation_input_tokens=1_000_000,
        cache_read_input_tokens=0,
    )
    async with proxying(say_json(usage), policy=PRICES) as passed:
        answer = await passed.post(MESSAGES, asking())
        assert Decimal(answer.headers["pcg-cost-usd"]) == Decimal("6.25")
        assert answer.headers["pcg-warning"] == "price_estimated"
        assert passed.served.records[-1].notes == ("price_estimated",)
        assert passed.served.totals["default", "claudes"].num_noted == 1
        assert await metric(passed, 'pcg_usage_notes_total{note="price_estimated"}') == 1


# 14 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (
            {"input_tokens": 12, "output_tokens": 0},
            {
                "cache_read_input_tokens": 3590,
                "cache_creation_input_tokens": 0,
                "output_tokens": 878,
            },
            (3590, 0, 12, 878),
        ),
        (
            None,
            {"input_tokens": 4522, "cache_creation_input_tokens": 4511, "output_tokens": 5},
            (0, 4511, 4522, 5),
        ),
        (
            {"input_tokens": 3, "cache_read_input_tokens": 40, "output_tokens": 1},
            {"input_tokens": None, "cache_read_input_tokens": 0, "output_tokens": 9},
            (0, 0, 3, 9),
        ),
    ],
    ids=["cache fields at the end", "everything at the end", "null is absent and 0 is a value"],
)
async def test_14_usage_is_merged_by_field(
    start: dict[str, Any] | None, end: dict[str, Any], expected: tuple[int, ...]
) -> None:
    """The last value that is present wins."""
    async with proxying(claude_stream(start, end)) as passed:
        answer = await passed.post(MESSAGES, asking(stream=True))
        assert answer.body == b"".join(claude_stream(start, end).pieces)
        usage = bill(passed).usage
        assert (usage.cache_read, usage.num_written, usage.input, usage.output) == expected


async def test_14_what_moves_from_written_to_read_is_billed_once() -> None:
    """A gateway's stream (litellm#40736) that first says written and then read: 35,217 tokens at
    5.00, all but 14 of them read, and no doubt about it."""
    split = {"ephemeral_5m_input_tokens": 35_203, "ephemeral_1h_input_tokens": 0}
    start = {
        "input_tokens": 14,
        "cache_creation_input_tokens": 35_203,
        "cache_creation": split,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    end = {
        "input_tokens": 14,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 35_203,
        "output_tokens": 0,
    }
    async with proxying(claude_stream(start, end), policy=PRICES) as passed:
        await passed.post(MESSAGES, asking(stream=True))
        assert bill(passed).usage.num_prompt == 35_217
        assert bill(passed).charge.total == Decimal("0.0176715")
        assert passed.served.records[-1].notes == ()


async def test_14_input_that_includes_what_was_read() -> None:
    """DashScope's capture under the preset `qwen`: about 3,604 prompt tokens in all, not 7,206, and
    never below zero."""
    start, end = (
        {"input_tokens": 3602, "output_tokens": 0},
        {"cache_read_input_tokens": 3604, "output_tokens": 878},
    )
    async with proxying(claude_stream(start, end), claude=", preset: qwen") as passed:
        await passed.post(MESSAGES, asking(stream=True))
        usage = bill(passed).usage
        assert (usage.num_prompt, usage.cache_read, usage.input, usage.output) == (
            3604,
            3604,
            0,
            878,
        )
        assert "usage_anomaly" in passed.served.records[-1].notes


# 23 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "model", "answer", "expected"),
    [
        (
            MESSAGES,
            CLAUDE,
            message(input_tokens=-120, cache_read_input_tokens=1000, output_tokens=5),
            (1000, 0, 5),
        ),
        (
            CHAT,
            GPT,
            completion(
                prompt_tokens=100, completion_tokens=5, prompt_tokens_details={"cached_tokens": 128}
            ),
            (128, 0, 5),
        ),
    ],
)
async def test_23_numbers_that_do_not_add_up(
    path: str, model: str, answer: dict[str, Any], expected: tuple[int, ...]
) -> None:
    """No negative tokens and no negative cost; the anomaly is told, the body stays as it was."""
    async with proxying(say_json(answer), say_json(answer)) as passed:
        got = await passed.post(path, asking(model))
        usage = bill(passed).usage
        assert (usage.cache_read, usage.input, usage.output) == expected
        assert Decimal(got.headers["pcg-cost-usd"]) > 0
        assert "usage_anomaly" in got.headers["pcg-warning"]
        assert got.json == answer


# 32 -----------------------------------------------------------------------------------------------

ODD = (
    '{ "x_future" :1,\t"model":"%s",\n"stream": %s, '
    '"max_tokens":5e0,"system":[{"cache_control":{"type":"ephemeral"},'
    '"type":"text","text":"caf\\u00e9 é \\/"}],  "metadata":{"model":"other","b":1,"a":1.0},'
    '"prompt_cache_key":"k-1","messages":[{"content":"Hi","role":"user"}] }'
)


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize(
    ("path", "model"), [(MESSAGES, CLAUDE), (CHAT, GPT), (RESPONSES, GPT), ("/v1/completions", GPT)]
)
async def test_32_the_body_arrives_as_it_was_sent(path: str, model: str, stream: str) -> None:
    """Odd spacing, key order, unknown fields, escapes, markers: the upstream receives the very same
    bytes."""
    body = (ODD % (model, stream)).encode()
    async with proxying(say_json(message()), say_json(completion())) as passed:
        assert (await passed.post(path, body)).status == 200
        upstream = passed.anthropic if path == MESSAGES else passed.openai
        assert [got.digest for got in upstream.got] == [hashlib.sha256(body).hexdigest()]


async def test_32_the_answer_arrives_as_it_was_given() -> None:
    """Whole or streamed, in whatever pieces: not a byte is changed."""
    whole = b'{ "usage":{"input_tokens":1,"output_tokens":2 } ,"x_future":[1.0,"\\u00e9"] }\n'
    raw = (
        b"".join(claude_stream({"input_tokens": 1}, {"output_tokens": 2}).pieces).replace(
            b"\n", b"\r\n"
        )
        + b": bye"
    )
    pieces = tuple(raw[i : i + 7] for i in range(0, len(raw), 7))
    async with proxying(
        lambda got: Say(pieces, headers=SSE) if b"stream" in got.body else Say((whole,))
    ) as passed:
        assert (await passed.post(MESSAGES, asking())).body == whole
        assert (await passed.post(MESSAGES, asking(stream=True))).body == raw
        assert [record.bill is not None for record in passed.served.records] == [True, True]


# 36 -----------------------------------------------------------------------------------------------


async def test_36_a_client_that_leaves_ends_the_upstream_request_and_is_billed() -> None:
    """The upstream's connection closes at once, and what it had told until then is on the bill."""
    gate = asyncio.Event()
    told = claude_stream(
        {"input_tokens": 7, "cache_read_input_tokens": 90, "output_tokens": 1},
        {"output_tokens": 50},
    )
    script = Say(told.pieces, headers=SSE, before_piece={3: gate})
    async with proxying(script) as passed:
        async with passed.served.http.post(MESSAGES, json=asking(stream=True)) as response:
            await response.content.readuntil(b"text_delta")
            response.close()
        async with asyncio.timeout(20):
            await passed.anthropic.left.wait()
            while not passed.served.records:
                await asyncio.sleep(0)
        record = passed.served.records[-1]
        assert (record.outcome, bill(passed).usage.cache_read, bill(passed).usage.output) == (
            "cancelled",
            90,
            1,
        )


# 37 -----------------------------------------------------------------------------------------------

HURRIED = "server: {sse: {early_headers_after: 10ms, keepalive: 10ms}}"
QUIET = "server: {sse: {early_headers_after: none, keepalive: none}}"


@pytest.mark.parametrize("held", ["head", "text"])
async def test_37_a_silent_upstream_keeps_the_client_waiting_awake(held: str) -> None:
    """Before the first byte and between two events a raw reader sees comments, and the official SDK
    reads the answer."""
    gate = asyncio.Event()
    told = claude_stream({"input_tokens": 7}, {"output_tokens": 50})
    holding = {"before_head": gate} if held == "head" else {"before_piece": {2: gate}}
    async with (
        proxying(say_events(*told.pieces, **holding), policy=HURRIED) as passed,
        anthropic.AsyncAnthropic(base_url=passed.served.url, api_key="k", max_retries=0) as client,
    ):
        async with passed.served.http.post(MESSAGES, json=asking(stream=True)) as response:
            seen = b""
            while seen.count(b": keepalive") < 2:
                seen += await response.content.readuntil(b"\n\n")
            assert response.status == 200
            gate.set()
            seen += await response.read()
            assert seen.replace(b": keepalive\n\n", b"") == b"".join(told.pieces)
        question = {"role": "user", "content": "Hi"}
        async with client.messages.stream(
            model=CLAUDE, max_tokens=5, messages=[question]
        ) as stream:  # type: ignore[list-item]
            assert await stream.get_final_text() == "Hi"


async def test_37_switched_off_nothing_is_added() -> None:
    """Without keepalives a slow stream's bytes are the upstream's, and intermediaries are told not
    to hold them back."""
    first, second = asyncio.Event(), asyncio.Event()
    told = claude_stream({"input_tokens": 7}, {"output_tokens": 50})
    say = Say(told.pieces, headers=SSE, before_head=first, before_piece={2: second})
    async with proxying(say, policy=QUIET) as passed, asyncio.TaskGroup() as group:
        answer = group.create_task(passed.post(MESSAGES, asking(stream=True)))
        for gate in (first, second):
            await passed.anthropic.held.wait()
            passed.anthropic.held.clear()
            gate.set()
        got = await answer
        assert got.body == b"".join(told.pieces)
        assert (got.headers["X-Accel-Buffering"], got.headers["Cache-Control"]) == (
            "no",
            "no-store",
        )


async def test_37_an_early_refusal_keeps_its_status() -> None:
    """A 429 within the deadline is a real 429, with its retry-after."""
    refusal = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    async with proxying(say_json(refusal, 429, retry_after="7", request_id="req_up")) as passed:
        answer = await passed.post(MESSAGES, asking(stream=True))
        assert (answer.status, answer.json, answer.headers["retry-after"]) == (429, refusal, "7")
        assert answer.headers["request-id"] == "req_up"
        record = passed.served.records[-1]
        assert (record.outcome, record.error, record.upstream_id) == (
            "failed",
            "UpstreamRefused",
            "req_up",
        )


async def test_37_a_late_refusal_is_told_in_the_stream() -> None:
    """Once the stream is open the upstream's own error is its last event, and the SDK raises it."""
    gate = asyncio.Event()
    refusal = {"type": "error", "error": {"type": "overloaded_error", "message": "too busy"}}
    async with proxying(
        Say((orjson.dumps(refusal),), 529, before_head=gate),
        policy="server: {sse: {early_headers_after: 10ms}}",
    ) as passed:
        async with passed.served.http.post(MESSAGES, json=asking(stream=True)) as response:
            assert response.status == 200
            gate.set()
            assert (
                await response.read() == b"event: error\ndata: " + orjson.dumps(refusal) + b"\n\n"
            )
        assert passed.served.records[-1].outcome == "failed"


async def test_37_a_late_answer_that_is_no_stream_is_billed() -> None:
    """It cannot be shown any more; what the upstream told that it used is owed."""
    gate, usage = (
        asyncio.Event(),
        {"input_tokens": 7, "cache_read_input_tokens": 90, "output_tokens": 5},
    )
    say = Say((orjson.dumps(message(**usage)),), before_head=gate)
    async with proxying(say, policy="server: {sse: {early_headers_after: 10ms}}") as passed:
        async with passed.served.http.post(MESSAGES, json=asking(stream=True)) as response:
            assert response.status == 200
            gate.set()
            assert b"event: error\n" in await response.read()
        assert passed.served.records[-1].outcome == "failed"
        assert (bill(passed).usage.cache_read, bill(passed).usage.output) == (90, 5)


# 42, 45 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens_details": None}], ids=["absent", "null"])
async def test_42_a_cache_that_is_not_told_of_is_unknown(usage: dict[str, Any]) -> None:
    """The client sees what the upstream said; header, record and metric say unknown, and nobody
    claims a miss."""
    answer = completion(prompt_tokens=100, completion_tokens=5, total_tokens=105, **usage)
    async with proxying(openai=say_json(answer)) as passed:
        got = await passed.post(CHAT, asking(GPT))
        assert got.json == answer
        assert got.headers["pcg-cache"] == "unknown"
        assert got.headers["Cache-Status"] == "gpts; fwd=bypass; detail=usage-unknown"
        assert "pcg-cache-read-tokens" not in got.headers
        assert "pcg-uncached-tokens" not in got.headers
        assert passed.served.records[-1].notes == ("cache_usage_unknown",)
        assert await metric(passed, 'pcg_prefix_lookup_total{result="unknown"}') == 1
        assert await metric(passed, 'pcg_prefix_lookup_total{result="miss"}') == 0
        assert await metric(passed, 'pcg_prompt_tokens_total{kind="unknown"}') == 100


async def test_45_zero_is_a_miss_and_silence_is_not() -> None:
    """`cached_tokens: 0` is a claim of the upstream's, and is passed on as one."""
    answer = completion(
        prompt_tokens=100, completion_tokens=5, prompt_tokens_details={"cached_tokens": 0}
    )
    async with proxying(openai=say_json(answer)) as passed:
        got = await passed.post(CHAT, asking(GPT))
        assert (got.headers["pcg-cache"], got.headers["pcg-cache-read-tokens"]) == ("miss", "0")
        assert (
            got.headers["Cache-Status"]
            == "gpts; fwd=miss; detail=from-usage; pcg-read=0; pcg-write=0; pcg-total=100"
        )


# 48 -----------------------------------------------------------------------------------------------


async def test_48_the_clients_cache_key_is_passed_untouched() -> None:
    """`prompt_cache_key` steers an upstream's routing: it arrives as sent, and none is made up
    where there is none."""
    async with proxying(openai=say_json(completion())) as passed:
        await passed.post(CHAT, asking(GPT, prompt_cache_key="tenant-7/session-é"))
        await passed.post(CHAT, asking(GPT))
        assert [orjson.loads(got.body).get("prompt_cache_key") for got in passed.openai.got] == [
            "tenant-7/session-é",
            None,
        ]
