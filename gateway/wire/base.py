"""The contract of a wire format: bytes in, `Request` out; events in, bytes out.

Pure, no aiohttp.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

from engine.prompt.types import Position
from engine.types import FinishReason, TokenLogprobs
from gateway.errors import GatewayError, InvalidRequest
from gateway.models import ModelInfo, UpstreamModel
from gateway.request import Request, WireName
from gateway.wire.reported import UsageFormat
from policies.pricing import Usage
from policies.rules import PresetName

ListedModel: TypeAlias = ModelInfo | UpstreamModel

KEY_HEADERS: Final = ("x-api-key", "authorization")
"""The headers in which most providers' clients send their key, the first that has one counts.
`authorization` holds it as a bearer token."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool the model calls. `arguments` is the text as the model wrote it, meant to be a JSON
    object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AnswerRun:
    """A run of one kind in an answer. A `call` has no text here: it marks the place of the call."""

    kind: Literal["thinking", "text", "call"]
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer, whole: reasoning, then text, then tool calls, each possibly empty.

    `runs` are the same in the order of generation, for formats that keep it; empty where that
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
    runs: tuple[AnswerRun, ...] = ()

    def in_order(self) -> tuple[AnswerRun, ...]:
        """`runs`, or the runs in the order of the class where there are none."""
        if self.runs:
            return self.runs
        thinking = (AnswerRun("thinking", self.thinking),) if self.thinking else ()
        text = (AnswerRun("text", self.text, self.logprobs),) if self.text else ()
        return (*thinking, *text, *(AnswerRun("call") for _ in self.calls))


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The record of a finished request, to which later ones refer by `id`.

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


Operation: TypeAlias = Literal["generate", "count", "forward"]
"""`forward`: a path that only upstreams serve."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path that takes bodies of a format by POST. `name` labels it in metrics and records."""

    path: str
    name: str
    operation: Operation = "generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The conventions that all formats of one provider share.

    `title` is the possessive of its name, for messages. `preset` are the rules of its requests
    where the policy says `auto`. Its clients read a request's id from the header `id_header`, in
    the form that `native_id` gives it. `client_headers` are request headers that only its clients
    send. A client's key is in one of `key_headers`, an upstream's in `upstream_key_header`.
    `usage_format` reads the usage that its upstreams report, and `preset_usage_formats` that of
    upstreams whose policy names such a preset.
    """

    name: WireName
    title: str
    preset: PresetName
    id_header: str
    native_id: Callable[[str], str]
    usage_format: UsageFormat
    preset_usage_formats: Mapping[str, UsageFormat] = field(default_factory=dict)
    client_headers: frozenset[str] = frozenset()
    key_headers: tuple[str, ...] = KEY_HEADERS
    upstream_key_header: str = "authorization"


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


class Memory(Protocol):
    """The part of a format whose requests may refer to earlier ones."""

    def refers(self, request: Request) -> Collection[str]:
        """Ids of the earlier requests that `resume` will look for."""
        ...

    def resume(self, request: Request, find: Callable[[str], StoredResponse | None]) -> Request:
        """The request with its references filled in. `find` looks up this tenant's records.

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
        """A page of the input of `kept`. Raises `InvalidRequest` for a query that makes no
        sense."""
        ...

    def encode_deleted(self, kept: StoredResponse) -> bytes: ...


class Parse(Protocol):
    """Turns a body into a request."""

    def __call__(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        """`headers` has lower-case names. Raises `InvalidRequest`, with the provider's path, for
        anything the provider would refuse."""
        ...


class EncodeAnswer(Protocol):
    """Turns a whole answer into a body."""

    def __call__(self, request: Request, answer: Answer, *, created_at_s: float) -> bytes: ...


class OpenStream(Protocol):
    """Makes the encoder of one streamed answer."""

    def __call__(self, request: Request, *, created_at_s: float) -> StreamEncoder: ...


class EncodeError(Protocol):
    """Turns an error into an HTTP answer."""

    def __call__(self, error: GatewayError, *, request_id: str) -> ErrorReply: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One wire format of a provider, as pure functions.

    `endpoints` are its paths; unknown paths that begin with one of `prefixes` are answered in it.
    `claims` is true of a body that is certainly in it, though its path is not known. `path_of`
    gives a position in the body's own coordinates, as far as they are known. `unsupported_effort`
    words the error for a model, a level of effort that it lacks, and the levels that it has.
    `encode_models` gives the list of models by id, or the page of it that a query asks for, and
    raises `InvalidRequest`; `encode_model` gives one, under the id that was asked for.
    `error_event` turns an error's JSON, without line breaks, into the last event of a stream that
    somebody else began.
    """

    provider: Provider
    endpoints: tuple[Endpoint, ...]
    prefixes: tuple[str, ...] = ()
    memory: Memory | None = None
    claims: Callable[[Mapping[str, Any]], bool]
    path_of: Callable[[Position], str]
    unsupported_effort: Callable[[str, str, Sequence[str]], InvalidRequest]
    parse: Parse
    parse_count: Parse
    encode_answer: EncodeAnswer
    stream: OpenStream
    encode_count: Callable[[int], bytes]
    encode_models: Callable[[Mapping[str, ListedModel], Mapping[str, str]], bytes]
    encode_model: Callable[[ListedModel, str], bytes]
    encode_error: EncodeError
    error_event: Callable[[bytes], bytes]
