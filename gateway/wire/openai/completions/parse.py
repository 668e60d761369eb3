"""The body of `POST /v1/completions` -> `Request`. Source: openai 3.57 `types/completion_create_params.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from engine.prompt.types import Message, Prompt, TextPart
from gateway.request import Request
from gateway.wire.directives import cache_directives
from gateway.wire.fields import FieldError, Node, decode_body, end_user, type_name
from gateway.wire.openai.caching import caching_parameters
from gateway.wire.openai.errors import from_field, invalid, unsupported
from gateway.wire.openai.parse import MAX_CHOICES, sampling

MAX_LOGPROBS: Final = 5
DEFAULT_MAX_TOKENS: Final = 16
MAX_TOKEN_ID: Final = 2**31


def parse(body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
    """Raises `InvalidRequest` with the path of the field."""
    try:
        return _request(decode_body(body), headers, request_id=request_id)
    except FieldError as error:
        raise from_field(error) from None


def _request(body: Node, headers: Mapping[str, str], *, request_id: str) -> Request:
    model, raw = body.text("model"), _raw(body)
    if body.value.get("suffix"):
        raise unsupported(("suffix",))
    num_choices = body.integer("n", 1, MAX_CHOICES) or 1
    if body.integer("best_of", 1, MAX_CHOICES) not in (None, num_choices):
        raise unsupported(("best_of",))
    num_logprobs = body.integer("logprobs", 0, MAX_LOGPROBS)
    echo = body.flag("echo")
    if echo and (num_logprobs is not None or not isinstance(raw, str)):
        raise unsupported(("echo",))
    options = body.child("stream_options")
    chosen, directives = sampling(body, ("max_tokens",)), cache_directives(headers)
    if not body.has("max_tokens"):
        chosen = msgspec.structs.replace(chosen, max_tokens=DEFAULT_MAX_TOKENS)
    place = Message("user", (TextPart(raw if isinstance(raw, str) else ""),))
    return Request(
        id=request_id,
        wire="openai",
        model=model,
        prompt=Prompt(messages=(place,), raw=raw),
        sampling=msgspec.structs.replace(chosen, num_logprobs=num_logprobs),
        stream=body.flag("stream"),
        num_choices=num_choices,
        read_cache=directives.read,
        store_cache=directives.store,
        max_age_s=directives.max_age_s,
        only_if_cached=directives.only_if_cached,
        end_user=end_user(body.value),
        parameters=caching_parameters(body),
        wire_options={
            "include_usage": options is not None and options.flag("include_usage"),
            "echo": raw if echo else "",
        },
    )


def _raw(body: Node) -> str | tuple[int, ...]:
    """One prompt: a text, token ids, or a list of one of either. Several prompts are several requests."""
    value = body.value.get("prompt")
    if type(value) is str:
        return value
    if value is None:
        raise invalid(("prompt",), "Missing required parameter: 'prompt'.", "missing_required_parameter")
    if type(value) is not list:
        raise FieldError("type", ("prompt",), expected="string", got=type_name(value))
    if value and type(value[0]) in (str, list):
        if len(value) > 1:
            raise invalid(("prompt",), "Only one prompt per request is supported with this model.", "unsupported_value")
        value = value[0]
    if type(value) is str:
        return value
    if not all(type(token_id) is int and 0 <= token_id < MAX_TOKEN_ID for token_id in value):
        raise invalid(("prompt",), "Invalid 'prompt': expected a text or token ids.", "invalid_type")
    return tuple(value)
