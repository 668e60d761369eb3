"""The cache of whole answers: cases 38 and 39 of the collection of public reports, in every API,
streamed and not."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import anthropic
import http_sf
import openai
import pytest
import structlog

from engine.messages import TextDelta, ToolCallDelta
from engine.types import TokenLogprob, TokenLogprobs
from gateway.errors import EngineFailed
from gateway.operate.logs import log_record, set_up_logging
from gateway.request import Request
from tests.fakes.backend import Script, ScriptedBackend, report_for
from tests.gateway.serving import ANTHROPIC, OPENAI, Served, anthropic_body, openai_body, serving

ON = "caching: {responses: {enabled: true}}"
TOOLS_TOO = "caching: {responses: {enabled: true, tools: true}}"
MODEL = "smollm2-135m-instruct"

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": (
        "/v1/messages",
        {
            "model": "claude-sonnet-5",
            "max_tokens": 5,
            "messages": [{"role": "user", "content": "Hi"}],
        },
    ),
    "chat": (
        "/v1/chat/completions",
        {"model": "gpt-5.6", "messages": [{"role": "user", "content": "Hi"}]},
    ),
    "responses": ("/v1/responses", {"model": "gpt-5.6", "input": "Hi"}),
    "completions": ("/v1/completions", {"model": "gpt-5.6", "prompt": "Hi"}),
}


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", "input_schema": {"type": "object"}}


async def post(served: Served, path: str, body: dict[str, Any], **headers: str) -> tuple[str, Any]:
    """The text of an answer and its headers."""
    sent = {
        **(ANTHROPIC if path == "/v1/messages" else OPENAI),
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    async with served.http.post(path, json=body, headers=sent) as response:
        text = await response.text()
        assert response.status == 200, text
        return text, response.headers


async def ask(
    served: Served, api: str = "anthropic", headers: dict[str, str] | None = None, **more: Any
) -> tuple[Any, Any]:
    """One request at temperature 0, unless told otherwise: the answer's body, parsed unless it is a
    stream, and headers."""
    path, body = ASKED[api]
    fields = {
        name: value
        for name, value in ({"temperature": 0} | body | more).items()
        if value is not None
    }
    text, told = await post(served, path, fields, **(headers or {}))
    return (text if more.get("stream") else json.loads(text)), told


def members(headers: Any) -> dict[str, dict[str, Any]]:
    """The members of `Cache-Status` with their parameters, in order."""
    parsed = http_sf.parse(headers["Cache-Status"].encode(), tltype="list")
    return {str(name): dict(parameters) for name, parameters in parsed}


# Case 38: the key ---------------------------------------------------------------------------------


async def test_case_38_other_tools_are_another_request() -> None:
    """The same words with other tools are asked again; with the same tools they are not."""
    backend = ScriptedBackend(lambda request: Script(texts=(request.prompt.tools[0].name,)))
    async with serving(backend, TOOLS_TOO) as served:
        said = [
            (await ask(served, tools=[tool(name)]))[0]
            for name in ("search_books", "search_news", "search_books")
        ]
    assert [body["content"][0]["text"] for body in said] == [
        "search_books",
        "search_news",
        "search_books",
    ]
    assert len(backend.requests) == 2


async def test_case_38_with_tools_nothing_is_given_again_unless_enabled() -> None:
    """An agent must not be made to repeat a call; the header says why."""
    backend = ScriptedBackend()
    async with serving(backend, ON) as served:
        told = [await ask(served, tools=[tool("buy")]) for _ in range(2)]
    assert len(backend.requests) == 2
    assert members(told[1][1])["pcg-resp"] == {"fwd": "bypass", "detail": "tools"}


CHANGES: dict[str, dict[str, Any]] = {
    "words": {"messages": [{"role": "user", "content": "Ho"}]},
    "a mark": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}],
            }
        ]
    },
    "turns": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "I"},
            {"role": "user", "content": "?"},
        ]
    },
    "system": {"system": "Be brief."},
    "limit": {"max_tokens": 6},
    "stop": {"stop_sequences": ["x"]},
    "top_k": {"top_k": 3},
    "model id": {"model": "claude-opus-5"},
    "thinking": {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 2000,
        "temperature": 1,
    },
    "format": {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    "order of keys": {
        "tools": [
            tool("t") | {"input_schema": {"type": "object", "properties": {"b": {}, "a": {}}}}
        ]
    },
    "tool choice": {"tools": [tool("t")], "tool_choice": {"type": "any"}},
}
ANYTHING = "caching: {responses: {enabled: true, tools: true, sampled: true}}"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_case_38_whatever_could_change_the_answer_is_in_the_key(
    change: dict[str, Any],
) -> None:
    """A change of one field is another request; the same change again is not."""
    backend = ScriptedBackend()
    async with serving(backend, ANYTHING) as served:
        for more in (
            {},
            {
                "tools": [
                    tool("t")
                    | {"input_schema": {"type": "object", "properties": {"a": {}, "b": {}}}}
                ]
            },
        ):
            await ask(served, **more)
        before = len(backend.requests)
        for _ in range(2):
            await ask(served, **change)
    assert len(backend.requests) == before + 1


@pytest.mark.parametrize(
    ("headers", "num_asked"),
    [
        ({"anthropic_beta": "effort-2025-11-24"}, 2),
        ({"anthropic_version": "2026-10-21"}, 2),
        ({"x_request_id": "another"}, 1),
        ({"x_session_id": "s"}, 1),
    ],
)
async def test_case_38_versions_of_the_api_are_in_the_key(
    headers: dict[str, str], num_asked: int
) -> None:
    """Beta headers and the API's version are; names of requests and sessions are not."""
    backend = ScriptedBackend()
    async with serving(backend, ANYTHING) as served:
        await ask(served, temperature=None)
        await ask(served, headers=headers, temperature=None)
    assert len(backend.requests) == num_asked


