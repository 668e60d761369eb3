"""What users ran into with bills and lifetimes: bursts, conventions, classes, refreshes,
pre-warming, counting.

The numbers are those of a collection of public bug reports.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import orjson

from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Answer
from gateway.wire.openai import CHAT_WIRE
from policies.pricing import Prices, Usage, charge
from tests.fakes.reports import CC, opened, say, text, words
from tests.gateway.serving import make_policy


async def test_case_11_a_burst_of_identical_cold_requests() -> None:
    """One prefills and writes, the others wait and read; without single-flight all write and one
    entry is left."""
    system = [text(words(500), CC)]
    async with opened() as desk:
        told = await asyncio.gather(
            *(desk.ask(say("user", f"k={i}"), system=system) for i in range(8))
        )
        assert sorted(answer.written for answer in told)[:7] == [0] * 7
        assert (
            sorted(answer.read for answer in told)
            == [0] + [max(answer.written for answer in told)] * 7
        )
        computed = [
            part
            for step in desk.backend.runner.steps
            for part in step
            if part.start == 0 and part.num_tokens > 400
        ]
        assert len(computed) == 1
    async with opened("caching: {single_flight: {enabled: false}}") as desk:
        told = await asyncio.gather(
            *(desk.ask(say("user", f"k={i}"), system=system) for i in range(8))
        )
        assert {sum(answer.u) for answer in told} == {sum(told[0].u)}
        assert (await desk.ask(system=system)).read == max(answer.written for answer in told)


async def test_case_12_inclusive_or_exclusive_input_tokens() -> None:
    """One record, two conventions: Anthropic leaves out what was cached, OpenAI does not; the price
    is one."""
    usage = Usage(input=4, cache_read=2455, output=23)
    anthropic, gpt = MESSAGES_WIRE, CHAT_WIRE
    body = orjson.dumps(
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    )
    answer = Answer("x", "stop", None, usage)
    ours = orjson.loads(
        anthropic.encode_answer(anthropic.parse(body, {}, request_id="r"), answer, created_at_s=0)
    )["usage"]
    theirs = orjson.loads(
        gpt.encode_answer(gpt.parse(body, {}, request_id="r"), answer, created_at_s=0)
    )["usage"]
    assert (ours["input_tokens"], ours["cache_read_input_tokens"]) == (4, 2455)
    assert (
        theirs["prompt_tokens"],
        theirs["prompt_tokens_details"]["cached_tokens"],
        theirs["total_tokens"],
    ) == (
        2459,
        2455,
        2482,
    )
    prices = make_policy().prices_for("claude-sonnet-4-6")
    assert charge(usage, prices).total == Decimal("0.0010935")


async def test_case_13_hour_writes_priced_apart() -> None:
    """600k for five minutes and 400k for an hour at $5: 3.75 + 4.00."""
    prices = Prices(
        "v", Decimal(5), Decimal(25), Decimal("0.1"), {300.0: Decimal("1.25"), 3600.0: Decimal(2)}
    )
    assert charge(Usage(0, 0, ((3600.0, 400_000), (300.0, 600_000))), prices).total == Decimal(
        "7.75"
    )
    assert charge(Usage(0, 0, ((300.0, 1_000_000),)), prices).total == Decimal("6.25")


async def test_case_20_kept_alive_during_a_long_tool_call() -> None:
    """A pre-warm before the time is up keeps the prefix; without it the time is up. The headers
    tell the time left."""
    body: dict[str, Any] = {"system": [text(words(100), CC)]}
    for pinged in (True, False):
        async with opened() as desk:
            first = await desk.ask(**body)
            assert "ttl=300" in first.headers["Cache-Status"]
            desk.advance(240)
            if pinged:
                assert (await desk.ask(**body, max_tokens=0)).read == first.written
            desk.advance(240)
            told = await desk.ask(**body)
            assert told.read == (first.written if pinged else 0)
            assert told.headers["pcg-cache"] == ("hit" if pinged else "expired")


async def test_case_21_a_read_refreshes_for_free() -> None:
    """Through a longer prefix the shorter one inside it is refreshed too, at the price of a
    read."""
    system = [text(words(100), CC)]
    long = say("user", text(words(100, "m"), CC), "q")
    async with opened() as desk:
        first = await desk.ask(long, system=system)
        desk.advance(240)
        assert (await desk.ask(long, system=system)).u[:3] == (first.written, 0, 0)
        desk.advance(242)
        assert (await desk.ask(long, system=system)).read == first.written
        desk.advance(218)
        assert 100 < (await desk.ask(system=system)).read < first.written
        desk.advance(301)
        assert (await desk.ask(system=system)).read == 0


async def test_case_43_a_pre_warm_call() -> None:
    """`max_tokens: 0` writes and says nothing; with a stream it is refused."""
    system = [text(words(200), CC)]
    async with opened() as desk:
        warm = await desk.ask(say("user", "warmup"), system=system, max_tokens=0)
        assert (
            warm.body["content"],
            warm.body["stop_reason"],
            warm.body["usage"]["output_tokens"],
        ) == ([], "max_tokens", 0)
        assert warm.u[1] > 200
        assert (await desk.ask(say("user", "a real question"), system=system)).read == warm.written
        assert (await desk.ask(system=system, max_tokens=0, stream=True)).error.startswith(
            "stream: "
        )


async def test_case_47_counting_ignores_the_cache() -> None:
    """The whole prompt, warm or not; and counting refreshes nothing."""
    body: dict[str, Any] = {"system": [text(words(100), CC)]}
    async with opened() as desk:
        first = await desk.ask(**body)
        desk.advance(200)
        assert await desk.count(say("user", "hi"), **body) == sum(first.u)
        desk.advance(101)
        assert (await desk.ask(**body)).read == 0
