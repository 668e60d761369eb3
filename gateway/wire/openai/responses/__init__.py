"""OpenAI's Responses API: bytes to `Request`, answers to bytes,
and what later requests may refer to.

Knows no HTTP server.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import orjson

from engine.prompt.types import Message, Prompt
from gateway.errors import GatewayError, InvalidRequest
from gateway.request import Request
from gateway.wire.base import Answer, ErrorReply, StoredResponse, StreamEncoder
from gateway.wire.fields import Node, clip
from gateway.wire.openai import OpenAIWire, errors
from gateway.wire.openai.caching import DEFAULT_BREAKPOINT_TTL
from gateway.wire.openai.errors import invalid
from gateway.wire.openai.responses import encode
from gateway.wire.openai.responses.diagnose import Comparison, Traits, traits
from gateway.wire.openai.responses.items import InputItems
from gateway.wire.openai.responses.pages import encode_items
from gateway.wire.openai.responses.parse import parse
from gateway.wire.openai.responses.stream import ResponseStream
from gateway.wire.sse import encode_event

__all__ = ["ResponsesWire"]

FIXED_NBYTES: Final = 4096
PART_NBYTES: Final = 128
"""What the hashes of a request, and of each of its parts, take in memory."""


class ResponsesWire(OpenAIWire):
    """A `RememberingWire`. Models and errors are those of OpenAI's other API. `new_id` gives each
    response its name."""

    def __init__(self, new_id: Callable[[], str] = lambda: secrets.token_hex(24)) -> None:
        self._new_id = new_id

    def parse(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        read = partial(
            parse, body, headers, request_id=request_id, response_id=f"resp_{self._new_id()}"
        )
        request = read()
        if not request.wire_options["referred"]:
            return request
        return msgspec.structs.replace(request, wire_options=request.wire_options | {"read": read})

    def parse_count(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        return self.parse(body, headers, request_id=request_id)

    def encode_answer(self, request: Request, answer: Answer, *, created_at_s: float) -> bytes:
        return encode.encode_answer(request, answer, created_at_s=created_at_s)

    def stream(self, request: Request, *, created_at_s: float) -> StreamEncoder:
        return ResponseStream(request, created_at_s=created_at_s)

    def encode_error(self, error: GatewayError, *, request_id: str) -> ErrorReply:
        return errors.encode_error(error, input_field="input")

    def error_event(self, body: bytes) -> bytes:
        """The nested form, which the official clients raise on, without a number: the last one is
        not known."""
        return encode_event(orjson.dumps({"type": "error"} | orjson.loads(body)), "error")

    # What later requests refer to -----------------------------------------------------------------

    def refers(self, request: Request) -> Collection[str]:
        options = request.wire_options
        named = (
            options["previous_response_id"],
            options["comparison_response_id"],
            *map(_owner, options["referred"]),
        )
        return dict.fromkeys(name for name in named if name)

    def resume(self, request: Request, find: Callable[[str], StoredResponse | None]) -> Request:
        """Instructions are the new request's alone; everything else of the earlier conversation
        comes first."""
        if referred := request.wire_options["referred"]:
            request = request.wire_options["read"](found=_items(referred, find))
        options = request.wire_options
        if previous := options["previous_response_id"]:
            kept = find(previous)
            if kept is None or kept.prompt is None:
                message = f"Previous response with id '{previous}' not found."
                raise invalid(("previous_response_id",), message, "previous_response_not_found")
            earlier_prompt = msgspec.msgpack.decode(kept.prompt, type=Prompt)
            request = msgspec.structs.replace(
                request, prompt=_continued(earlier_prompt, request.prompt)
            )
        if earlier := options["comparison_response_id"]:
            kept = find(earlier)
            known = kept.traits if kept is not None and isinstance(kept.traits, Traits) else None
            request = msgspec.structs.replace(
                request, wire_options=options | {"compared": Comparison(traits(request), known)}
            )
        return request

    def keep(self, request: Request, answer: Answer, *, created_at_s: float) -> StoredResponse:
        """Everything, or with `store: false` only hashes to compare later requests with."""
        return _kept(
            request,
            encode.encode_answer(request, answer, created_at_s=created_at_s),
            _answered(request, answer),
        )

    def keep_unanswered(
        self, request: Request, error: GatewayError | None, *, created_at_s: float
    ) -> StoredResponse:
        """A conversation that goes on from here goes on without an answer."""
        if error is None:
            body = encode.begun(request, created_at_s=created_at_s, status="cancelled")
        else:
            body = encode.failed(request, error, created_at_s=created_at_s)
        return _kept(request, orjson.dumps(body), _uninstructed(request, request.prompt.messages))

    def encode_unfinished(self, request: Request, *, begun: bool, created_at_s: float) -> bytes:
        return orjson.dumps(
            encode.begun(
                request, created_at_s=created_at_s, status="in_progress" if begun else "queued"
            )
        )

    def encode_items(self, kept: StoredResponse, query: Mapping[str, str]) -> bytes:
        return encode_items(orjson.loads(kept.items or b"[]"), query)

    def encode_deleted(self, kept: StoredResponse) -> bytes:
        return orjson.dumps({"id": kept.id, "object": "response", "deleted": True})


def _items(
    referred: Mapping[str, str], find: Callable[[str], StoredResponse | None]
) -> dict[str, Any]:
    """The items of those ids, each of the answer or of the input of the response that its id begins
    with. `referred` tells where each id stands. However many are of one response, that is read
    once."""
    known: dict[str, Mapping[str, Any]] = {}
    found: dict[str, Any] = {}
    for name, path in referred.items():
        owner = _owner(name)
        if owner not in known:
            known[owner] = _by_id(find(owner))
        if name not in known[owner]:
            raise InvalidRequest(
                f"Item with id '{clip(name)}' not found.", path=path, code="item_not_found"
            )
        found[name] = known[owner][name]
    return found


def _owner(item_id: str) -> str:
    """The response that an item is of."""
    return f"resp_{item_id.partition('_')[2].rpartition('_')[0]}"


def _by_id(kept: StoredResponse | None) -> Mapping[str, Any]:
    """Everything a response says and was asked, items of the answer first."""
    if kept is None or kept.body is None:
        return {}
    items = (*orjson.loads(kept.body)["output"], *orjson.loads(kept.items or b"[]"))
    return {item["id"]: item for item in reversed(items)}


def _kept(request: Request, body: bytes, prompt: Prompt) -> StoredResponse:
    known, options = traits(request), request.wire_options
    nbytes = PART_NBYTES * len(known.input) + FIXED_NBYTES
    if not options["store"]:
        return StoredResponse(options["response_id"], known, nbytes)
    parts = (
        _trimmed(body),
        _trimmed(orjson.dumps(options["items"])),
        _trimmed(msgspec.msgpack.encode(prompt)),
    )
    return StoredResponse(options["response_id"], known, nbytes + sum(map(len, parts)), *parts)


def _trimmed(encoded: bytes) -> bytes:
    """A copy without the room for eight times as much that orjson leaves behind its text."""
    return bytes(memoryview(encoded))


def _continued(earlier: Prompt, now: Prompt) -> Prompt:
    """`now` after the conversation `earlier`, whose instructions and tools are gone."""
    return msgspec.structs.replace(
        now, system=(*now.system, *earlier.system), messages=(*earlier.messages, *now.messages)
    )


def _answered(request: Request, answer: Answer) -> Prompt:
    """The conversation and the answer behind it, read as if the client had sent its items back;
    without instructions."""
    turns = InputItems(
        ttl=DEFAULT_BREAKPOINT_TTL, continues=True, messages=list(request.prompt.messages)
    )
    if not request.prewarm:
        turns.read(Node({"input": encode.output(request, answer)}, ()))
    return _uninstructed(request, tuple(turns.messages))


def _uninstructed(request: Request, turns: tuple[Message, ...]) -> Prompt:
    return Prompt(
        messages=turns, system=request.prompt.system[request.wire_options["num_instructions"] :]
    )