async def test_case_38_apis_and_tenants_are_apart() -> None:
    """Each asks for itself, whoever has asked the same before."""
    backend = ScriptedBackend()
    tenants = "tenants: [{name: a, keys: [key-a, another-of-a]}, {name: b, keys: [key-b]}]"
    async with serving(backend, f"{ON}\n{tenants}") as served:
        for api in ("chat", "responses", "completions"):
            await ask(served, api, {"authorization": "Bearer key-a"})
        assert len(backend.requests) == 3
        for key in ("key-b", "another-of-a", "key-a"):
            await ask(served, "chat", {"authorization": f"Bearer {key}"})
        assert len(backend.requests) == 4


@pytest.mark.parametrize(("end_users", "num_asked"), [("shared", 1), ("apart", 3)])
async def test_case_38_end_users_share_answers_or_do_not(end_users: str, num_asked: int) -> None:
    """As the policy says: a user's name is no part of what the model is asked."""
    backend = ScriptedBackend()
    async with serving(
        backend, f"caching: {{responses: {{enabled: true, end_users: {end_users}}}}}"
    ) as served:
        for name in ("me", "you", "me"):
            await ask(served, metadata={"user_id": name})
        for name in ("me", "you", "them", "me"):
            await ask(served, "chat", user=name)
    assert len(backend.requests) == num_asked * 2 - (num_asked > 1)


@pytest.mark.parametrize(
    ("policy", "more", "num_asked"),
    [
        (ON, {"temperature": 1}, 2),
        (ON, {"temperature": None}, 2),
        (ON, {"temperature": 0}, 1),
        (ON, {"temperature": 1, "seed": 7}, 1),
        ("caching: {responses: {enabled: true, sampled: true}}", {"temperature": 1}, 1),
        ("", {"temperature": 0}, 2),
    ],
)
async def test_only_answers_that_would_be_the_same_are_given_again(
    policy: str, more: dict[str, Any], num_asked: int
) -> None:
    """Temperature 0 or a seed, unless the policy says otherwise; off by default."""
    backend = ScriptedBackend()
    async with serving(backend, policy) as served:
        for _ in range(2):
            _, headers = await ask(served, "chat", **more)
    assert len(backend.requests) == num_asked
    assert ("pcg-resp" in headers["Cache-Status"]) == bool(policy)


