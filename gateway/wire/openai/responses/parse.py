"""The body of `POST /v1/responses` -> `Request`.

Source: openai 3.57 `types/responses/response_create_params.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from engine.prompt.types import Prompt, TextPart
from engine.types import OutputFormat, Sampling
from gateway.request import Request
from gateway.wire.body import read_request
from gateway.wire.fields import FieldError, Node, deeper_than
from gateway.wire.openai.caching import (
    DEFAULT_BREAKPOINT_TTL,
    cache_control,
    caching_parameters,
    effort_parameters,
    request_ttl,
)
from gateway.wire.openai.choice import parameters as choice_parameters
from gateway.wire.openai.choice import tool_choice
from gateway.wire.openai.errors import from_field, invalid, unsupported
from gateway.wire.openai.format import format_parameters, output_format
from gateway.wire.openai.parse import MAX_TOP_LOGPROBS, sampling
from gateway.wire.openai.responses.items import ItemReader, conversation, listed_input
from gateway.wire.openai.responses.options import ResponsesOptions
from gateway.wire.openai.responses.tools import read_tools

NEEDS_MORE: Final = ("conversation", "moderation", "prompt")
"""Parameters that need more than this gateway has; false and null ask for nothing."""

MAX_BODY_DEPTH: Final = 128
"""Of everything, because a response repeats parts of its request."""

LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"


def new_response_id() -> str:
    """A name without a meaning, unlike any other."""
    return secrets.token_hex(24)


def parse(
    body: bytes,
    headers: Mapping[str, str],
    *,
    request_id: str,
    new_id: Callable[[], str] = new_response_id,
    rewrite: Callable[[Node], Node] = lambda node: node,
) -> Request:
    """Raises `InvalidRequest`, its path in OpenAI's form: `input[0].content[1].text`.

    References to earlier items stay in `ResponsesOptions.items` and are left out of the prompt.
    `rewrite` makes the body of a response of another one.
    """

    def read(node: Node) -> Request:
        if deeper_than(node.value, MAX_BODY_DEPTH):
            raise FieldError("depth", (), expected=MAX_BODY_DEPTH)
        asked = rewrite(node)
        return _request(asked, request_id=request_id, response_id=f"resp_{new_id()}")

    return read_request(body, headers, read, from_field)


def _request(body: Node, *, request_id: str, response_id: str) -> Request:
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
    caching = body.child("prompt_cache_options") or Node({}, ())
    include = body.strings("include")
    tools = read_tools(body)
    reader = ItemReader(request_ttl(body) or DEFAULT_BREAKPOINT_TTL)
    instructions = body.text_or("instructions", "")
    items = reader.read(body)
    system, messages = conversation(items, continues=bool(previous))
    if instructions:
        system = (TextPart(instructions), *system)
    text = body.child("text")
    form = output_format(None if text is None else text.child("format"), nested=False)
    choice = tool_choice(body, tools.offered, nested=False, names=tools.names())
    prewarm = caching.flag("prewarm")
    chosen = _sampling(body, include, prewarm=prewarm)
    automatic = cache_control(body)
    return Request(
        id=request_id,
        wire="openai",
        model=model,
        prompt=Prompt(messages=messages, system=system, tools=tools.offered),
        sampling=msgspec.structs.replace(chosen, tool_choice=choice, output_format=form),
        stream=body.flag("stream"),
        automatic=automatic.ttl_s if automatic is not None else None,
        prewarm=prewarm,
        parameters=choice_parameters(choice) | _parameters(body, form),
        warnings=tools.warnings,
        background=background,
        store_answer=store,
        response_id=response_id,
        options=ResponsesOptions(
            previous_response_id=previous,
            comparison_response_id=caching.text_or("comparison_response_id", ""),
            num_instructions=1 if instructions else 0,
            custom_tools=tools.custom,
            namespaced=tools.namespaced,
            seal_reasoning=ENCRYPTED_REASONING in include,
            items=items,
            listed=listed_input(body, response_id),
            ttl=reader.ttl,
            sealed_room=reader.sealed_room,
            echo=_echo(body, caching),
        ),
        service_tier=body.text_or("service_tier", "auto"),
    )


def _sampling(body: Node, include: list[str], *, prewarm: bool) -> Sampling:
    """The sampling; settings of an answer mean nothing to a request that only warms the cache."""
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    wanted = top if top is not None else 0 if LOGPROBS in include else None
    chosen = msgspec.structs.replace(sampling(body, ("max_output_tokens",)), num_logprobs=wanted)
    return msgspec.structs.replace(chosen, max_tokens=0) if prewarm else chosen


def _parameters(body: Node, form: OutputFormat | None) -> dict[str, Any]:
    """The settings that are not rendered but have a cache of their own, in the dialects' words;
    defaults are left out."""
    efforts = effort_parameters(body.child("reasoning"), "effort", body.child("text"))
    return caching_parameters(body) | efforts | format_parameters(form)


def _echo(body: Node, options: Node) -> dict[str, Any]:
    """The fields that a response repeats of its request, with defaults for absent ones."""
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
    named = {
        name: options.value[name]
        for name in ("mode", "ttl", "comparison_response_id")
        if options.has(name)
    }
    echo["prompt_cache_options"] = {"mode": "implicit", "ttl": DEFAULT_BREAKPOINT_TTL} | named
    return echo


def _or(value: Any, default: float) -> float:
    return default if value is None else float(value)
