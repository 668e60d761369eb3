"""The body of `POST /v1/completions` -> `Request`.

Source: openai 3.57 `types/completion_create_params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from engine.prompt.types import Message, Prompt, TextPart
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.body import read_request
from gateway.wire.fields import FieldError, Node, type_name
from gateway.wire.openai.caching import caching_parameters
from gateway.wire.openai.errors import from_field, invalid, missing, unsupported
from gateway.wire.openai.options import CompletionsOptions
from gateway.wire.openai.parse import MAX_CHOICES, sampling

MAX_LOGPROBS: Final = 5
DEFAULT_MAX_TOKENS: Final = 16
MAX_TOKEN_ID: Final = 2**31
MAX_ANSWERS: Final = 1024
"""To all prompts of one request."""

Raw: TypeAlias = str | tuple[int, ...]


def parse(body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
    """Raises `InvalidRequest` with the path of the field."""
    return read_request(body, headers, partial(_request, request_id=request_id), from_field)


def _request(body: Node, *, request_id: str) -> Request:
    model, (raw, *others) = body.text("model"), _raws(body)
    if body.value.get("suffix"):
        raise unsupported(("suffix",))
    num_choices = body.integer("n", 1, MAX_CHOICES) or 1
    if body.integer("best_of", 1, MAX_CHOICES) not in (None, num_choices):
        raise unsupported(("best_of",))
    num_logprobs = body.integer("logprobs", 0, MAX_LOGPROBS)
    echo = body.flag("echo")
    if echo and (num_logprobs is not None or not isinstance(raw, str)):
        raise unsupported(("echo",))
    if num_choices * (1 + len(others)) > MAX_ANSWERS:
        raise invalid(
            ("prompt",),
            f"Invalid 'prompt': more than {MAX_ANSWERS} answers are asked for.",
            "invalid_value",
        )
    options = body.child("stream_options")
    chosen = sampling(body, ("max_tokens",))
    if not body.has("max_tokens"):
        chosen = msgspec.structs.replace(chosen, max_tokens=DEFAULT_MAX_TOKENS)
    return Request(
        id=request_id,
        wire="openai",
        model=model,
        prompt=_prompt(raw),
        other_prompts=tuple(map(_prompt, others)),
        sampling=msgspec.structs.replace(chosen, num_logprobs=num_logprobs),
        stream=body.flag("stream"),
        num_choices=num_choices,
        parameters=caching_parameters(body),
        options=CompletionsOptions(
            options is not None and options.flag("include_usage"),
            echo=tuple(text for text in (raw, *others) if isinstance(text, str)) if echo else (),
        ),
    )


def _prompt(raw: Raw) -> Prompt:
    return Prompt(
        messages=(Message("user", (TextPart(raw if isinstance(raw, str) else ""),)),), raw=raw
    )


def _raws(body: Node) -> list[Raw]:
    """One or several prompts, all of them texts or all token ids."""
    value = body.value.get("prompt")
    if value is None:
        raise missing(("prompt",))
    if type(value) is not list:
        if type(value) is str:
            return [value]
        raise FieldError("type", ("prompt",), expected="string", got=type_name(value))
    several = value and type(value[0]) in (str, list)
    prompts = [_raw(each) for each in (value if several else [value])]
    if len({type(prompt) for prompt in prompts}) > 1:
        raise _neither()
    return prompts


def _raw(value: Any) -> Raw:
    if type(value) is str:
        return value
    if type(value) is not list or not all(
        type(token_id) is int and 0 <= token_id < MAX_TOKEN_ID for token_id in value
    ):
        raise _neither()
    return tuple(value)


def _neither() -> InvalidRequest:
    return invalid(("prompt",), "Invalid 'prompt': expected texts or token ids.", "invalid_type")
