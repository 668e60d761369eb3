"""The toy's format: a question and whether to cache it; an answer, its usage in the toy's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from engine.prompt.types import CacheMark, Message, Prompt, TextPart
from engine.types import Sampling
from gateway.errors import GatewayError, InvalidRequest, UnknownPath
from gateway.request import Request, WireOptions
from gateway.wire.base import Answer, Endpoint, ErrorReply, Provider, Wire
from gateway.wire.body import read_request
from gateway.wire.fields import FieldError, Node
from gateway.wire.sse import encode_event
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


def _parse(body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
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


def _encode_answer(request: Request, answer: Answer, *, created_at_s: float) -> bytes:
    text = answer.text.upper() if request.options_of(ToyOptions).shout else answer.text
    return orjson.dumps({"answer": text, "usage": toy_usage(answer.usage)})


def _encode_error(error: GatewayError, *, request_id: str) -> ErrorReply:
    status = 404 if isinstance(error, UnknownPath) else 418
    told = {"oops": error.message, "at": error.path, "id": request_id}
    return ErrorReply(status, orjson.dumps(told), {})


def _open_stream(request: Request, *, created_at_s: float) -> ToyStream:
    return ToyStream()


TOY_WIRE: Final = Wire(
    provider=TOY,
    endpoints=(
        Endpoint("/toy/ask", "toy_ask"),
        Endpoint("/toy/count", "toy_count", "count"),
        Endpoint("/toy/draw", "toy_draw", "forward"),
    ),
    prefixes=("/toy/",),
    claims=lambda body: "question" in body,
    path_of=lambda position: "question",
    unsupported_effort=lambda model, effort, levels: InvalidRequest(
        f"not so {effort}", path="effort"
    ),
    parse=_parse,
    parse_count=_parse,
    encode_answer=_encode_answer,
    stream=_open_stream,
    encode_count=lambda num_prompt: orjson.dumps({"tokens": num_prompt}),
    encode_models=lambda models, query: orjson.dumps(
        {"toys": list(models), "page": query.get("page")}
    ),
    encode_model=lambda model, requested: orjson.dumps({"toy": requested}),
    encode_error=_encode_error,
    error_event=encode_event,
)


def _reword(error: FieldError) -> InvalidRequest:
    return InvalidRequest(f"toy: {error.problem}", path="/".join(map(str, error.path)))
