"""`pcg serve` as a stranger runs it: a model in a real process, the official SDKs,
a clock the test moves.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import psutil
import pytest
from anthropic.types import Message
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.clocked import NOW_S, Clocked
from tools.serving import make_home

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MODEL = "claude-opus-5"
QUESTIONS = ("How deep is berth 12?", "Which berth is the deepest of all?")


@dataclass(slots=True, kw_only=True)
class Process(Clocked):
    """A running `pcg serve`."""

    pid: int

    def worker(self) -> psutil.Process:
        """The engine's process."""
        return next(
            child
            for child in psutil.Process(self.pid).children()
            if "engine.worker" in " ".join(child.cmdline())
        )

    def metric(self, name: str, **labels: str) -> float:
        """One sample of `/metrics`, 0 where there is none."""
        text = anthropic.Anthropic(base_url=self.url, api_key="k").get("/metrics", cast_to=str)
        families = text_string_to_metric_families(text)
        return next(
            (
                s.value
                for f in families
                for s in f.samples
                if s.name == name and labels.items() <= s.labels.items()
            ),
            0.0,
        )


@pytest.fixture(scope="module")
def served(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """The command on a free port, until the module's tests are over; it must then end by itself
    with status 0."""
    folder = tmp_path_factory.mktemp("serve")
    clock, policy = folder / "now", folder / "policy.yaml"
    clock.write_text(str(NOW_S))
    policy.write_text(
        f"models: [{{source: '{served_model}', engine: {{kv_bytes: 1GiB}}}}]\nserver: {{drain: "
        f"{{delay: 0s}}}}"
    )
    environ = {key: value for key, value in os.environ.items() if key not in ("PORT", "PCG_POLICY")}
    environ |= {"PCG_TEST_CLOCK": str(clock), "PCG_HOME": str(make_home(folder / "home"))}
    command = [sys.executable, "-m", "gateway.cli", "serve", "--port", "0", "--policy", str(policy)]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            ready = next((line for line in process.stdout if "ready at" in line), "")
            found = re.search(r"http://\S+", ready)
            assert found, f"pcg serve ended with status {process.poll()}"
            yield Process(found[0], clock, pid=process.pid)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.fixture
def claude(served: Process) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=served.url, api_key="k", max_retries=0, timeout=280
    ) as client:
        yield client


@pytest.fixture
def gpt(served: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="k", max_retries=0, timeout=280
    ) as client:
        yield client


def manual(num_lines: int = 300) -> str:
    """A text that no cache has seen; about thirteen tokens a line."""
    lines = (f"Berth {i} of the harbour is {i * 7 % 13} metres deep." for i in range(num_lines))
    return f"Edition {uuid.uuid4().hex}.\n" + "\n".join(lines)


def ask(
    client: anthropic.Anthropic,
    system: str,
    question: str,
    *,
    stream: bool = False,
    ttl: str = "5m",
) -> Message:
    """One answer about a marked system text; checks that body and headers of the answer agree."""
    marker = {"type": "ephemeral", "ttl": ttl}
    wanted = {
        "model": MODEL,
        "max_tokens": 4,
        "system": [{"type": "text", "text": system, "cache_control": marker}],
        "messages": [{"role": "user", "content": question}],
    }
    if stream:
        with client.messages.stream(**wanted) as events:  # type: ignore[arg-type]
            message, headers = events.get_final_message(), events.response.headers
    else:
        raw = client.messages.with_raw_response.create(**wanted)  # type: ignore[call-overload]
        message, headers = raw.parse(), raw.headers
    usage = message.usage
    assert headers["pcg-cache-read-tokens"] == str(usage.cache_read_input_tokens)
    assert headers["pcg-cache-write-tokens"] == str(usage.cache_creation_input_tokens)
    assert headers["pcg-uncached-tokens"] == str(usage.input_tokens)
    skipped = int(headers["pcg-prefill-skipped-tokens"])
    assert usage.cache_read_input_tokens <= skipped < usage.cache_read_input_tokens + 32
    return message


@pytest.mark.parametrize("stream", [False, True])
def test_written_once_read_again(
    served: Process, claude: anthropic.Anthropic, stream: bool
) -> None:
    """A marked system text of about 4,000 tokens: written, then read to the token; both with the
    input are the prompt.

    `/metrics` counts the same tokens.
    """
    system = manual()
    before = [
        served.metric("pcg_prompt_tokens_total", kind=kind)
        for kind in ("write_5m", "read", "uncached")
    ]
    for i, question in enumerate(QUESTIONS):
        usage = ask(claude, system, question, stream=stream).usage
        counted = claude.messages.count_tokens(
            model=MODEL, system=system, messages=[{"role": "user", "content": question}]
        )
        parts = (
            usage.cache_creation_input_tokens or 0,
            usage.cache_read_input_tokens or 0,
            usage.input_tokens,
        )
        assert sum(parts) == counted.input_tokens
        before = [count + part for count, part in zip(before, parts, strict=True)]
        if i == 0:
            written = parts[0]
            assert written > 3500
            assert parts[1] == 0
        else:
            assert parts[:2] == (0, written)
    after = [
        served.metric("pcg_prompt_tokens_total", kind=kind)
        for kind in ("write_5m", "read", "uncached")
    ]
    assert after == before


