"""The toy's format: a question and whether to cache it; an answer, its usage in the toy's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart
from engine.types import Sampling
from gateway.errors import GatewayError, InvalidRequest, UnknownPath
from gateway.models import ModelInfo, UpstreamModel
from gateway.request import Request, WireOptions
from gateway.wire.base import Answer, Endpoint, ErrorReply, Memory, Provider
from gateway.wire.body import read_request
from gateway.wire.fields import FieldError, Node
from tests.fakes.toy.wire.stream import ToyStream
from tests.fakes.toy.wire.usage import USAGE, toy_usage

TOY: Final = Provider(
    name="toy",
    title="Toy's",
    preset="kimi",
    id_header="x-toy-id",
    native_id=lambda request_id: f"toy-{request_id}",
    usage_format=USAGE,
    client_headers=frozenset({"x-toy-key"}),
    key_headers=("x-toy-key",),
    upstream_key_header="x-toy-key",
)


class ToyOptions(WireOptions, frozen=True):
    """`shout`: the answer comes in capitals."""

    shout: bool = False


class ToyWire:
    """A `Wire`."""

    provider = TOY
    endpoints: tuple[Endpoint, ...] = (
        Endpoint("/toy/ask", "toy_ask"),
        Endpoint("/toy/count", "toy_count", "count"),
        Endpoint("/toy/draw", "toy_draw", "forward"),
    )
    prefixes: tuple[str, ...] = ("/toy/",)
    memory: Memory | None = None

    def claims(self, body: Mapping[str, Any]) -> bool:
        return "question" in body

    def path_of(self, position: Position) -> str:
        return "question"

    def unsupported_effort(
        self, model: str, effort: str, supported: Sequence[str]
    ) -> InvalidRequest:
        return InvalidRequest(f"not so {effort}", path="effort")

    def parse(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        def read(node: Node) -> Request:
            mark = CacheMark(300.0) if node.flag("remember") else None
            part = TextPart(node.text("question"), mark)
            return Request(
                id=request_id,
                wire=TOY.name,
                model=node.text("model"),
                prompt=Prompt(messages=(Message("user", (part,)),)),
                sampling=Sampling(node.integer("limit", low=1) or 9),
                stream=node.flag("live"),
                parameters={"effort": node.text("effort")} if node.has("effort") else {},
                options=ToyOptions(node.flag("shout")),
            )

        return read_request(body, headers, read, _reword)

    def parse_count(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        return self.parse(body, headers, request_id=request_id)

    def encode_answer(self, request: Request, answer: Answer, *, created_at_s: float) -> bytes:
        shout = request.options_of(ToyOptions).shout
        text = answer.text.upper() if shout else answer.text
        return orjson.dumps({"answer": text, "usage": toy_usage(answer.usage)})

    def stream(self, request: Request, *, created_at_s: float) -> ToyStream:
        return ToyStream()

    def encode_count(self, num_prompt: int) -> bytes:
        return orjson.dumps({"tokens": num_prompt})

    def encode_models(
        self, models: Mapping[str, ModelInfo | UpstreamModel], query: Mapping[str, str]
    ) -> bytes:
        return orjson.dumps({"toys": list(models), "page": query.get("page")})

    def encode_model(self, model: ModelInfo | UpstreamModel, requested: str) -> bytes:
        return orjson.dumps({"toy": requested})

    def encode_error(self, error: GatewayError, *, request_id: str) -> ErrorReply:
        status = 404 if isinstance(error, UnknownPath) else 418
        told = {"oops": error.message, "at": error.path, "id": request_id}
        return ErrorReply(status, orjson.dumps(told), {})

    def error_event(self, body: bytes) -> bytes:
        return b"data: " + body + b"\n\n"


def _reword(error: FieldError) -> InvalidRequest:
    return InvalidRequest(f"toy: {error.problem}", path="/".join(map(str, error.path)))
