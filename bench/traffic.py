"""One client: asks a gateway for an answer as a stream and measures what a client can see.

Knows no table.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

DOCUMENT = Path(__file__).parents[1] / "examples" / "documents" / "prompt-caching.txt"
MODEL = "smollm2-135m-instruct"
"""The model's own id: its rules cache prompts from 64 tokens on."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One streamed answer. Times in seconds from sending the request; counts as the usage reports
    them."""

    ttft_s: float
    total_s: float
    num_read: int
    num_written: int
    num_input: int
    num_output: int
    num_skipped: int
    tier: str = ""
    """Where most of what was read came from."""

    @property
    def num_prompt(self) -> int:
        return self.num_read + self.num_written + self.num_input

    @property
    def decode_s(self) -> float:
        """Seconds per token after the first one."""
        return (self.total_s - self.ttft_s) / max(1, self.num_output - 1)


class Client:
    """Talks Anthropic's format to one gateway."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._base_url = base_url

    async def ask(self, system: str, question: str, *, max_tokens: int = 8) -> Measured:
        """One streamed answer to a question behind a marked system text. Raises
        `aiohttp.ClientResponseError`."""
        body = message_body(system, question) | {"max_tokens": max_tokens, "stream": True}
        begin_s = time.perf_counter()
        first_s: float | None = None
        usage: dict[str, int] = {}
        async with self._session.post(f"{self._base_url}/v1/messages", json=body) as answer:
            answer.raise_for_status()
            async for event in sse_events(answer.content):
                if event["type"] == "content_block_delta" and first_s is None:
                    first_s = time.perf_counter() - begin_s
                usage |= (event.get("message") or event).get("usage") or {}
            num_skipped = int(answer.headers["pcg-prefill-skipped-tokens"])
            tier = re.search(r"detail=(\w+)", answer.headers["Cache-Status"])
        total_s = time.perf_counter() - begin_s
        return Measured(
            ttft_s=first_s if first_s is not None else total_s,
            total_s=total_s,
            num_read=usage["cache_read_input_tokens"],
            num_written=usage["cache_creation_input_tokens"],
            num_input=usage["input_tokens"],
            num_output=usage["output_tokens"],
            num_skipped=num_skipped,
            tier=tier[1] if tier else "",
        )

    async def overhead(self, system: str, question: str) -> float:
        """Seconds of one whole answer of one token that were not spent computing tokens: everything
        this product adds."""
        body = message_body(system, question) | {"max_tokens": 1}
        begin_s = time.perf_counter()
        async with self._session.post(f"{self._base_url}/v1/messages", json=body) as answer:
            answer.raise_for_status()
            await answer.read()
            total_s = time.perf_counter() - begin_s
            timings = server_timings(answer.headers["Server-Timing"])
        return total_s - timings["prefill"] - timings["decode"]

    async def metrics(self) -> str:
        """What `/metrics` shows now."""
        async with self._session.get(f"{self._base_url}/metrics") as answer:
            answer.raise_for_status()
            return await answer.text()

    async def count(self, system: str, question: str) -> int:
        """Tokens of the prompt."""
        body = message_body(system, question)
        async with self._session.post(
            f"{self._base_url}/v1/messages/count_tokens", json=body
        ) as answer:
            answer.raise_for_status()
            return int((await answer.json())["input_tokens"])

    async def system_of(self, num_tokens: int, question: str) -> str:
        """A system text no cache has seen, with which the prompt has about `num_tokens` tokens (2 %
        off at most)."""
        text = f"Edition {uuid.uuid4().hex}.\n\n" + DOCUMENT.read_text(encoding="utf-8") * (
            1 + num_tokens // 3000
        )
        num_chars = len(text)
        for _ in range(5):
            num_chars = int(num_chars * num_tokens / await self.count(text[:num_chars], question))
        return text[:num_chars]


def server_timings(header: str) -> dict[str, float]:
    """`Server-Timing` as seconds by name."""
    members = (member.strip().split(";dur=") for member in header.split(","))
    return {name: float(duration) / 1000 for name, duration in members}


async def sse_events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each `data:` line, as it arrives."""
    async for line in content:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])


def message_body(system: str, question: str) -> dict[str, Any]:
    """A request whose system text is marked to be cached for five minutes."""
    return {
        "model": MODEL,
        "system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": question}],
    }
