"""One client of any OpenAI-compatible server: a streamed chat answer, timed as a client sees it.
Knows no gateway."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from bench.traffic import sse_events

TIMEOUT_S: Final = 900.0
"""A cold prompt behind seven others, on a busy machine."""


class ServerRefused(Exception):
    """The server did not answer a request of the load with 200; holds what it said."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """One streamed answer. Times in seconds; `begin_s` on the clock of `time.perf_counter`, the
    others from there.

    Counts are those of the server's usage; prompt and cached tokens are 0 where it does not tell
    them.
    """

    begin_s: float
    ttft_s: float
    total_s: float
    num_prompt: int
    num_cached: int
    num_output: int
    text: str

    @property
    def end_s(self) -> float:
        return self.begin_s + self.total_s

    @property
    def decode_s(self) -> float:
        """Seconds per token after the first one."""
        return (self.total_s - self.ttft_s) / max(1, self.num_output - 1)


class ChatClient:
    """Asks one model of one server. Greedy, and to the last allowed token where the server can be
    told so."""

    def __init__(
        self, session: aiohttp.ClientSession, base_url: str, model: str, headers: Mapping[str, str]
    ) -> None:
        self._session = session
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._model = model
        self._headers = headers
        self._options: dict[str, Any] = {"ignore_eos": True}

    async def probe(self) -> None:
        """Ask for one token, to learn whether the server knows `ignore_eos`. Raises
        `ServerRefused`."""
        hello = [Message("user", "Hello.")]
        try:
            await self.ask(hello, 1)
        except ServerRefused:
            self._options = {}
            await self.ask(hello, 1)

    async def ask(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """One answer. Raises `ServerRefused`."""
        body = {
            "model": self._model,
            "messages": [{"role": message.role, "content": message.text} for message in messages],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
        }
        begin_s = time.perf_counter()
        async with self._session.post(self._url, json=body, headers=self._headers) as answer:
            if answer.status != 200:
                raise ServerRefused(f"{self._url}: {answer.status} {(await answer.text())[:400]}")
            return await _read(answer.content, begin_s)


async def _read(content: aiohttp.StreamReader, begin_s: float) -> Reply:
    """The reply whose events these are; the last text ends it. A server that sends no usage is
    taken to send a token a piece.

    Raises `ServerRefused` for an error in the stream.
    """
    first_s = last_s = 0.0
    pieces: list[str] = []
    usage: Mapping[str, Any] = {}
    async for event in sse_events(content):
        if "error" in event:
            raise ServerRefused(str(event["error"])[:400])
        piece = event["choices"][0]["delta"].get("content") if event.get("choices") else None
        if piece:
            last_s = time.perf_counter() - begin_s
            first_s = first_s or last_s
            pieces.append(piece)
        usage = event.get("usage") or usage
    details = usage.get("prompt_tokens_details") or {}
    whole_s = time.perf_counter() - begin_s
    return Reply(
        begin_s=begin_s,
        ttft_s=first_s or whole_s,
        total_s=last_s or whole_s,
        num_prompt=usage.get("prompt_tokens", 0),
        num_cached=details.get("cached_tokens") or 0,
        num_output=usage.get("completion_tokens", len(pieces)),
        text="".join(pieces),
    )
