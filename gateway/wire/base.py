"""The contract of a wire format: bytes in, `Request` out; events in, bytes out.

Pure, no aiohttp.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from engine.types import FinishReason, TokenLogprobs
from gateway.errors import GatewayError
from gateway.models import ModelInfo, UpstreamModel
from gateway.request import Request, WireName
from policies.pricing import Usage


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool the model calls. `arguments` is the text of a JSON object as the model wrote it, or
    what should have been one."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AnswerRun:
    """A run of one kind in an answer: of a `call` it is only told that it stands here."""

    kind: Literal["thinking", "text", "call"]
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer, whole: reasoning, then text, then tool calls, each possibly empty.

    `said` is the same in the order in which it was said, for formats that keep it; empty where that
    is the order above. `logprobs` is one per token, where they were asked for. `num_thinking`
    tokens of the output were reasoning. `others` are the further answers to the same prompt where
    several were wanted; `usage` is what they cost all together.
    """

    text: str
    reason: FinishReason
    stop: str | None
    usage: Usage
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_thinking: int = 0
    others: tuple[Answer, ...] = ()
    said: tuple[AnswerRun, ...] = ()

    def in_order(self) -> tuple[AnswerRun, ...]:
        """`said`, or what it is where it says nothing else."""
        if self.said:
            return self.said
        thinking = (AnswerRun("thinking", self.thinking),) if self.thinking else ()
        text = (AnswerRun("text", self.text, self.logprobs),) if self.text else ()
        return (*thinking, *text, *(AnswerRun("call") for _ in self.calls))


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What a finished request leaves for later ones to refer to by `id`.

    `body` is its answer and `items` its input as the client may ask for them again, `prompt` the
    conversation up to and with the answer, both as their format packs them: all three None where
    the client wanted nothing stored. `traits` is what it can be compared by. All of it takes about
    `nbytes` of memory.
    """

    id: str
    traits: object
    nbytes: int
    body: bytes | None = None
    items: bytes | None = None
    prompt: bytes | None = None


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as HTTP: status, JSON body, extra headers."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class StreamEncoder(Protocol):
    """Turns one request's events into SSE bytes, in the provider's order. Every method returns
    complete events."""

    def start(self, usage: Usage) -> bytes:
        """Once, when the prompt's bill is known (`usage.output == 0`)."""
        ...

    def delta(
        self,
        text: str,
        *,
        thinking: bool = False,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        """More text or reasoning; empty where this format shows nothing of it. `choice` tells which
        of several answers."""
        ...

    def call(
        self,
        index: int,
        call: ToolCall,
        *,
        begins: bool,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        """More of tool call number `index`: `begins` with the first piece, whose name is whole;
        `arguments` is a piece."""
        ...

    def finish(self, answer: Answer) -> bytes:
        """Once, last: closes what is open, reports usage, ends the stream."""
        ...

    def error(self, error: GatewayError) -> bytes:
        """Instead of `finish`, at any time, also before `start`."""
        ...

    def keepalive(self) -> bytes:
        """Bytes a silent stream may send that every official client ignores."""
        ...


class Wire(Protocol):
    """One provider's format."""

    name: WireName

    def parse(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        """Raises `InvalidRequest` (with the provider's path) for anything the provider would
        refuse.

        `headers` has lower-case names.
        """
        ...

    def parse_count(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        """As `parse`, for the token counting route."""
        ...

    def encode_answer(self, request: Request, answer: Answer, *, created_at_s: float) -> bytes: ...

    def stream(self, request: Request, *, created_at_s: float) -> StreamEncoder: ...

    def encode_count(self, num_prompt: int) -> bytes: ...

    def encode_models(
        self, models: Mapping[str, ModelInfo | UpstreamModel], query: Mapping[str, str]
    ) -> bytes:
        """The list of `models` by id, or the page of it that `query` asks for. Raises
        `InvalidRequest` for a wrong query."""
        ...

    def encode_model(self, model: ModelInfo | UpstreamModel, requested: str) -> bytes: ...

    def encode_error(self, error: GatewayError, *, request_id: str) -> ErrorReply: ...

    def error_event(self, body: bytes) -> bytes:
        """An error's JSON, without line breaks, as the last event of a stream that somebody else
        began."""
        ...


@runtime_checkable
class RememberingWire(Wire, Protocol):
    """A format whose requests may refer to earlier ones."""

    def refers(self, request: Request) -> Collection[str]:
        """Ids of the earlier requests that `resume` will look for."""
        ...

    def resume(self, request: Request, find: Callable[[str], StoredResponse | None]) -> Request:
        """The request with what it refers to filled in. `find` knows what this tenant's requests
        left.

        Raises `InvalidRequest` for a conversation that is not there.
        """
        ...

    def keep(self, request: Request, answer: Answer, *, created_at_s: float) -> StoredResponse: ...

    def keep_unanswered(
        self, request: Request, error: GatewayError | None, *, created_at_s: float
    ) -> StoredResponse:
        """As `keep`, for a request that failed, or was cancelled where there is no error."""
        ...

    def encode_unfinished(self, request: Request, *, begun: bool, created_at_s: float) -> bytes:
        """The answer before its end, as one may ask for it that is made in the background."""
        ...

    def encode_items(self, kept: StoredResponse, query: Mapping[str, str]) -> bytes:
        """A page of what `kept` was asked. Raises `InvalidRequest` for a query that makes no
        sense."""
        ...

    def encode_deleted(self, kept: StoredResponse) -> bytes: ...