def test_time_runs_out(served: Process, claude: anthropic.Anthropic) -> None:
    """Past its TTL a 5-minute marker is a miss again and a 1-hour marker is not; each read
    renews."""
    short, long = manual(60), manual(61)
    for system, ttl in ((short, "5m"), (long, "1h")):
        assert ask(claude, system, QUESTIONS[0], ttl=ttl).usage.cache_read_input_tokens == 0
    served.advance(290)
    assert (ask(claude, short, QUESTIONS[1]).usage.cache_read_input_tokens or 0) > 0
    served.advance(290)
    assert (ask(claude, short, QUESTIONS[0]).usage.cache_read_input_tokens or 0) > 0
    served.advance(301)
    usage = ask(claude, short, QUESTIONS[0]).usage
    assert (usage.cache_read_input_tokens, (usage.cache_creation_input_tokens or 0) > 0) == (
        0,
        True,
    )
    usage = ask(claude, long, QUESTIONS[0], ttl="1h").usage
    assert (usage.cache_read_input_tokens or 0) > 0
    assert usage.cache_creation_input_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_openai_caches_without_markers(gpt: openai.OpenAI, stream: bool) -> None:
    """Older models read any common beginning, in steps of 128 tokens: here the system text, under
    another question."""
    system = manual(120)
    cached = [complete(gpt, "gpt-4o", [system, question], stream=stream) for question in QUESTIONS]
    assert cached[0] == 0
    assert cached[1] > 1024
    assert cached[1] % 128 == 0


@pytest.mark.parametrize("stream", [False, True])
def test_openai_marks_are_written_once_and_read_again(gpt: openai.OpenAI, stream: bool) -> None:
    """A marked system text of about 4,000 tokens through the other SDK: the same numbers in its own
    arithmetic."""
    system = manual()
    first, second = (
        complete_marked(gpt, system, question, stream=stream) for question in QUESTIONS
    )
    assert first.cached == 0
    assert first.written > 3500
    assert (second.cached, second.written) == (first.written, 0)
    for counts in (first, second):
        assert 0 < counts.prompt - counts.cached - counts.written < 32


def test_openai_marks_run_out(served: Process, gpt: openai.OpenAI) -> None:
    """Past its 30 minutes a marker is a miss again; a 12-hour marker is not."""
    short, long = manual(120), manual(121)
    for system, ttl in ((short, "30m"), (long, "12h")):
        assert complete_marked(gpt, system, QUESTIONS[0], ttl=ttl).cached == 0
    served.advance(1801)
    again = complete_marked(gpt, short, QUESTIONS[1])
    assert (again.cached, again.written > 1024) == (0, True)
    kept = complete_marked(gpt, long, QUESTIONS[1], ttl="12h")
    assert (kept.cached > 1024, kept.written) == (True, 0)


def test_counting_is_what_the_prompt_comes_to(claude: anthropic.Anthropic) -> None:
    """`count_tokens` of 50 random bodies (tools, systems, calls, results, Korean, emoji) is the
    prompt they are billed for."""
    draw = random.Random(50)
    for _ in range(50):
        body = random_body(draw)
        counted = claude.messages.count_tokens(model=MODEL, **body)
        usage = claude.messages.create(model=MODEL, max_tokens=1, **body).usage
        parts = (
            usage.input_tokens,
            usage.cache_read_input_tokens or 0,
            usage.cache_creation_input_tokens or 0,
        )
        assert sum(parts) == counted.input_tokens


def random_body(draw: random.Random) -> dict[str, Any]:
    """A valid request of the Messages API without model and limit; now and then with a marker."""
    words = ("harbour", "깊이", "🚢", "é", "<|im_end|>", "{'a': 1}", "\n\n", "depth", "12", "  ")

    def text() -> str:
        return "say " + " ".join(draw.choice(words) for _ in range(draw.randint(1, 30)))

    def block() -> dict[str, Any]:
        marker = {"cache_control": {"type": "ephemeral"}} if draw.random() < 0.2 else {}
        return {"type": "text", "text": text(), **marker}

    messages: list[dict[str, Any]] = [
        {"role": "user", "content": text() if draw.random() < 0.5 else [block(), block()]}
    ]
    body: dict[str, Any] = {"messages": messages}
    if draw.random() < 0.6:
        body["system"] = text() if draw.random() < 0.5 else [block()]
    if draw.random() < 0.5:
        schema = {
            "type": "object",
            "properties": {"berth": {"type": "integer", "description": text()}},
        }
        body["tools"] = [{"name": "depth", "description": text(), "input_schema": schema}]
        call = {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "depth",
            "input": {"berth": draw.randint(1, 99)},
        }
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": text()}
        messages += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
    for _ in range(draw.randint(0, 2)):
        messages += [{"role": "assistant", "content": text()}, {"role": "user", "content": text()}]
    return body


