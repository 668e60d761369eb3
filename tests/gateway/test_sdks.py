"""The official SDKs, unmodified, against the gateway: answers, counts and bills agree in body,
headers and metrics."""

from __future__ import annotations

from decimal import Decimal

import anthropic
import openai
import pytest

from gateway.request import Request
from tests.fakes.backend import Script, ScriptedBackend, report_for
from tests.gateway.serving import Served, serving

NUM_PROMPT, OFFSET = 4010, 4000
SYSTEM = [{"type": "text", "text": "A long text.", "cache_control": {"type": "ephemeral"}}]


def caching_backend() -> ScriptedBackend:
    """Cold the first time, warm ever after: a prompt of 4,010 tokens marked at 4,000."""
    seen: list[str] = []

    def script(request: Request) -> Script:
        warm = bool(seen)
        seen.append(request.id)
        return Script(report=report_for(request, NUM_PROMPT, OFFSET, warm=warm))

    return ScriptedBackend(script)


async def metric(served: Served, name: str) -> Decimal:
    """One sample of `/metrics` by its full name, 0 when it is not there."""
    async with served.http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return next(
        (Decimal(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + " ")),
        Decimal(0),
    )


async def test_anthropic_cold_then_warm() -> None:
    """Written once, read the second time; the body's parts add up to the prompt and the headers say
    the same."""
    async with (
        serving(caching_backend()) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client,
    ):
        seen = []
        for _ in range(2):
            raw = await client.messages.with_raw_response.create(
                model="claude-sonnet-5",
                max_tokens=5,
                system=SYSTEM,
                messages=[{"role": "user", "content": "Hi"}],
            )
            message = await raw.parse()
            assert message.content[0].text == "Hello world"
            assert message.stop_reason == "end_turn"
            usage = message.usage
            assert usage.cache_read_input_tokens == int(raw.headers["pcg-cache-read-tokens"])
            assert usage.cache_creation_input_tokens == int(raw.headers["pcg-cache-write-tokens"])
            assert usage.input_tokens == int(raw.headers["pcg-uncached-tokens"])
            assert raw.headers["request-id"].startswith("req_")
            seen.append(
                (
                    usage.cache_creation_input_tokens,
                    usage.cache_read_input_tokens,
                    usage.input_tokens,
                    usage.output_tokens,
                )
            )
        assert seen == [(OFFSET, 0, 10, 2), (0, OFFSET, 10, 2)]
        assert await metric(served, 'pcg_prompt_tokens_total{kind="write_5m"}') == OFFSET
        assert await metric(served, 'pcg_prompt_tokens_total{kind="read"}') == OFFSET
        assert await metric(served, 'pcg_prompt_tokens_total{kind="uncached"}') == 20
        assert await metric(served, "pcg_output_tokens_total") == 4
        assert await metric(served, "pcg_prefill_skipped_tokens_total") == OFFSET


async def test_the_bill_is_one_number_everywhere() -> None:
    """The cost header of each answer, the total of the records and the metric's sum are the same
    money."""
    async with (
        serving(caching_backend()) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client,
    ):
        costs = []
        for _ in range(2):
            raw = await client.messages.with_raw_response.create(
                model="claude-sonnet-5",
                max_tokens=5,
                system=SYSTEM,
                messages=[{"role": "user", "content": "Hi"}],
            )
            costs.append(Decimal(raw.headers["pcg-cost-usd"]))
        assert costs[0] > costs[1] > 0
        totals = served.totals["default", "smollm2-135m-instruct"]
        assert totals.cost_usd == sum(costs)
        assert (totals.num_requests, totals.cache_read, totals.cache_write) == (2, OFFSET, OFFSET)
        kinds = ("input", "cache_read", "cache_write", "output")
        shown = [await metric(served, f'pcg_cost_usd_total{{kind="{kind}"}}') for kind in kinds]
        assert float(sum(shown)) == pytest.approx(float(sum(costs)))


async def test_anthropic_streams() -> None:
    """The stream helper sees the same usage as the headers that left before it."""
    async with (
        serving(caching_backend()) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client,
        client.messages.stream(
            model="claude-sonnet-5",
            max_tokens=5,
            system=SYSTEM,
            messages=[{"role": "user", "content": "Hi"}],
        ) as stream,
    ):
        assert [text async for text in stream.text_stream] == ["Hello", " world"]
        message = await stream.get_final_message()
        assert message.usage.cache_creation_input_tokens == OFFSET
        assert message.usage.output_tokens == 2
        assert stream.response.headers["pcg-cache-write-tokens"] == str(OFFSET)
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert "pcg-cost-usd" not in stream.response.headers


async def test_openai_whole_and_streamed() -> None:
    """Both forms give the text, the usage and the request id of the headers."""
    async with (
        serving(ScriptedBackend()) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as client,
    ):
        raw = await client.chat.completions.with_raw_response.create(
            model="gpt-5.6",
            messages=[{"role": "user", "content": "Hi"}],
            extra_headers={"x-request-id": "mine-1"},
        )
        completion = raw.parse()
        assert completion.choices[0].message.content == "Hello world"
        assert completion.choices[0].finish_reason == "stop"
        assert completion.usage is not None
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (10, 2)
        assert raw.headers["x-request-id"] == raw.headers["pcg-request-id"] == "mine-1"
        stream = await client.chat.completions.create(
            model="gpt-5.6",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert (
            "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello world"
        )
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 12


async def test_the_sdks_count_and_list() -> None:
    """count_tokens, and the model list and one model in both formats on one path."""
    async with (
        serving(ScriptedBackend()) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as claude,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        counted = await claude.messages.count_tokens(
            model="claude-sonnet-5", messages=[{"role": "user", "content": "Hi"}]
        )
        assert counted.input_tokens == 7
        assert "smollm2-135m-instruct" in [model.id async for model in claude.models.list()]
        assert "smollm2-135m-instruct" in [model.id async for model in gpt.models.list()]
        assert (await claude.models.retrieve("claude-sonnet-5")).type == "model"
        assert (await gpt.models.retrieve("gpt-5.6")).object == "model"
        with pytest.raises(openai.NotFoundError):
            await gpt.models.retrieve("llama")


async def test_sdk_errors() -> None:
    """Each SDK raises its own class for what the gateway refuses."""
    async with (
        serving(ScriptedBackend()) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as claude,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        with pytest.raises(anthropic.NotFoundError):
            await claude.messages.create(
                model="llama", max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
            )
        with pytest.raises(anthropic.BadRequestError):
            await claude.messages.create(model="claude-sonnet-5", max_tokens=5, messages=[])
        with pytest.raises(openai.NotFoundError):
            await gpt.chat.completions.create(
                model="llama", messages=[{"role": "user", "content": "Hi"}]
            )
        with pytest.raises(openai.BadRequestError):
            await gpt.chat.completions.create(model="gpt-5.6", messages=[])