# Case 39: what it costs ---------------------------------------------------------------------------


@pytest.mark.parametrize("api", ASKED)
async def test_case_39_it_costs_nothing_and_says_what_it_saved(api: str) -> None:
    """Cost c, then 0 with c saved; usage in the body is the first one's; one call of the model;
    nobody's spending grows."""
    backend = ScriptedBackend()
    async with serving(backend, ON) as served:
        first, bought = await ask(served, api)
        totals = served.totals["default", MODEL]
        spent, tokens = (
            totals.cost_usd,
            (totals.input, totals.cache_read, totals.cache_write, totals.output),
        )
        second, given = await ask(served, api)
        totals = served.totals["default", MODEL]
        cost = Decimal(bought["pcg-cost-usd"])
        assert cost == spent > 0
        assert given["pcg-cost-usd"] == given["pcg-prompt-cost-usd"] == "0.00000000"
        assert Decimal(given["pcg-cost-saved-usd"]) == cost
        assert second["usage"] == first["usage"]
        assert second["id"] != first["id"]
        assert len(backend.requests) == 1
        assert totals.cost_usd == spent
        assert (totals.input, totals.cache_read, totals.cache_write, totals.output) == tokens
        assert (totals.num_requests, totals.num_replayed) == (2, 1)
        assert [record.kind for record in served.records] == ["engine", "response_cache"]


async def test_case_39_headers_log_and_metrics_agree() -> None:
    """`Cache-Status` has the response cache alone; one log line of its kind; no token is counted
    twice."""
    clock_moves = 60.0
    async with serving(ScriptedBackend(), ON) as served:
        _, first = await ask(served)
        assert list(members(first)) == ["pcg-kv", "pcg-resp"]
        assert members(first)["pcg-resp"] == {"fwd": "uri-miss", "stored": True, "ttl": 600}
        served.clock.advance(clock_moves)
        _, second = await ask(served)
        assert second["Cache-Status"] == "pcg-resp; hit; ttl=540"
        assert (second["pcg-cache"], second["pcg-prefill-skipped-tokens"]) == ("response", "10")
        assert "pcg-miss-reason" not in second
        async with served.http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        values = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if not line.startswith("#")
        }
        assert (
            values['pcg_response_lookup_total{result="hit"}']
            == values['pcg_response_lookup_total{result="miss"}']
            == 1
        )
        assert values["pcg_output_tokens_total"] == 2
        assert values["pcg_response_saved_usd_total"] == pytest.approx(float(first["pcg-cost-usd"]))
        assert values["pcg_response_bytes"] > 0
        out = io.StringIO()
        set_up_logging(out)
        try:
            for record in served.records[:2]:
                log_record(record)
        finally:
            structlog.reset_defaults()
    generated, given = (json.loads(line) for line in out.getvalue().splitlines())
    assert "kind" not in generated
    assert (given["kind"], given["usd"], given["saved_usd"]) == (
        "response_cache",
        "0.00000000",
        generated["usd"],
    )


async def test_what_the_prefix_cache_did_is_in_the_usage_again() -> None:
    """An answer that wrote a prefix is given with that usage; the prefix cache's own counts are
    those of one request."""
    backend = ScriptedBackend(lambda request: Script(report_for(request, 1000, 900, warm=False)))
    marked = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    async with serving(backend, ON) as served:
        told = [(await ask(served, system=marked, model=MODEL))[0]["usage"] for _ in range(2)]
    assert told[0] == told[1]
    assert told[0]["cache_creation_input_tokens"] == 900


# Streams ------------------------------------------------------------------------------------------


