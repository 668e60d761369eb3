"""The body of `/v1/messages` and `/v1/messages/count_tokens` -> `Request`.

Source: anthropic 2.14 `message_create_params`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from engine.prompt.types import Message, Prompt, TextPart, ThinkingPart, ToolCallPart
from engine.types import Sampling
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.anthropic.blocks import Blocks
from gateway.wire.anthropic.diagnosis import settings_digest
from gateway.wire.anthropic.errors import from_field, invalid
from gateway.wire.anthropic.settings import (
    AnswerSettings,
    AnthropicOptions,
    DiagnosticsRequest,
    check_forced_call,
    read_settings,
)
from gateway.wire.body import read_request
from gateway.wire.fields import Node, clip

FIRST_VERSION: Final = "2023-06-01"
VERSIONS: Final = (FIRST_VERSION, "2026-10-21")
REMOVED_FIELDS: Final = ("temperature", "top_p", "top_k")
"""Fields of version 2023-06-01 that 2026-10-21 refuses, default values included."""

MAX_STOPS: Final = 1024
"""Stop sequences of one request: they are looked for after every token, while others wait."""

MAX_NAMED: Final = 20
"""Ids that one error repeats."""

CHANGES_THE_ANSWER: Final[Mapping[str, str | None]] = {
    "mcp_servers": None,
    "thread": "thread_unsupported_request",
}
"""Fields that would change the prompt or the answer, and that are not supported; with the code by
which the SDK knows to ask again without (anthropic 2.14 `lib/threads/_thread_state.py`)."""


def parse(body: bytes, headers: Mapping[str, str], *, request_id: str, counting: bool) -> Request:
    """`counting`: the body is for count_tokens, has no `max_tokens`, and no answer is generated."""
    read = partial(
        _request,
        version=api_version(headers),
        betas=headers.get("anthropic-beta", ""),
        request_id=request_id,
        counting=counting,
    )
    return read_request(body, headers, read, from_field)


def api_version(headers: Mapping[str, str]) -> str:
    """The version asked for. Without the header, the first: programs that send none wrote to no
    other."""
    name = headers.get("anthropic-version", FIRST_VERSION).strip()
    if name not in VERSIONS:
        raise InvalidRequest(f"anthropic-version: '{clip(name)}' is not a valid version")
    return name


def _request(body: Node, version: str, betas: str, *, request_id: str, counting: bool) -> Request:
    if version != FIRST_VERSION:
        for name in REMOVED_FIELDS:
            if name in body.value:
                raise invalid((name,), "Extra inputs are not permitted")
    model = body.text("model")
    if not model:
        raise invalid(("model",), "String should have at least 1 character")
    blocks = Blocks(first_version=version == FIRST_VERSION)
    for name, code in CHANGES_THE_ANSWER.items():
        if body.value.get(name):
            blocks.refuse((name,), "not supported by this model", code)
    automatic = blocks.mark(body)
    max_tokens = 0 if counting else _max_tokens(body)
    settings = read_settings(body, max_tokens=max_tokens, counting=counting)
    stream = body.flag("stream")
    prewarm = not counting and max_tokens == 0
    if prewarm:
        _check_prewarm(body, stream=stream)
    tools = blocks.tools(body)
    if settings.tool_choice.mode == "required" and not counting:
        check_forced_call(settings, [*tools, *blocks.deferred.values()])
    prompt = Prompt(
        tools=tools,
        system=blocks.system(body),
        messages=blocks.messages(body),
        template_options={"enable_thinking": "thinking" in settings.parameters},
    )
    if blocks.citing:
        settings.parameters["citations"] = True
    prompt = _with_prefill(prompt, counting=counting)
    sampling = _sampling(body, max_tokens, settings)
    diagnostics: DiagnosticsRequest | None = None
    if (asked := body.child("diagnostics")) is not None:
        diagnostics = _diagnostics(asked, body, betas, settings)
    return Request(
        id=request_id,
        wire="anthropic",
        model=model,
        prompt=prompt,
        sampling=sampling,
        stream=stream and not counting,
        automatic=automatic.ttl_s if automatic is not None else None,
        prewarm=prewarm,
        marker_problems=tuple(blocks.problems),
        unseen=tuple(blocks.unseen),
        parameters=settings.parameters,
        options=AnthropicOptions(settings.thinking_display, diagnostics),
    )


def _diagnostics(
    asked: Node, body: Node, betas: str, settings: AnswerSettings
) -> DiagnosticsRequest:
    """The field `diagnostics`."""
    previous = asked.text("previous_message_id") if asked.has("previous_message_id") else None
    names = sorted({name.strip() for name in betas.split(",")})
    compared = [settings.parameters, body.json_value("context_management"), names]
    return DiagnosticsRequest(previous, settings_digest(compared))


def _max_tokens(body: Node) -> int:
    value = body.integer("max_tokens", low=0)
    if value is None:
        message = (
            "Input should be a valid integer" if "max_tokens" in body.value else "Field required"
        )
        raise invalid(("max_tokens",), message)
    return value


def _sampling(body: Node, max_tokens: int, settings: AnswerSettings) -> Sampling:
    stop = body.strings("stop_sequences")
    if len(stop) > MAX_STOPS:
        raise invalid(
            ("stop_sequences",), f"List should have at most {MAX_STOPS} items after validation"
        )
    if any(not text.strip() for text in stop):
        raise invalid(("stop_sequences",), "each stop sequence must contain non-whitespace")
    temperature = body.number("temperature", 0.0, 1.0)
    top_p = body.number("top_p", 0.0, 1.0)
    return Sampling(
        max_tokens=max_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=body.integer("top_k", low=0) or 0,
        stop=tuple(stop),
        tool_choice=settings.tool_choice,
        output_format=settings.output_format,
    )


def _check_prewarm(body: Node, *, stream: bool) -> None:
    """Refuses what a request that only warms the cache may not ask for (page "Prompt caching",
    "Pre-warming")."""
    refused = {
        "stream": stream,
        "thinking": (body.value.get("thinking") or {}).get("type") == "enabled",
        "output_config.format": bool((body.value.get("output_config") or {}).get("format")),
        "output_format": bool(body.value.get("output_format")),
        "tool_choice": (body.value.get("tool_choice") or {}).get("type") in ("tool", "any"),
    }
    for name, is_set in refused.items():
        if is_set:
            raise InvalidRequest("not allowed when `max_tokens` is 0", path=name)


def _with_prefill(prompt: Prompt, *, counting: bool) -> Prompt:
    """A last assistant turn is continued. It must end in text: a call without its result cannot be
    continued."""
    last: Message | None = prompt.messages[-1] if prompt.messages else None
    if last is None:
        raise invalid(("messages",), "at least one message is required")
    if last.role != "assistant":
        return prompt
    end = last.parts[-1]
    if isinstance(end, TextPart):
        return msgspec.structs.replace(prompt, continue_final=True)
    path = ("messages", len(prompt.messages) - 1)
    if isinstance(end, ToolCallPart) and not counting:
        calls = (part for part in last.parts if isinstance(part, ToolCallPart))
        ids = ", ".join(clip(part.call_id) for part in islice(calls, MAX_NAMED))
        raise invalid(
            path,
            f"`tool_use` ids were found without `tool_result` blocks immediately after: {ids}. "
            "Each `tool_use` block must have "
            "a corresponding `tool_result` block in the next message.",
        )
    if isinstance(end, ThinkingPart) and not counting:
        raise invalid(path, "The final block in an assistant message cannot be `thinking`.")
    return prompt
