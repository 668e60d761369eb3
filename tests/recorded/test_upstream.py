"""Recorded traffic of providers, replayed by an upstream: requests arrive and answers return byte
for byte, usage is theirs."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anthropic
import openai
import orjson
import pytest

from gateway.bill.record import Record
from policies.pricing import Usage
from tests.fakes.backend import ScriptedBackend
from tests.fakes.upstream import SSE, FakeUpstream, Got, Say
from tests.gateway.serving import Served, serving

ROOT: Final = Path(__file__).parents[1]
CLAUDE: Final = ROOT / "data" / "anthropic-cassettes" / "interactions.jsonl.gz"
GPT: Final = Path(__file__).parent / "upstream" / "interactions.jsonl.gz"
PATHS: Final = {"messages": "/v1/messages", "count_tokens": "/v1/messages/count_tokens"}


def rows(path: Path) -> list[dict[str, Any]]:
    """Each with its `path`."""
    lines = gzip.decompress(path.read_bytes()).splitlines()
    return [
        row | {"path": row.get("path") or PATHS[row["api"]]} for row in map(orjson.loads, lines)
    ]


def is_stream(row: dict[str, Any]) -> bool:
    return isinstance(row["response"], str)


def answer_bytes(row: dict[str, Any]) -> bytes:
    return row["response"].encode() if is_stream(row) else orjson.dumps(row["response"])


@dataclass(slots=True)
class Replay:
    """Answers with the row it is told, a stream in pieces of 100 bytes."""

    row: dict[str, Any]

    def __call__(self, got: Got) -> Say:
        body = answer_bytes(self.row)
        headers = {
            name: text
            for name, text in self.row.get("headers", {}).items()
            if isinstance(text, str)
        }
        if not is_stream(self.row):
            return Say((body,), self.row["status"], {"Content-Type": "application/json"} | headers)
        return Say(tuple(body[i : i + 100] for i in range(0, len(body), 100)), headers=SSE)


@asynccontextmanager
async def replaying(api: str) -> AsyncIterator[tuple[Replay, FakeUpstream, Served]]:
    """A gateway in front of an upstream that replays."""
    replay = Replay({})
    async with FakeUpstream(replay).listening() as upstream:
        policy = f"models: []\nbackends: [{{name: up, api: {api}, base_url: '{upstream.url}'}}]"
        async with serving(ScriptedBackend(), policy) as served:
            yield replay, upstream, served


def messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The JSON objects of an answer, found without any of our code; some bodies were not
    recorded."""
    if not is_stream(row):
        return [row["response"]] if row["response"] else []
    lines = (
        line.removeprefix("data:").strip()
        for line in row["response"].splitlines()
        if line.startswith("data:")
    )
    return [json.loads(line) for line in lines if line.startswith("{")]