def kinds(stream: str) -> list[str]:
    """The events of an SSE stream in order, without repetitions: by type, or by what a chunk of
    Chat Completions holds."""
    found: list[str] = []
    for line in stream.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            kind = (
                event.get("type")
                or "+".join(sorted({k for c in event["choices"] for k in c.get("delta", c)}))
                or "usage"
            )
            found += [kind] if found[-1:] != [kind] else []
    return found


@pytest.mark.parametrize("api", ASKED)
async def test_a_stream_is_replayed_in_the_order_of_its_format(api: str) -> None:
    """The events of a replay are those of the first stream, in its order; the headers know the cost
    from the start."""
    async with serving(ScriptedBackend(), ON) as served:
        first, bought = await ask(served, api, stream=True)
        second, given = await ask(served, api, stream=True)
    assert kinds(second) == kinds(first)
    assert "pcg-cost-usd" not in bought
    assert members(bought)["pcg-resp"] == {"fwd": "uri-miss"}
    assert (given["pcg-cost-usd"], list(members(given))) == ("0.00000000", ["pcg-resp"])


CALLS = (
    TextDelta("r", "Let me ", (1,), thinking=True),
    TextDelta("r", "think. ", (2,), thinking=True),
    TextDelta("r", "I look", (3,)),
    TextDelta("r", " it up.", (4,)),
    ToolCallDelta("r", 0, "find", '{"q": ', (5,)),
    ToolCallDelta("r", 0, None, '"x"}', (6,)),
    ToolCallDelta("r", 1, "open", "{}", (7,)),
)


