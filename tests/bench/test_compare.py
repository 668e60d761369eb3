"""Two servers under the same load: what is counted, who wins, and what happens when one refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from bench.chat import ChatClient, Message, Reply, ServerRefused
from bench.compare import TARGETS, Target, compare, compare_rounds, measure_decode, parse, show
from bench.load import closed_loop, figures_of, open_loop
from bench.traffic import MODEL
from bench.workloads import multi_turn, no_reuse, poisson
from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import serving

HELLO = [Message("user", "Hi")]


@asynccontextmanager
async def serving_chat(
    *lines: str, status: int = 200, knows_ignore_eos: bool = True
) -> AsyncIterator[str]:
    """A server of another make that answers every chat request with these lines."""

    async def answer(request: web.Request) -> web.Response:
        refused = not knows_ignore_eos and "ignore_eos" in await request.json()
        return web.Response(text="\n\n".join(lines), status=400 if refused else status)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


TEXT = 'data: {"choices": [{"delta": {"content": "Hello"}}]}'
USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}'


async def test_a_reply_is_what_the_gateway_says() -> None:
    """Text, and the counts of the usage, from a real stream."""
    async with serving(ScriptedBackend()) as served:
        reply = await ChatClient(served.http, served.url, MODEL, {}).ask(HELLO, 5)
    assert (reply.text, reply.num_prompt, reply.num_cached, reply.num_output) == (
        "Hello world",
        10,
        0,
        2,
    )
    assert 0 < reply.ttft_s <= reply.total_s


@pytest.mark.parametrize(
    ("lines", "counts"), [((TEXT, TEXT, USAGE), (9, 4)), ((TEXT, TEXT, "data: [DONE]"), (0, 2))]
)
async def test_servers_count_or_are_counted(
    lines: tuple[str, ...], counts: tuple[int, int]
) -> None:
    """Usage is believed; without it every piece is taken for a token."""
    async with serving_chat(*lines) as url, aiohttp.ClientSession() as http:
        reply = await ChatClient(http, f"{url}/v1/", "any", {}).ask(HELLO, 5)
    assert (reply.num_prompt, reply.num_output) == counts


async def test_ignore_eos_is_left_out_where_it_is_unknown() -> None:
    """After the probe requests are answered, though the server refuses the field."""
    async with serving_chat(TEXT, knows_ignore_eos=False) as url, aiohttp.ClientSession() as http:
        client = ChatClient(http, url, "any", {})
        with pytest.raises(ServerRefused, match="400"):
            await client.ask(HELLO, 5)
        await client.probe()
        assert (await client.ask(HELLO, 5)).text == "Hello"


@pytest.mark.parametrize(
    ("line", "status"), [(TEXT, 503), ('data: {"error": {"message": "out of memory"}}', 200)]
)
async def test_refusals_are_not_figures(line: str, status: int) -> None:
    """A status other than 200 and an error in the stream end the measurement."""
    async with serving_chat(line, status=status) as url, aiohttp.ClientSession() as http:
        client = ChatClient(http, url, "any", {})
        with pytest.raises(ServerRefused, match=r"503|out of memory"):
            await client.probe()


async def test_turns_repeat_the_conversation() -> None:
    """The third request of a conversation holds both answers before it; two clients never have
    three requests open."""
    backend = ScriptedBackend()
    conversations = multi_turn(
        1, num_conversations=4, num_turns=3, system_tokens=9, question_tokens=9, output_tokens=2
    )
    async with serving(backend) as served:
        replies = await closed_loop(
            ChatClient(served.http, served.url, MODEL, {}), conversations, 2
        )
    assert len(replies) == 12
    lengths = sorted(len(request.prompt.messages) for request in backend.requests)
    assert lengths == [1] * 4 + [3] * 4 + [5] * 4
    assert figures_of(replies).num_output == 24


async def test_an_open_loop_waits_for_nobody() -> None:
    """All conversations are open at once, though none of them is answered yet."""
    conversations = poisson(
        no_reuse(1, num_requests=5, prompt_tokens=9, output_tokens=2), 1000.0, 1
    )
    opened = 0
    all_open = asyncio.Event()

    class Waiting:
        """Answers when five ask."""

        async def ask(self, messages: list[Message], max_tokens: int) -> Reply:
            nonlocal opened
            opened += 1
            if opened == 5:
                all_open.set()
            await all_open.wait()
            return Reply(0.0, 1.0, 2.0, 9, 0, 2, "")

    replies = await open_loop(Waiting(), conversations)  # type: ignore[arg-type]
    assert len(replies) == 5


def test_figures_are_sums_and_medians() -> None:
    """Three answers of eleven tokens within four seconds."""
    replies = [
        Reply(begin_s, ttft_s, ttft_s + 1.0, 100, 50, 11, "")
        for begin_s, ttft_s in ((0.0, 0.5), (1.0, 1.0), (2.0, 1.0))
    ]
    figures = figures_of(replies)
    assert (figures.num_requests, figures.num_prompt, figures.num_cached, figures.num_output) == (
        3,
        300,
        150,
        33,
    )
    assert figures.duration_s == pytest.approx(4.0)
    assert figures.output_rate == pytest.approx(33 / 4)
    assert (figures.ttft_s, figures.ttft_p95_s) == (1.0, 1.0)
    assert figures.decode_s == pytest.approx(0.1)


async def test_servers_take_turns() -> None:
    """Each goes first in every other round, and both get the same texts."""
    asked: list[tuple[str, str]] = []

    class Named:
        """Takes a second a token, or two."""

        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds

        async def ask(self, messages: list[Message], max_tokens: int) -> Reply:
            asked.append((self.name, messages[-1].text))
            return Reply(0.0, 1.0, 1.0 + 10 * self.seconds, 9, 0, 11, "")

    clients = (Named("a", 1.0), Named("b", 2.0))
    (comparison,) = await compare(clients, [measure_decode], 2, "seed")  # type: ignore[arg-type]
    assert [name for name, _ in asked] == ["a", "b", "b", "a"]
    assert asked[0][1] == asked[1][1] != asked[2][1] == asked[3][1]
    assert (comparison.first, comparison.second, comparison.ratio) == (1.0, 2.0, 0.5)
    assert comparison.met is True


@pytest.mark.parametrize(
    ("target", "ratio", "met"),
    [
        (Target(0.7), 0.7, True),
        (Target(0.7), 0.71, False),
        (Target(1.3, at_most=False), 1.3, True),
        (Target(1.3, at_most=False), 1.2, False),
    ],
)
def test_targets_are_limits(target: Target, ratio: float, met: bool) -> None:
    """Times may be at most, rates must be at least, the given part of the other's."""
    assert target.met(ratio) is met


def test_a_missed_target_fails() -> None:
    """One figure beyond its target makes the whole comparison fail; figures without a target never
    do."""
    good = compare_rounds("decode, one client", [(1.0, 2.0), (1.0, 9.0), (1.0, 2.0)])
    assert good.ratio == 0.5
    assert show([good, compare_rounds("decode, multi-turn at 1/s", [(9.0, 1.0)])])
    assert not show([good, compare_rounds("warm TTFT, 4000 tokens", [(0.6, 1.0)])])
    assert "warm TTFT, 4000 tokens" in TARGETS


@pytest.mark.parametrize(
    "urls", [["--base-url", "a"], ["--base-url", "a", "--base-url", "b", "--base-url", "c"]]
)
def test_two_servers_are_compared(urls: list[str]) -> None:
    """Neither one nor three."""
    with pytest.raises(SystemExit):
        parse(urls)


def test_one_model_is_both() -> None:
    """`--model` once names the model of both servers; without it, it is the default model."""
    urls = ["--base-url", "a", "--base-url", "b"]
    assert parse([*urls, "--model", "x"]).model == ["x", "x"]
    assert parse([*urls, "--model", "x", "--model", "y"]).model == ["x", "y"]
    assert parse(urls).model == [MODEL, MODEL]