def test_openai_conversations_hit(gpt: openai.OpenAI) -> None:
    """Newer models read up to the end of the message that was the last one a turn ago."""
    system = manual(120)
    assert complete(gpt, "gpt-5.6", [system, QUESTIONS[0]]) == 0
    assert complete(gpt, "gpt-5.6", [system, QUESTIONS[0], "Two metres.", QUESTIONS[1]]) > 1024


@dataclass(frozen=True, slots=True)
class Counts:
    """What the Chat Completions API reports of a prompt."""

    prompt: int
    cached: int
    written: int


def complete_marked(
    client: openai.OpenAI, system: str, question: str, *, ttl: str = "30m", stream: bool = False
) -> Counts:
    """A newer model asked about a marked system text; nothing is cached but what is marked."""
    part = {
        "type": "text",
        "text": system,
        "prompt_cache_breakpoint": {"mode": "explicit", "ttl": ttl},
    }
    wanted: dict[str, Any] = {
        "model": "gpt-5.6",
        "max_completion_tokens": 4,
        "prompt_cache_options": {"mode": "explicit"},
        "messages": [{"role": "system", "content": [part]}, {"role": "user", "content": question}],
    }
    if stream:
        *_, last = client.chat.completions.create(
            **wanted, stream=True, stream_options={"include_usage": True}
        )
        usage = last.usage
    else:
        usage = client.chat.completions.create(**wanted).usage
    details = usage.prompt_tokens_details
    return Counts(usage.prompt_tokens, details.cached_tokens, details.cache_write_tokens)


def complete(client: openai.OpenAI, model: str, texts: list[str], *, stream: bool = False) -> int:
    """Tokens read from the cache by a conversation of system, user, assistant, ... texts."""
    roles = ("system", "user", "assistant", "user")
    wanted: dict[str, Any] = {
        "model": model,
        "max_completion_tokens": 4,
        "messages": [
            {"role": role, "content": text} for role, text in zip(roles, texts, strict=False)
        ],
    }
    if stream:
        *_, last = client.chat.completions.create(
            **wanted, stream=True, stream_options={"include_usage": True}
        )
        usage = last.usage
    else:
        usage = client.chat.completions.create(**wanted).usage
    return int(usage.prompt_tokens_details.cached_tokens)


def test_too_long_for_the_model(claude: anthropic.Anthropic, gpt: openai.OpenAI) -> None:
    """A prompt beyond the context window is each provider's 400."""
    system = manual(700)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(claude, system, QUESTIONS[0])
    with pytest.raises(openai.BadRequestError, match="context length") as told:
        gpt.chat.completions.create(model="gpt-5.6", messages=[{"role": "user", "content": system}])
    assert told.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "served_model", [pytest.param("default", marks=pytest.mark.long)], indirect=True
)
@pytest.mark.parametrize(
    "question", ["한국어로 짧게 인사해 주세요. 안녕하세요 👋", "Repeat: 안녕 🎉🎊 세계"]
)
def test_no_broken_characters(claude: anthropic.Anthropic, question: str) -> None:
    """Streamed pieces of Korean and emoji join to the text; no character is broken, not even at
    `max_tokens`."""
    with claude.messages.stream(
        model=MODEL, max_tokens=24, messages=[{"role": "user", "content": question}]
    ) as stream:
        pieces = list(stream.text_stream)
        assert "".join(pieces) == stream.get_final_text()
    assert "\ufffd" not in "".join(pieces)


def test_leaving_a_stream_stops_the_engine(served: Process, claude: anthropic.Anthropic) -> None:
    """After the client has closed its stream nothing runs in the engine any more, long before the
    answer's end."""
    story = [{"role": "user", "content": "Tell a very long story."}]
    with claude.messages.stream(model=MODEL, max_tokens=6000, messages=story) as stream:  # type: ignore[arg-type]
        next(iter(stream.text_stream))
    before = served.metric("pcg_engine_aborted_total")
    deadline_s = time.monotonic() + 60
    while served.metric("pcg_engine_open") and time.monotonic() < deadline_s:
        pass
    assert served.metric("pcg_engine_open") == 0
    assert served.metric("pcg_engine_aborted_total") >= max(before, 1)


def test_killing_the_worker(served: Process, claude: anthropic.Anthropic) -> None:
    """SIGKILL in the middle of a stream: an error event there, the gateway stays up, the next
    request is answered."""
    restarts = served.metric("pcg_worker_restarts_total")
    with pytest.raises(anthropic.APIStatusError, match="not tried again"):
        count_until_killed(served, claude)
    answer = claude.messages.create(
        model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "Say hello."}]
    )
    assert answer.content
    assert served.metric("pcg_worker_restarts_total") == restarts + 1


def count_until_killed(served: Process, claude: anthropic.Anthropic) -> None:
    """Reads a long stream whose worker is killed at the first text."""
    count = "Count slowly from one to one thousand, one number a line."
    with claude.messages.stream(
        model=MODEL, max_tokens=2000, messages=[{"role": "user", "content": count}]
    ) as stream:
        for i, _ in enumerate(stream.text_stream):
            if i == 0:
                served.worker().kill()