async def test_the_official_clients_read_replays() -> None:
    """Reasoning, text and two calls, accumulated by the SDKs from a replayed stream: the same
    message as the first time."""
    backend = ScriptedBackend(Script(texts=(), deltas=CALLS))
    body: dict[str, Any] = {
        "max_tokens": 50,
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    async with (
        serving(backend, ANYTHING) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as claude,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        messages = []
        for _ in range(2):
            async with claude.messages.stream(**body, tools=[tool("find"), tool("open")]) as stream:
                messages.append(
                    (await stream.get_final_message()).model_dump(
                        exclude={"id": True, "content": {"__all__": "id"}}
                    )
                )
        assert messages[0] == messages[1]
        assert [block["type"] for block in messages[1]["content"]] == [
            "text",
            "tool_use",
            "tool_use",
        ]
        responses = []
        for _ in range(2):
            async with gpt.responses.stream(model=MODEL, input="Hi", temperature=0) as events:
                responses.append(await events.get_final_response())
        assert [item.type for item in responses[1].output] == [
            item.type for item in responses[0].output
        ]
        assert responses[1].output_text == responses[0].output_text == "I look it up."
        assert responses[1].usage == responses[0].usage
        kept = await gpt.responses.retrieve(responses[1].id)
        assert kept.output_text == "I look it up."
    assert len(backend.requests) == 2


@pytest.mark.parametrize("api", ASKED)
@pytest.mark.parametrize("first_streams", [True, False])
async def test_a_stream_and_a_whole_answer_are_one(api: str, first_streams: bool) -> None:
    """What was streamed is given whole, and the other way round."""
    backend = ScriptedBackend()
    async with serving(backend, ON) as served:
        for stream in (first_streams, not first_streams):
            told, _ = await ask(served, api, stream=stream)
            text = told if stream else json.dumps(told)
            assert "world" in text
    assert len(backend.requests) == 1


async def test_several_answers_and_their_probabilities_come_again() -> None:
    """`n` answers with log-probabilities: all of them, whole and streamed."""

    def script(request: Request) -> Script:
        word = request.id.partition(".")[2] or "0"
        return Script(
            texts=(),
            deltas=tuple(TextDelta("r", word, (i,), logprobs=(logprob(word),)) for i in range(3)),
        )

    def logprob(word: str) -> TokenLogprobs:
        return TokenLogprobs(TokenLogprob(1, -0.5, word.encode()))

    backend = ScriptedBackend(script)
    more: dict[str, Any] = {"n": 2, "logprobs": True}
    async with serving(backend, ON) as served:
        first, _ = await ask(served, "chat", **more)
        second, _ = await ask(served, "chat", **more)
        stream, _ = await ask(served, "chat", stream=True, **more)
    assert second["choices"] == first["choices"]
    assert [choice["message"]["content"] for choice in second["choices"]] == ["000", "111"]
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    streamed = [c for chunk in chunks for c in chunk["choices"] if c.get("logprobs")]
    assert {c["index"]: len(c["logprobs"]["content"]) for c in streamed} == {0: 3, 1: 3}
    assert len(backend.requests) == 2


async def test_several_prompts_come_again() -> None:
    """A legacy completion of two prompts, two answers each: in their places, with the usage of both
    prompts."""
    backend = ScriptedBackend(lambda request: Script(texts=(str(request.prompt.raw), "!")))
    async with serving(backend, ON) as served:
        told = [
            (await ask(served, "completions", prompt=["a", "b"], n=2, seed=1))[0] for _ in range(2)
        ]
        swapped, _ = await ask(served, "completions", prompt=["b", "a"], n=2, seed=1)
    assert [choice["text"] for choice in told[1]["choices"]] == ["a!", "a!", "b!", "b!"]
    assert (told[0]["choices"], told[0]["usage"]) == (told[1]["choices"], told[1]["usage"])
    assert [choice["text"] for choice in swapped["choices"]] == ["b!", "b!", "a!", "a!"]
    assert len(backend.requests) == 8


async def test_an_answer_in_the_background_comes_again() -> None:
    """Nobody waits for it the second time either; it is kept under a name of its own."""
    backend = ScriptedBackend()
    async with (
        serving(backend, ON) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as gpt,
    ):
        names = []
        for _ in range(2):
            response = await gpt.responses.create(
                model=MODEL, input="Hi", temperature=0, background=True
            )
            async with asyncio.timeout(20):
                while (response := await gpt.responses.retrieve(response.id)).status != "completed":
                    await asyncio.sleep(0)
            assert response.output_text == "Hello world"
            names.append(response.id)
        assert len(set(names)) == 2
        assert [record.kind for record in served.records if record.bill is not None] == [
            "engine",
            "response_cache",
        ]
    assert len(backend.requests) == 1


# What clients, failures, time and room decide -----------------------------------------------------


@pytest.mark.parametrize(
    ("control", "num_asked", "member"),
    [
        ("no-cache", 3, {"fwd": "request", "detail": "no-cache", "stored": True, "ttl": 600}),
        ("no-store", 2, {"fwd": "bypass", "detail": "no-store"}),
        ("max-age=30", 3, {"fwd": "request", "detail": "max-age", "stored": True, "ttl": 600}),
        ("max-age=90", 1, {"hit": True, "ttl": 540}),
        ("only-if-cached", 1, {"hit": True, "ttl": 540}),
    ],
)
async def test_cache_control_is_respected(
    control: str, num_asked: int, member: dict[str, Any]
) -> None:
    """`no-cache` and a younger `max-age` ask again and keep the new answer; `no-store` asks and
    keeps nothing."""
    told = iter(("first", "second", "third"))
    backend = ScriptedBackend(lambda request: Script(texts=(next(told),)))
    async with serving(backend, ON) as served:
        await ask(served)
        served.clock.advance(60)
        _, headers = await ask(served, headers={"cache_control": control})
        assert members(headers)["pcg-resp"] == member
        body, _ = await ask(served)
        if num_asked == 3:
            served.clock.advance(599)
            await ask(served)
    assert body["content"][0]["text"] == ("second" if num_asked == 3 else "first")
    assert len(backend.requests) == min(num_asked, 2)


async def test_an_answer_has_its_time() -> None:
    """From the moment it was asked for, and use does not renew it."""
    backend = ScriptedBackend()
    async with serving(backend, "caching: {responses: {enabled: true, ttl: 100s}}") as served:
        for seconds in (0, 60, 39.5):
            served.clock.advance(seconds)
            _, headers = await ask(served)
        assert members(headers)["pcg-resp"] == {"hit": True, "ttl": 0}
        served.clock.advance(0.5)
        _, headers = await ask(served)
        assert members(headers)["pcg-resp"] == {"fwd": "stale", "stored": True, "ttl": 100}
    assert len(backend.requests) == 2


async def test_room_is_bounded_and_the_least_used_goes_first() -> None:
    """Three answers where two fit; one that fits nowhere is not kept."""
    backend = ScriptedBackend(
        lambda request: Script(texts=("x" * (5000 if request.sampling.max_tokens == 9 else 100),))
    )
    async with serving(backend, "caching: {responses: {enabled: true, bytes: 4000}}") as served:
        for limit in (1, 2, 1, 3):
            await ask(served, max_tokens=limit)
        assert len(backend.requests) == 3
        _, headers = await ask(served, max_tokens=9)
        assert members(headers)["pcg-resp"] == {"fwd": "uri-miss"}
        for limit, num_asked in ((1, 4), (3, 4), (2, 5)):
            await ask(served, max_tokens=limit)
            assert len(backend.requests) == num_asked
        async with served.http.get("/admin/cache/stat") as response:
            (place,) = (await response.json())["contents"]
        assert (place["tier"], place["num_objects"]) == ("responses", 2)
        assert 2000 < place["nbytes"] <= 4000


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_broke_off_is_not_kept(stream: bool) -> None:
    """The next request asks the model."""
    scripts = iter([Script(error=EngineFailed("broken"), error_after=1), Script()])
    backend = ScriptedBackend(lambda request: next(scripts))
    path, body = ASKED["anthropic"]
    async with serving(backend, ON) as served:
        async with served.http.post(
            path, json=body | {"temperature": 0, "stream": stream}, headers=ANTHROPIC
        ) as response:
            assert "error" in await response.text()
        told, _ = await ask(served)
    assert told["content"][0]["text"] == "Hello world"
    assert len(backend.requests) == 2


async def test_flushing_forgets_answers_too() -> None:
    """A tenant's, or all; what is on its way when everything is to be forgotten is not kept
    afterwards."""
    gate = asyncio.Event()
    backend = ScriptedBackend(
        lambda request: Script(before_text={0: gate} if request.sampling.max_tokens == 7 else {})
    )
    async with serving(backend, ON) as served:
        await ask(served)
        late = asyncio.create_task(ask(served, max_tokens=7))
        await backend.held.wait()
        async with served.http.post("/admin/cache/flush") as response:
            assert response.status == 200
        gate.set()
        await late
        for limit in (5, 7):
            await ask(served, max_tokens=limit)
    assert len(backend.requests) == 4


async def test_a_client_that_wants_nothing_stored_is_heard() -> None:
    """`store: false` of the Responses API."""
    backend = ScriptedBackend()
    async with serving(backend, ON) as served:
        told = [await ask(served, "responses", store=False) for _ in range(2)]
    assert len(backend.requests) == 2
    assert members(told[1][1])["pcg-resp"] == {"fwd": "bypass", "detail": "no-store"}


BODIES: list[tuple[str, Callable[..., dict[str, object]]]] = [
    ("/v1/messages", anthropic_body),
    ("/v1/chat/completions", openai_body),
]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=["anthropic", "chat"])
async def test_off_by_default(path: str, body: Callable[..., dict[str, object]]) -> None:
    """Nothing is kept, and `Cache-Status` has one member."""
    backend = ScriptedBackend()
    async with serving(backend) as served:
        for _ in range(2):
            _, headers = await post(served, path, body(temperature=0))
    assert len(backend.requests) == 2
    assert list(members(headers)) == ["pcg-kv"]
