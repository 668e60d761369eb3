"""The body of `POST /v1/chat/completions` -> `Request`.

Source: openai 3.57 `types/chat/completion_create_params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from engine.types import OutputFormat, Sampling
from gateway.request import REST_OF_CONTEXT, Request
from gateway.wire.body import read_request
from gateway.wire.fields import Node, clip
from gateway.wire.openai.caching import (
    DEFAULT_BREAKPOINT_TTL,
    cache_control,
    caching_parameters,
    effort_parameters,
    request_ttl,
)
from gateway.wire.openai.choice import parameters as choice_parameters
from gateway.wire.openai.choice import tool_choice
from gateway.wire.openai.errors import from_field, invalid, unsupported, unsupported_value
from gateway.wire.openai.format import format_parameters, output_format
from gateway.wire.openai.guided import guided_format
from gateway.wire.openai.messages import ChatTurns
from gateway.wire.openai.options import ChatOptions

MAX_STOPS: Final = 4
MAX_CHOICES: Final = 128
MAX_BIASES: Final = 4096
"""Of one request: they are added at every token, while others wait."""
MAX_TOP_LOGPROBS: Final = 20

CHANGES_THE_ANSWER: Final = ("audio", "functions", "function_call", "moderation")
"""Parameters that ask for another kind of answer than the model gives; false, zero and empty ask
for nothing."""

WEB_SEARCH: Final = "web_search_options"
"""The same, but `{}` asks for it."""


def parse(body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
    """Raises `InvalidRequest`, its path in OpenAI's form: `messages[0].content`."""
    return read_request(body, headers, partial(_request, request_id=request_id), from_field)


def _request(body: Node, *, request_id: str) -> Request:
    model = body.text("model")
    _check_answerable(body)
    stream = body.flag("stream")
    options = body.child("stream_options")
    if options is not None and not stream:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise invalid(("stream_options",), message)
    automatic = cache_control(body)
    prompt = ChatTurns(ttl=request_ttl(body) or DEFAULT_BREAKPOINT_TTL).prompt(body)
    choice = tool_choice(body, prompt.tools, nested=True)
    form = output_format(body.child("response_format"), nested=True) or guided_format(body)
    return Request(
        id=request_id,
        wire="openai",
        model=model,
        prompt=prompt,
        sampling=msgspec.structs.replace(
            sampling(body), num_logprobs=_num_logprobs(body), tool_choice=choice, output_format=form
        ),
        stream=stream,
        automatic=automatic.ttl_s if automatic is not None else None,
        num_choices=body.integer("n", 1, MAX_CHOICES) or 1,
        parameters=choice_parameters(choice) | _parameters(body, form),
        options=ChatOptions(options is not None and options.flag("include_usage")),
    )


def _check_answerable(body: Node) -> None:
    """Raises `InvalidRequest` for a field that needs another kind of answer than the model
    gives."""
    for name in CHANGES_THE_ANSWER:
        if body.value.get(name):
            raise unsupported((name,))
    if body.value.get(WEB_SEARCH) is not None:
        raise unsupported((WEB_SEARCH,))
    for modality in body.strings("modalities"):
        if modality != "text":
            raise unsupported_value(("modalities",), clip(modality))


def _num_logprobs(body: Node) -> int | None:
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if body.flag("logprobs"):
        return top or 0
    if top:
        raise invalid(
            ("top_logprobs",),
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
        )
    return None


def sampling(
    body: Node, limits: Sequence[str] = ("max_completion_tokens", "max_tokens")
) -> Sampling:
    """Beyond OpenAI's own fields, those that vLLM's server added: top_k, min_p, repetition_penalty,
    ignore_eos.

    The first of the fields `limits` that is there bounds the answer.
    """
    temperature = body.number("temperature", 0.0, 2.0)
    top_p = body.number("top_p", 0.0, 1.0)
    repetition_penalty = body.number("repetition_penalty", 1e-3, 1e3)
    return Sampling(
        max_tokens=_limit(body, limits),
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=max(body.integer("top_k", low=-1) or 0, 0),
        min_p=body.number("min_p", 0.0, 1.0) or 0.0,
        repetition_penalty=1.0 if repetition_penalty is None else repetition_penalty,
        presence_penalty=body.number("presence_penalty", -2.0, 2.0) or 0.0,
        frequency_penalty=body.number("frequency_penalty", -2.0, 2.0) or 0.0,
        logit_bias=_logit_bias(body),
        seed=body.integer("seed", -(2**63), 2**63 - 1),
        stop=_stop(body),
        ignore_eos=body.flag("ignore_eos"),
    )


def _limit(body: Node, limits: Sequence[str]) -> int:
    found = next(
        (limit for name in limits if (limit := body.integer(name, low=1)) is not None),
        REST_OF_CONTEXT,
    )
    return min(found, REST_OF_CONTEXT)


def _stop(body: Node) -> tuple[str, ...]:
    texts = [body.text("stop")] if type(body.value.get("stop")) is str else body.strings("stop")
    if len(texts) > MAX_STOPS:
        message = (
            f"Invalid 'stop': array too long. Expected an array with maximum length {MAX_STOPS}, "
            "but got an array with "
            f"length {len(texts)} instead."
        )
        raise invalid(("stop",), message, "array_above_max_length")
    if "" in texts:
        raise invalid(
            ("stop",),
            "Invalid 'stop': empty string. A stop sequence has at least one character.",
            "invalid_value",
        )
    return tuple(texts)


def _logit_bias(body: Node) -> dict[int, float]:
    """Token id -> bias. The keys are the decimal digits of token ids."""
    node = body.child("logit_bias")
    if node is None:
        return {}
    if len(node.value) > MAX_BIASES:
        message = (
            "Invalid 'logit_bias': too many properties. Expected an object with at most "
            f"{MAX_BIASES} properties, but got an "
            f"object with {len(node.value)} properties instead."
        )
        raise invalid(("logit_bias",), message, "object_above_max_properties")
    biases: dict[int, float] = {}
    for key in node.value:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise invalid(
                ("logit_bias",),
                f"Invalid key in 'logit_bias': {clip(key)}. Expected a token id.",
                "invalid_value",
            )
        bias = node.number(key, -100.0, 100.0)
        if bias is not None:
            biases[int(key)] = bias
    return biases


def _parameters(body: Node, form: OutputFormat | None) -> dict[str, Any]:
    """The settings that are not rendered but have a cache of their own, in the dialects' words;
    defaults are left out."""
    return (
        caching_parameters(body)
        | effort_parameters(body, "reasoning_effort", body)
        | format_parameters(form)
    )
