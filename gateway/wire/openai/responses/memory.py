"""Responses as later requests may refer to them: by id, by item, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from engine.prompt.numerals import from_msgpack, in_msgpack
from engine.prompt.types import Message, Prompt, TextPart, ThinkingPart, ToolCallPart
from gateway.errors import GatewayError, InvalidRequest
from gateway.request import Request
from gateway.wire import json_text
from gateway.wire.base import Answer, StoredResponse
from gateway.wire.fields import FieldError, Node, clip
from gateway.wire.openai.errors import from_field, invalid, param
from gateway.wire.openai.messages import decoded_arguments
from gateway.wire.openai.responses import encode
from gateway.wire.openai.responses.diagnose import traits
from gateway.wire.openai.responses.items import (
    ItemReader,
    Turns,
    conversation,
    listed_item,
)
from gateway.wire.openai.responses.options import (
    InputItem,
    Referred,
    ResponsesOptions,
    Traits,
    TraitsPair,
)
from gateway.wire.openai.responses.pages import encode_items

FIXED_NBYTES: Final = 4096
PART_NBYTES: Final = 128
"""Memory for the hashes of a request, and for those of each of its parts."""


class ResponsesMemory:
    """A `Memory`."""

    def refers(self, request: Request) -> Collection[str]:
        """The earlier response, that to compare with, and those whose items are named."""
        options = request.options_of(ResponsesOptions)
        named = (
            options.previous_response_id,
            options.comparison_response_id,
            *(_owner(item) for item in options.items if isinstance(item, Referred)),
        )
        return dict.fromkeys(name for name in named if name)

    def resume(self, request: Request, find: Callable[[str], StoredResponse | None]) -> Request:
        """Instructions are the new request's alone; the rest of the earlier conversation comes
        first."""
        options = request.options_of(ResponsesOptions)
        if any(isinstance(item, Referred) for item in options.items):
            request = _resolved(request, options, find)
        if options.previous_response_id:
            kept = find(options.previous_response_id)
            if kept is None or kept.prompt is None:
                message = f"Previous response with id '{options.previous_response_id}' not found."
                raise invalid(("previous_response_id",), message, "previous_response_not_found")
            earlier = msgspec.msgpack.decode(kept.prompt, type=Prompt, ext_hook=from_msgpack)
            request = msgspec.structs.replace(request, prompt=_continued(earlier, request.prompt))
        if options.comparison_response_id:
            kept = find(options.comparison_response_id)
            known = kept.traits if kept is not None and isinstance(kept.traits, Traits) else None
            pair = TraitsPair(traits(request), known)
            options = msgspec.structs.replace(request.options_of(ResponsesOptions), compared=pair)
            request = msgspec.structs.replace(request, options=options)
        return request

    def keep(self, request: Request, answer: Answer, *, created_at_s: float) -> StoredResponse:
        """Everything, or with `store: false` only hashes to compare later requests with."""
        if not request.store_answer:
            return _kept(request)
        body = encode.encode_answer(request, answer, created_at_s=created_at_s)
        return _kept(request, body, _answered(request, answer))

    def keep_unanswered(
        self, request: Request, error: GatewayError | None, *, created_at_s: float
    ) -> StoredResponse:
        """A conversation that goes on from here goes on without an answer."""
        if not request.store_answer:
            return _kept(request)
        if error is None:
            body = encode.begun(request, created_at_s=created_at_s, status="cancelled")
        else:
            body = encode.failed(request, error, created_at_s=created_at_s)
        return _kept(request, json_text.dumps(body), request.prompt.messages)

    def encode_unfinished(self, request: Request, *, begun: bool, created_at_s: float) -> bytes:
        status = "in_progress" if begun else "queued"
        return json_text.dumps(encode.begun(request, created_at_s=created_at_s, status=status))

    def encode_items(self, kept: StoredResponse, query: Mapping[str, str]) -> bytes:
        return encode_items(json_text.loads(kept.items or b"[]"), query)

    def encode_deleted(self, kept: StoredResponse) -> bytes:
        return json_text.dumps({"id": kept.id, "object": "response", "deleted": True})


def _resolved(
    request: Request, options: ResponsesOptions, find: Callable[[str], StoredResponse | None]
) -> Request:
    """The request with the items that it refers to in their places."""
    reader = ItemReader(options.ttl, options.sealed_room)
    items: list[InputItem | None] = []
    listed, known_items = list(options.listed), dict[str, Mapping[str, Any]]()
    try:
        for item in options.items:
            if isinstance(item, Referred):
                owner = _owner(item)
                if owner not in known_items:
                    known_items[owner] = _items_by_id(find(owner))
                found = _named(item, known_items[owner])
                listed[item.index] = listed_item(found, request.response_id, item.index)
                items.append(reader.item(Node(found, ("input", item.index)), item.index))
            else:
                items.append(item)
    except FieldError as error:
        raise from_field(error) from None
    known = tuple(item for item in items if item is not None)
    system, messages = conversation(known, continues=bool(options.previous_response_id))
    instructions = request.prompt.system[: options.num_instructions]
    return msgspec.structs.replace(
        request,
        prompt=msgspec.structs.replace(
            request.prompt, system=(*instructions, *system), messages=messages
        ),
        options=msgspec.structs.replace(options, items=known, listed=tuple(listed)),
    )


def _owner(item: Referred) -> str:
    """The id of the response whose answer or input has the item."""
    return f"resp_{item.id.partition('_')[2].rpartition('_')[0]}"


def _items_by_id(kept: StoredResponse | None) -> Mapping[str, Any]:
    """All items of a response, by id; those of its answer come before those of its input."""
    if kept is None or kept.body is None:
        return {}
    items = (*json_text.loads(kept.body)["output"], *json_text.loads(kept.items or b"[]"))
    return {item["id"]: item for item in reversed(items)}


def _named(item: Referred, known: Mapping[str, Any]) -> dict[str, Any]:
    """The item of that id. Raises `InvalidRequest`."""
    if item.id not in known:
        raise InvalidRequest(
            f"Item with id '{clip(item.id)}' not found.",
            path=param(("input", item.index, "id")),
            code="item_not_found",
        )
    return dict(known[item.id])


def _kept(
    request: Request, body: bytes | None = None, messages: tuple[Message, ...] = ()
) -> StoredResponse:
    """The request's record: with its conversation where there is a `body`, else hashes alone."""
    known, options = traits(request), request.options_of(ResponsesOptions)
    nbytes = PART_NBYTES * len(known.input) + FIXED_NBYTES
    if body is None:
        return StoredResponse(request.response_id, known, nbytes)
    prompt = Prompt(messages=messages, system=request.prompt.system[options.num_instructions :])
    encoded = (
        body,
        json_text.dumps(options.listed),
        msgspec.msgpack.encode(prompt, enc_hook=in_msgpack),
    )
    parts = tuple(bytes(memoryview(part)) for part in encoded)  # without orjson's spare room
    return StoredResponse(request.response_id, known, nbytes + sum(map(len, parts)), *parts)


def _continued(earlier: Prompt, now: Prompt) -> Prompt:
    """`now` after the conversation `earlier`, whose instructions and tools are gone."""
    return msgspec.structs.replace(
        now, system=(*now.system, *earlier.system), messages=(*earlier.messages, *now.messages)
    )


def _answered(request: Request, answer: Answer) -> tuple[Message, ...]:
    """The conversation with the answer behind it, as if the client had sent its items back."""
    turns = Turns(request.prompt.messages)
    calls = enumerate(answer.calls)
    for run in encode.runs(request, answer):
        if run.kind == "call":
            number, call = next(calls)
            arguments: dict[str, Any] | str = (
                {"input": encode.custom_input(call.arguments)}
                if encode.is_custom(request, call)
                else decoded_arguments(call.arguments)
            )
            part = ToolCallPart(encode.call_id(request, number), call.name, arguments)
            turns.add(Message("assistant", (part,)))
        elif run.kind == "text":
            turns.add(Message("assistant", (TextPart(run.text),)))
        elif run.text:
            turns.add(Message("assistant", (ThinkingPart(run.text),)))
    return turns.joined()
