"""Asking a gateway through the official SDK, whole or streamed, and small bodies to ask with.

Everything here works with every release of the SDK since 0.40: what a release does not know goes
through `extra_body`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, Final

import anthropic
import pytest
from anthropic.types import Message

from tests.fakes.clocked import Clocked

MODEL: Final = "smollm2-135m-instruct"
"""Served under Anthropic's rules with a minimum of 64 tokens."""

ALIASES: Final = ("claude-sonnet-5", "claude-haiku-4-5", "claude-desk")
"""Further ids of that model, which the list shows."""

BODY_FIELDS: Final = frozenset(
    {"cache_control", "context_management", "diagnostics", "output_config", "speed", "temperature"}
)
"""Fields that not every release of the SDK has arguments for."""

CC: Final = {"type": "ephemeral"}
CC1H: Final = {"type": "ephemeral", "ttl": "1h"}


@dataclass(frozen=True, slots=True)
class Told:
    """An answer: the message as the SDK sees it and the headers it came with."""

    message: Message
    headers: Any

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Read, written for five minutes, written for an hour, uncached."""
        usage = self.message.usage
        written = usage.cache_creation
        assert written is not None
        assert usage.cache_creation_input_tokens == (
            written.ephemeral_5m_input_tokens + written.ephemeral_1h_input_tokens
        )
        assert self.headers["pcg-cache-read-tokens"] == str(usage.cache_read_input_tokens)
        return (
            usage.cache_read_input_tokens or 0,
            written.ephemeral_5m_input_tokens,
            written.ephemeral_1h_input_tokens,
            usage.input_tokens,
        )

    @property
    def read(self) -> int:
        return self.counts[0]

    @property
    def written(self) -> int:
        return self.counts[1] + self.counts[2]


@dataclass(slots=True)
class Asker:
    """One client of the gateway that asks whole or streamed, and notes what the stream said."""

    served: Clocked
    stream: bool
    key: str = "key-one"
    events: list[Any] = field(default_factory=list)

    def client(self, **options: Any) -> anthropic.Anthropic:
        """A client of the SDK that does not retry."""
        ours = {"base_url": self.served.url, "api_key": self.key, "max_retries": 0, "timeout": 200}
        return anthropic.Anthropic(**ours | options)

    def __call__(self, *, headers: dict[str, str] | None = None, **body: Any) -> Told:
        """One request of one output token unless told otherwise. Raises the SDK's errors."""
        fields = {"model": MODEL, "max_tokens": 1} | body
        more = {name: fields.pop(name) for name in BODY_FIELDS & fields.keys()}
        options: dict[str, Any] = {"extra_body": more, "extra_headers": headers or {}}
        with self.client() as client:
            if not self.stream or fields["max_tokens"] == 0:
                raw = client.messages.with_raw_response.create(**fields, **options)
                return Told(raw.parse(), raw.headers)
            with client.messages.stream(**fields, **options) as events:
                self.events = list(events)
                return Told(events.get_final_message(), events.response.headers)

    def refused(self, **body: Any) -> str:
        """The message of the 400 that a body gets."""
        with pytest.raises(anthropic.BadRequestError) as caught:
            self(**body)
        return error_of(caught.value)["message"]

    def count(self, **body: Any) -> int:
        """Tokens of a prompt by the counting endpoint."""
        more = {name: body.pop(name) for name in BODY_FIELDS & body.keys()}
        with self.client() as client:
            return client.messages.count_tokens(model=MODEL, **body, extra_body=more).input_tokens


def error_of(error: anthropic.APIStatusError) -> dict[str, Any]:
    """The `error` object of an error answer, whose envelope is checked."""
    body = error.body
    assert isinstance(body, dict)
    assert body["type"] == "error"
    assert body["request_id"] == error.response.headers["request-id"]
    return dict(body["error"])


def filler(num_words: int = 60, seed: str | None = None) -> str:
    """A text of about two tokens a word that no cache has seen, unless `seed` is given: then the
    same text each time."""
    seed = uuid.uuid4().hex if seed is None else seed
    return f"{seed} " + " ".join(f"w{i}" for i in range(num_words))


def text(value: str, mark: Any = None) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": value, **({"cache_control": mark} if mark else {})}


def user(*blocks: Any) -> dict[str, Any]:
    """A turn of the user: texts, or blocks."""
    return {"role": "user", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def tool(name: str, mark: Any = None, description: str = "", **more: Any) -> dict[str, Any]:
    """A tool with one argument."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    marked = {"cache_control": mark} if mark else {}
    return {
        "name": name,
        "description": description or f"Tool {name}",
        "input_schema": schema,
        **marked,
        **more,
    }
