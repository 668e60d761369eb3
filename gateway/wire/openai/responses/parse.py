"""The body of `POST /v1/responses` -> `Request`.

Source: openai 3.57 `types/responses/response_create_params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from engine.prompt.types import Prompt, TextPart
from engine.types import OutputFormat, Sampling
from gateway.request import Request
from gateway.wire.directives import cache_directives
from gateway.wire.fields import FieldError, Node, decode_body, deeper_than, end_user
from gateway.wire.openai.caching import (
    DEFAULT_BREAKPOINT_TTL,
    cache_control,
    caching_parameters,
    effort_parameters,
    request_ttl,
)
from gateway.wire.openai.choice import parameters as choice_parameters
from gateway.wire.openai.choice import tool_choice
from gateway.wire.openai.errors import from_field, invalid, param, unsupported
from gateway.wire.openai.format import format_parameters, output_format
from gateway.wire.openai.parse import MAX_TOP_LOGPROBS, sampling
from gateway.wire.openai.responses.items import InputItems, listed
from gateway.wire.openai.responses.tools import read_tools

NEEDS_MORE: Final = ("conversation", "moderation", "prompt")
"""Parameters that ask for what is not here; false and null ask for nothing."""

MAX_BODY_DEPTH: Final = 128
"""Of everything, because a response repeats parts of its request."""

LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"


def parse(
    body: bytes,
    headers: Mapping[str, str],
    *,
    request_id: str,
    response_id: str,
    found: Mapping[str, Any] | None = None,
) -> Request:
    """Raises `InvalidRequest`, its path in OpenAI's form: `input[0].content[1].text`.

    `wire_options` say what the response repeats (`echo`), what it is called (`response_id`), what
    it refers to (`previous_response_id`, `comparison_response_id`, and items by id and place,
    `referred`), its input as a list (`items`), whether it is kept (`store`) and made while nobody
    waits (`background`), which tools are custom and whether reasoning is to be sealed. `found` are
    items to put in the place of references to them; others are left out.
    """
    try:
        return _request(
            _filled(decode_shallow(body), found or {}),
            headers,
            request_id=request_id,
            response_id=response_id,
        )
    except FieldError as error:
        raise from_field(error) from None


def decode_shallow(body: bytes) -> Node:
    """The body as an object that can be written out again. Raises `FieldError`."""
    decoded = decode_body(body)
    if deeper_than(decoded.value, MAX_BODY_DEPTH):
        raise FieldError("depth", (), expected=MAX_BODY_DEPTH)
    return decoded


def _request(
    body: Node, headers: Mapping[str, str], *, request_id: str, response_id: str
) -> Request:
    model = body.text("model")
    for name in NEEDS_MORE:
        if body.value.get(name):
            raise unsupported((name,))
    background, store = body.flag("background"), body.flag("store", default=True)
    if background and not store:
        raise invalid(
            ("background",),
            "Background responses are kept: 'background' requires 'store' to be true.",
        )
    previous = body.text_or("previous_response_id", "")
    options = body.child("prompt_cache_options") or Node({}, ())
    include = body.strings("include")
    tools = read_tools(body)
    turns = InputItems(ttl=request_ttl(body) or DEFAULT_BREAKPOINT_TTL, continues=bool(previous))
    instructions = body.text_or("instructions", "")
    turns.system += [TextPart(instructions)] if instructions else []
    turns.read(body)
    text = body.child("text")
    form = output_format(None if text is None else text.child("format"), nested=False)
    choice = tool_choice(body, tools.offered, nested=False)
    prewarm = options.flag("prewarm")
    chosen = _sampling(body, include, prewarm=prewarm)
    automatic, directives = cache_control(body), cache_directives(headers)
    return Request(
        id=request_id,
        wire="openai",
        model=model,
        prompt=Prompt(
            messages=tuple(turns.messages), system=tuple(turns.system), tools=tools.offered
        ),
        sampling=msgspec.structs.replace(chosen, tool_choice=choice, output_format=form),
        stream=body.flag("stream"),
        automatic=automatic.ttl_s if automatic is not None else None,
        prewarm=prewarm,
        read_cache=directives.read,
        store_cache=directives.store,
        max_age_s=directives.max_age_s,
        only_if_cached=directives.only_if_cached,
        end_user=end_user(body.value),
        parameters=choice_parameters(choice) | _parameters(body, form),
        warnings=tools.warnings,
        wire_options={
            "response_id": response_id,
            "previous_response_id": previous,
            "comparison_response_id": options.text_or("comparison_response_id", ""),
            "store": store,
            "background": background,
            "num_instructions": 1 if instructions else 0,
            "custom_tools": tools.custom,
            "seal_reasoning": ENCRYPTED_REASONING in include,
            "referred": {name: param(path) for name, path in turns.referred.items()},
            "items": listed(body, response_id.removeprefix("resp_")),
            "effort_field": "reasoning.effort",
            "service_tier": body.text_or("service_tier", "auto"),
            "echo": _echo(body, options),
        },
    )


def _filled(body: Node, found: Mapping[str, Any]) -> Node:
    given = body.value.get("input")
    if not found or type(given) is not list:
        return body
    items = [
        found.get(item.get("id"), item) if item.get("type") == "item_reference" else item
        for item in given
    ]
    return Node(body.value | {"input": items}, body.path)


def _sampling(body: Node, include: list[str], *, prewarm: bool) -> Sampling:
    """A request that only warms the cache may say what it likes of its answer: there is none."""
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    wanted = top if top is not None else 0 if LOGPROBS in include else None
    chosen = msgspec.structs.replace(sampling(body, ("max_output_tokens",)), num_logprobs=wanted)
    return msgspec.structs.replace(chosen, max_tokens=0) if prewarm else chosen


def _parameters(body: Node, form: OutputFormat | None) -> dict[str, Any]:
    """What is not rendered but has a cache of its own, in the dialects' words; defaults are left
    out."""
    efforts = effort_parameters(body.child("reasoning"), "effort", body.child("text"))
    return caching_parameters(body) | efforts | format_parameters(form)


def _echo(body: Node, options: Node) -> dict[str, Any]:
    """What a response repeats of its request, with the defaults of what was left out."""
    value = body.value
    reasoning, text, metadata = (
        value.get("reasoning") or {},
        value.get("text") or {},
        body.child("metadata"),
    )
    echo: dict[str, Any] = {
        "background": body.flag("background"),
        "instructions": value.get("instructions"),
        "max_output_tokens": value.get("max_output_tokens"),
        "max_tool_calls": value.get("max_tool_calls"),
        "metadata": {name: metadata.text(name) for name in metadata.value}
        if metadata is not None
        else {},
        "parallel_tool_calls": body.flag("parallel_tool_calls", default=True),
        "previous_response_id": value.get("previous_response_id"),
        "prompt_cache_key": value.get("prompt_cache_key"),
        "prompt_cache_retention": value.get("prompt_cache_retention"),
        "reasoning": {"effort": None, "summary": None} | reasoning,
        "safety_identifier": value.get("safety_identifier"),
        "service_tier": "default",
        "store": body.flag("store", default=True),
        "temperature": _or(value.get("temperature"), 1.0),
        "text": {"format": {"type": "text"}, "verbosity": "medium"} | text,
        "tool_choice": value.get("tool_choice") or "auto",
        "tools": value.get("tools") or [],
        "top_logprobs": value.get("top_logprobs") or 0,
        "top_p": _or(value.get("top_p"), 1.0),
        "truncation": value.get("truncation") or "disabled",
        "user": value.get("user"),
    }
    told = {
        name: options.value[name]
        for name in ("mode", "ttl", "comparison_response_id")
        if options.has(name)
    }
    echo["prompt_cache_options"] = {"mode": "implicit", "ttl": DEFAULT_BREAKPOINT_TTL} | told
    return echo


def _or(value: Any, default: float) -> float:
    return default if value is None else float(value)