def usages(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Every usage object of an answer, in order."""
    holders = [
        holder
        for told in messages(row)
        for holder in (told.get("message"), told.get("response"), told)
    ]
    return [
        holder["usage"] for holder in holders if isinstance(holder, dict) and holder.get("usage")
    ]


def expected_anthropic(found: list[dict[str, Any]]) -> Usage:
    """Of a merged usage that has all of Anthropic's fields."""
    last = {name: value for usage in found for name, value in usage.items() if value is not None}
    split = last.get("cache_creation", {})
    hour, short = (
        split.get("ephemeral_1h_input_tokens", 0),
        split.get("ephemeral_5m_input_tokens", 0),
    )
    written = [(3600.0, hour), (300.0, last.get("cache_creation_input_tokens", 0) - hour)]
    assert short + hour in (0, last.get("cache_creation_input_tokens", 0))
    return Usage(
        input=last["input_tokens"],
        cache_read=last.get("cache_read_input_tokens", 0),
        cache_write=tuple((ttl_s, tokens) for ttl_s, tokens in written if tokens),
        output=last["output_tokens"],
    )


async def replayed(
    replay: Replay, upstream: FakeUpstream, served: Served, row: dict[str, Any]
) -> Record:
    """One interaction, compared byte for byte in both directions."""
    replay.row = row
    body = orjson.dumps(row["request"], option=orjson.OPT_INDENT_2)
    async with served.http.post(
        row["path"], data=body, headers={"content-type": "application/json"}
    ) as response:
        assert response.status == row["status"]
        assert await response.read() == answer_bytes(row)
    assert upstream.got.pop().body == body
    return served.records[-1]


async def test_anthropics_recorded_traffic() -> None:
    """All 356: bodies equal, and every answer's usage is on the bill to the token, streamed or
    not."""
    num_billed = num_streams = 0
    async with replaying("anthropic") as (replay, upstream, served):
        for row in rows(CLAUDE):
            record = await replayed(replay, upstream, served, row)
            found = usages(row)
            assert (record.bill is not None) == (row["status"] == 200 and bool(found))
            assert record.model == row["request"]["model"]
            if record.bill is not None:
                assert record.bill.usage == expected_anthropic(found)
                num_billed += 1
                num_streams += is_stream(row)
    assert num_billed > 300
    assert num_streams > 30


async def test_recorded_traffic_in_openais_formats() -> None:
    """Nineteen hosts: bodies equal, prompt and output are those of the answer, and what it does not
    say is unknown."""
    notes: dict[tuple[str, ...], int] = {}
    async with replaying("openai") as (replay, upstream, served):
        for row in rows(GPT):
            record = await replayed(replay, upstream, served, row)
            notes[record.notes] = notes.get(record.notes, 0) + 1
            refused = row["status"] != 200 or any(message.get("error") for message in messages(row))
            assert record.outcome == ("failed" if refused else "answered")
            found = usages(row)
            if record.bill is None:
                assert row["status"] != 200 or not found
                continue
            told, usage = found[-1], record.bill.usage
            details = told.get("prompt_tokens_details") or told.get("input_tokens_details") or {}
            assert usage.num_prompt == told.get("prompt_tokens", told.get("input_tokens"))
            assert usage.output == told.get("completion_tokens", told.get("output_tokens"))
            assert usage.cache_read == (
                details.get("cached_tokens") or told.get("prompt_cache_hit_tokens") or 0
            )
            assert usage.num_written == (details.get("cache_write_tokens") or 0)
            assert ("cache_usage_unknown" in record.notes) == (
                details.get("cached_tokens") is None and "cached" not in str(told)
            )
    assert {(), ("cache_usage_unknown",), ("usage_unknown",)} <= set(notes)


def streams(path: Path, ending: str) -> list[dict[str, Any]]:
    """Those of a path that an SDK reads to the end."""
    found = [
        row
        for row in rows(path)
        if is_stream(row) and row["path"].endswith(ending) and messages(row)
    ]
    return [row for row in found if not any(message.get("error") for message in messages(row))]


@pytest.mark.parametrize(
    "row", streams(CLAUDE, "messages")[::8], ids=lambda row: row["source"].rpartition("/")[2]
)
async def test_anthropics_sdk_sees_the_same(row: dict[str, Any]) -> None:
    """The message it puts together is the same through the gateway and without."""
    async with replaying("anthropic") as (replay, upstream, served):
        replay.row = row
        seen = []
        for url in (upstream.url, served.url):
            async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
                asked = {
                    "model": "claude-sonnet-5",
                    "max_tokens": 5,
                    "messages": [{"role": "user", "content": "Hi"}],
                }
                async with client.beta.messages.stream(**asked) as stream:  # type: ignore[arg-type]
                    seen.append((await stream.get_final_message()).to_json())
        assert seen[0] == seen[1]


@pytest.mark.parametrize("row", streams(GPT, "completions")[::3], ids=lambda row: row["host"])
async def test_openais_sdk_sees_the_same_chunks(row: dict[str, Any]) -> None:
    """Every chunk is the same through the gateway and without."""
    async with replaying("openai") as (replay, upstream, served):
        replay.row = row
        seen = []
        for url in (upstream.url, served.url):
            async with openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key="k", max_retries=0
            ) as client:
                asked = {"model": "gpt-5.6", "messages": [{"role": "user", "content": "Hi"}]}
                chunks = await client.chat.completions.create(stream=True, **asked)  # type: ignore[call-overload]
                seen.append([chunk.to_json() async for chunk in chunks])
        assert seen[0] == seen[1]
        assert seen[0]


@pytest.mark.parametrize("row", streams(GPT, "responses")[:2], ids=lambda row: row["host"])
async def test_openais_sdk_sees_the_same_events(row: dict[str, Any]) -> None:
    """So is every event of a response."""
    async with replaying("openai") as (replay, upstream, served):
        replay.row = row
        seen = []
        for url in (upstream.url, served.url):
            async with openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key="k", max_retries=0
            ) as client:
                events = await client.responses.create(model="gpt-5.6", input="Hi", stream=True)
                seen.append([event.to_json() async for event in events])
        assert seen[0] == seen[1]
        assert seen[0]
