"""Asks one gateway through the official SDK, by either API, whole or streamed,
and reads what each says was cached.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import openai

from tests.fakes.clocked import Clocked

MODEL: Final = "smollm2-135m-instruct"
"""The model's own id: the rules of OpenAI's newest models, for prompts from 64 tokens on."""
BREAK: Final = {"mode": "explicit"}
EXPLICIT: Final = {"mode": "explicit"}

Api: TypeAlias = Literal["chat", "responses"]


@dataclass(slots=True)
class Served(Clocked):
    """A running gateway, and clients of it."""

    def client(self, key: str = "key-one") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=280)


@dataclass(frozen=True, slots=True)
class Told:
    """What one answer said. `written` is by TTL name where the API tells, `answer` the SDK's
    object."""

    prompt: int
    read: int
    written: int
    by_ttl: dict[str, int]
    text: str
    answer: Any
    headers: Any


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks with messages in Chat Completions' form; the Responses API gets the same as items."""

    served: Served
    api: Api
    stream: bool

    def __call__(self, *messages: dict[str, Any], key: str = "key-one", **more: Any) -> Told:
        """One answer of one token. Body and headers must agree."""
        more = {"model": MODEL} | more
        with self.served.client(key) as client:
            told = (
                self._chat(client, messages, more)
                if self.api == "chat"
                else self._responses(client, messages, more)
            )
        assert told.headers["pcg-cache-read-tokens"] == str(told.read)
        assert told.headers["pcg-cache-write-tokens"] == str(told.written)
        assert int(told.headers["pcg-prefill-skipped-tokens"]) >= told.read
        assert told.read + told.written <= told.prompt
        return told

    def _chat(
        self, client: openai.OpenAI, messages: Sequence[dict[str, Any]], more: dict[str, Any]
    ) -> Told:
        more = {"max_completion_tokens": 1} | more
        if not self.stream:
            raw = client.chat.completions.with_raw_response.create(messages=list(messages), **more)
            answer = raw.parse()
            return chat_told(
                answer.usage, answer.choices[0].message.content or "", answer, raw.headers
            )
        raw = client.chat.completions.with_raw_response.create(
            messages=list(messages), stream=True, stream_options={"include_usage": True}, **more
        )
        chunks = list(raw.parse())
        assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        return chat_told(chunks[-1].usage, text, chunks, raw.headers)

    def _responses(
        self, client: openai.OpenAI, messages: Sequence[dict[str, Any]], more: dict[str, Any]
    ) -> Told:
        more = {"max_output_tokens": 1} | {
            name: flat(value) if name == "tools" else value for name, value in more.items()
        }
        if "reasoning_effort" in more:
            more["reasoning"] = {"effort": more.pop("reasoning_effort")}
        asked = [item(message) for message in messages]
        if not self.stream:
            raw = client.responses.with_raw_response.create(input=asked, **more)
            return response_told(raw.parse(), raw.headers)
        raw = client.responses.with_raw_response.create(input=asked, stream=True, **more)
        events = list(raw.parse())
        assert [event.sequence_number for event in events] == list(range(len(events)))
        return response_told(events[-1].response, raw.headers)


def chat_told(usage: Any, text: str, answer: Any, headers: Any) -> Told:
    details = usage.prompt_tokens_details
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return Told(
        usage.prompt_tokens,
        details.cached_tokens,
        details.cache_write_tokens,
        {},
        text,
        answer,
        headers,
    )


def response_told(response: Any, headers: Any) -> Told:
    usage = response.usage
    details = usage.input_tokens_details
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    split = details.cache_write_tokens_details
    by_ttl = {} if split is None else {"30m": split.ttl_30m_tokens, "12h": split.ttl_12h_tokens}
    assert sum(by_ttl.values()) == details.cache_write_tokens
    return Told(
        usage.input_tokens,
        details.cached_tokens,
        details.cache_write_tokens,
        by_ttl,
        response.output_text,
        response,
        headers,
    )


def filler(num_lines: int = 8) -> str:
    """A text that no cache has seen; about thirteen tokens a line."""
    lines = (f"Berth {i} of the harbour is {i * 7 % 13} metres deep." for i in range(num_lines))
    return f"Edition {uuid.uuid4().hex}.\n" + "\n".join(lines)


def text(words: str, mark: dict[str, Any] | None = None) -> dict[str, Any]:
    """A part, marked or not."""
    return {"type": "text", "text": words} | ({"prompt_cache_breakpoint": mark} if mark else {})


def said(role: str, *parts: dict[str, Any] | str) -> dict[str, Any]:
    """A turn of parts, or of one text."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return {"role": role, "content": parts[0]}
    return {
        "role": role,
        "content": [text(part) if isinstance(part, str) else part for part in parts],
    }


def user(*parts: dict[str, Any] | str) -> dict[str, Any]:
    return said("user", *parts)


def tool(name: str) -> dict[str, Any]:
    function = {
        "name": name,
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    }
    return {"type": "function", "function": function}


def flat(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools as the Responses API has them."""
    return [{"type": "function", "strict": None} | each["function"] for each in tools]


def item(message: dict[str, Any]) -> dict[str, Any]:
    """A turn as an input item, under an id that is new every time."""
    fresh = {"type": "message", "id": f"msg_{uuid.uuid4().hex}"}
    if type(message["content"]) is str:
        return fresh | message
    kind = "output_text" if message["role"] == "assistant" else "input_text"
    return fresh | message | {"content": [part | {"type": kind} for part in message["content"]]}
