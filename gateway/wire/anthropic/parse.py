"""The body of `/v1/messages` and `/v1/messages/count_tokens` -> `Request`. Source: anthropic 2.14 `message_create_params`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.prompt.types import Message, Prompt, TextPart, ThinkingPart, ToolCallPart
from engine.types import Sampling
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.anthropic.blocks import Blocks
from gateway.wire.anthropic.errors import from_field, invalid, unknown_tag
from gateway.wire.directives import cache_directives
from gateway.wire.fields import FieldError, Node, clip, decode_body

FIRST_VERSION: Final = "2023-06-01"
VERSIONS: Final = (FIRST_VERSION, "2026-10-21")
REMOVED_FIELDS: Final = ("temperature", "top_p", "top_k")
"""Fields of version 2023-06-01 that 2026-10-21 refuses, default values included."""

CHANGES_THE_ANSWER: Final = ("mcp_servers", "thread", "output_format")
"""Fields that would change what the model is asked or how it answers, and that are not there."""

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
DEFAULT_EFFORT: Final = "high"
THINKING: Final = ("enabled", "adaptive", "disabled", "between_tools")
MIN_THINKING_BUDGET: Final = 1024


def parse(body: bytes, headers: Mapping[str, str], *, request_id: str, counting: bool) -> Request:
    """`counting`: the body is for count_tokens, has no `max_tokens`, and nothing will be generated from it."""
    version = api_version(headers)
    try:
        return _request(decode_body(body), version, headers, request_id=request_id, counting=counting)
    except FieldError as error:
        raise from_field(error) from None


def api_version(headers: Mapping[str, str]) -> str:
    """The version asked for. Without the header, the first: programs that send none wrote to no other."""
    name = headers.get("anthropic-version", FIRST_VERSION).strip()
    if name not in VERSIONS:
        raise InvalidRequest(f"anthropic-version: '{clip(name)}' is not a valid version")
    return name


def _request(body: Node, version: str, headers: Mapping[str, str], *, request_id: str, counting: bool) -> Request:
    if version != FIRST_VERSION:
        for name in REMOVED_FIELDS:
            if name in body.value:
                raise invalid((name,), "Extra inputs are not permitted")
    for name in CHANGES_THE_ANSWER:
        if body.value.get(name):
            raise invalid((name,), "not supported by this model")
    model = body.text("model")
    if not model:
        raise invalid(("model",), "String should have at least 1 character")
    blocks = Blocks(citations=version == FIRST_VERSION)
    automatic = blocks.mark(body)
    max_tokens = 0 if counting else _max_tokens(body)
    sampling = _sampling(body, max_tokens)
    stream = body.flag("stream")
    parameters = _parameters(body, max_tokens=max_tokens, counting=counting)
    prewarm = not counting and max_tokens == 0
    if prewarm:
        _check_prewarm(body, stream=stream)
    if not counting:
        _check_answerable(body)
    prompt = Prompt(tools=blocks.tools(body), system=blocks.system(body), messages=blocks.messages(body))
    directives = cache_directives(headers)
    return Request(
        id=request_id,
        wire="anthropic",
        model=model,
        prompt=_with_prefill(prompt, counting=counting),
        sampling=sampling,
        stream=stream and not counting,
        automatic=automatic.ttl_s if automatic is not None else None,
        prewarm=prewarm,
        read_cache=directives.read,
        store_cache=directives.store,
        marker_problems=tuple(blocks.problems),
        parameters=parameters,
    )


def _max_tokens(body: Node) -> int:
    value = body.integer("max_tokens", low=0)
    if value is None:
        message = "Input should be a valid integer" if "max_tokens" in body.value else "Field required"
        raise invalid(("max_tokens",), message)
    return value


def _sampling(body: Node, max_tokens: int) -> Sampling:
    stop = body.strings("stop_sequences")
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
    )


def _parameters(body: Node, *, max_tokens: int, counting: bool) -> dict[str, Any]:
    """What is not rendered but may cost a cache level; a default given in words is the same as one left out."""
    parameters: dict[str, Any] = {}
    choice = body.child("tool_choice")
    if choice is not None:
        kind = choice.choice("type", ("auto", "any", "tool", "none"))
        if kind != "auto":
            parameters["tool_choice"] = kind if kind != "tool" else {"tool": choice.text("name")}
        if choice.flag("disable_parallel_tool_use"):
            parameters["parallel_tool_calls"] = False
    thinking = body.child("thinking")
    if thinking is not None:
        kind = thinking.text("type")
        if kind not in THINKING:
            raise unknown_tag(("thinking",), kind, THINKING)
        if kind != "disabled":
            parameters["thinking"] = {"type": kind}
        if kind == "enabled":
            budget = _budget(Node(thinking.value, thinking.at("enabled")), max_tokens=max_tokens, counting=counting)
            parameters["thinking"]["budget_tokens"] = budget
    output = body.child("output_config")
    if output is not None and output.has("effort") and (effort := output.choice("effort", EFFORTS)) != DEFAULT_EFFORT:
        parameters["effort"] = effort
    if body.has("speed") and (speed := body.choice("speed", ("standard", "fast"))) != "standard":
        parameters["speed"] = speed
    return parameters


def _budget(thinking: Node, *, max_tokens: int, counting: bool) -> int:
    budget = thinking.integer("budget_tokens", low=MIN_THINKING_BUDGET)
    if budget is None:
        raise invalid(thinking.at("budget_tokens"), "Field required")
    if not counting and 0 < max_tokens <= budget:
        raise InvalidRequest("`max_tokens` must be greater than `thinking.budget_tokens`.")
    return budget


def _check_prewarm(body: Node, *, stream: bool) -> None:
    """What a request that only warms the cache may not ask for (page "Prompt caching", "Pre-warming")."""
    refused = {
        "stream": stream,
        "thinking": (body.value.get("thinking") or {}).get("type") == "enabled",
        "output_config.format": bool((body.value.get("output_config") or {}).get("format")),
        "tool_choice": (body.value.get("tool_choice") or {}).get("type") in ("tool", "any"),
    }
    for name, given in refused.items():
        if given:
            raise InvalidRequest("not allowed when `max_tokens` is 0", path=name)


def _check_answerable(body: Node) -> None:
    """Refuses what would need another kind of answer than the model gives."""
    if (body.value.get("output_config") or {}).get("format"):
        raise InvalidRequest("structured output is not supported by this model", path="output_config.format")
    kind = (body.value.get("tool_choice") or {}).get("type")
    if kind in ("any", "tool"):
        raise InvalidRequest(f"'{kind}' is not supported by this model; use 'auto' or 'none'", path="tool_choice.type")


def _with_prefill(prompt: Prompt, *, counting: bool) -> Prompt:
    """A last assistant turn is continued. It must end in text: a call without its result cannot be continued."""
    last: Message | None = prompt.messages[-1] if prompt.messages else None
    if last is None:
        raise invalid(("messages",), "at least one message is required")
    if last.role != "assistant":
        return prompt
    end = last.parts[-1]
    if isinstance(end, TextPart):
        return Prompt(prompt.messages, prompt.system, prompt.tools, continue_final=True)
    path = ("messages", len(prompt.messages) - 1)
    if isinstance(end, ToolCallPart) and not counting:
        ids = ", ".join(clip(part.call_id) for part in last.parts if isinstance(part, ToolCallPart))
        raise invalid(
            path,
            f"`tool_use` ids were found without `tool_result` blocks immediately after: {ids}. Each `tool_use` block must have "
            "a corresponding `tool_result` block in the next message.",
        )
    if isinstance(end, ThinkingPart) and not counting:
        raise invalid(path, "The final block in an assistant message cannot be `thinking`.")
    return prompt
