"""The `response` object: its output items, its status, its usage.

Source: openai 3.57 `types/responses/response.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from engine.types import FinishReason, TokenLogprobs
from gateway.errors import GatewayError, InvalidRequest, RateLimited
from gateway.request import Request
from gateway.wire import json_text
from gateway.wire.base import Answer, AnswerRun, ToolCall
from gateway.wire.openai import errors
from gateway.wire.openai.logprobs import token_logprobs
from gateway.wire.openai.responses.diagnose import diagnosis
from gateway.wire.openai.responses.options import ResponsesOptions
from gateway.wire.openai.responses.sealed import sealed
from gateway.wire.openai.usage import num_reasoning
from policies.ttl import parse_duration

INCOMPLETE: Final[frozenset[FinishReason]] = frozenset({"length", "context"})
HALF_HOUR_S: Final = 1800.0
"""Writes of longer classes than this are reported as `ttl_12h_tokens`: the format has only the
two."""

ERROR_CODES: Final[Mapping[type[GatewayError], str]] = {
    InvalidRequest: "invalid_prompt",
    RateLimited: "rate_limit_exceeded",
}
"""Source: openai 3.57 `types/responses/response_error.py`."""

Item = dict[str, Any]


def encode_answer(request: Request, answer: Answer, *, created_at_s: float) -> bytes:
    """One whole response, and why it ended."""
    return json_text.dumps(
        finished(request, answer, output(request, answer), created_at_s=created_at_s)
    )


def output(request: Request, answer: Answer) -> list[Item]:
    """The answer as items, in the order of its stream. The last item is as incomplete as the
    answer."""
    all_runs, calls = runs(request, answer), enumerate(answer.calls)
    items: list[Item] = []
    for i, run in enumerate(all_runs):
        cut = answer.reason in INCOMPLETE and i == len(all_runs) - 1
        status = "incomplete" if cut else "completed"
        match run.kind:
            case "thinking":
                items.append(reasoning_item(request, i, run.text))
            case "text":
                items.append(message_item(request, i, status, run.text, run.logprobs))
            case "call":
                number, call = next(calls)
                items.append(call_item(request, i, number, call, status))
    return items


def runs(request: Request, answer: Answer) -> tuple[AnswerRun, ...]:
    """The runs of the answer, an item each. An empty answer is one empty text; a request that only
    warms the cache has none."""
    return () if request.prewarm else answer.in_order() or (AnswerRun("text"),)


def begun(request: Request, *, created_at_s: float, status: str = "in_progress") -> dict[str, Any]:
    """The response before anything is generated, or without anything that was."""
    body = {
        "id": request.response_id,
        "object": "response",
        "created_at": created_at_s,
        "completed_at": None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": request.model,
        "output": [],
        "usage": None,
    }
    return body | request.options_of(ResponsesOptions).echo


def finished(
    request: Request, answer: Answer, items: list[Item], *, created_at_s: float
) -> dict[str, Any]:
    """The response with its output and its bill."""
    cut = answer.reason in INCOMPLETE and not request.prewarm
    body = begun(request, created_at_s=created_at_s) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items,
        "usage": usage(request, answer),
    }
    if not cut:
        body["completed_at"] = created_at_s
    if (compared := request.options_of(ResponsesOptions).compared) is not None:
        body["prompt_cache_diagnostics"] = diagnosis(compared, answer.usage)
    return body


def failed(request: Request, error: GatewayError, *, created_at_s: float) -> dict[str, Any]:
    """The response of a request that broke on the way. The format has few codes for why."""
    code = next(
        (code for kind, code in ERROR_CODES.items() if isinstance(error, kind)), "server_error"
    )
    fields = {"code": code, "message": errors.error_fields(error, input_field="input")["message"]}
    return begun(request, created_at_s=created_at_s, status="failed") | {"error": fields}


def usage(request: Request, answer: Answer) -> dict[str, Any]:
    """Source: openai 3.57 `types/responses/response_usage.py`. `input_tokens` includes tokens
    read and written."""
    counts = answer.usage
    details: dict[str, Any] = {
        "cached_tokens": counts.cache_read,
        "cache_write_tokens": counts.num_written,
    }
    if counts.num_written:
        named = {
            lifetime_s: parse_duration(name) for name, lifetime_s in request.ttl_classes.items()
        }
        short = sum(
            tokens for ttl_s, tokens in counts.cache_write if named.get(ttl_s, ttl_s) <= HALF_HOUR_S
        )
        details["cache_write_tokens_details"] = {
            "ttl_30m_tokens": short,
            "ttl_12h_tokens": counts.num_written - short,
        }
    return {
        "input_tokens": counts.num_prompt,
        "input_tokens_details": details,
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": num_reasoning(answer)},
        "total_tokens": counts.num_prompt + counts.output,
    }


def message_item(
    request: Request,
    index: int,
    status: str,
    text: str | None,
    logprobs: tuple[TokenLogprobs, ...] = (),
) -> Item:
    """A message; `text` None before it has a part."""
    content = [] if text is None else [text_part(text, logprobs)]
    return {
        "id": f"msg_{item_id(request, index)}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def text_part(text: str, logprobs: tuple[TokenLogprobs, ...] = ()) -> Item:
    return {
        "type": "output_text",
        "annotations": [],
        "logprobs": token_logprobs(logprobs),
        "text": text,
    }


def reasoning_item(request: Request, index: int, text: str | None) -> Item:
    """Reasoning in the open; sealed too where the client keeps the conversation itself."""
    item: Item = {"id": f"rs_{item_id(request, index)}", "type": "reasoning", "summary": []}
    if text is None:
        return item | {"content": []}
    item["content"] = [{"type": "reasoning_text", "text": text}]
    if request.options_of(ResponsesOptions).seal_reasoning:
        item["encrypted_content"] = sealed(text)
    return item


def call_item(request: Request, index: int, number: int, call: ToolCall, status: str) -> Item:
    """Call number `number` of the answer: of a function, or of a custom tool with its free text."""
    owner = item_id(request, index)
    if is_custom(request, call):
        item = {"id": f"ctc_{owner}", "type": "custom_tool_call"}
        item |= {"call_id": call_id(request, number)} | called(request, call)
        return item | {"input": custom_input(call.arguments)}
    item = {
        "id": f"fc_{owner}",
        "type": "function_call",
        "status": status,
        "call_id": call_id(request, number),
    }
    return item | called(request, call) | {"arguments": call.arguments}


def called(request: Request, call: ToolCall) -> dict[str, str]:
    """The names by which the client knows what is called."""
    namespace, name = request.options_of(ResponsesOptions).namespaced.get(
        call.name, ("", call.name)
    )
    return {"name": name} | ({"namespace": namespace} if namespace else {})


def is_custom(request: Request, call: ToolCall) -> bool:
    """Whether the call is of a custom tool, which takes free text."""
    return call.name in request.options_of(ResponsesOptions).custom_tools


def call_id(request: Request, number: int) -> str:
    """The id of call number `number` of the answer."""
    return f"call_{item_id(request, number)}"


def custom_input(arguments: str) -> str:
    """The free text of a custom tool's call, or the arguments as they are where the model did not
    keep to the form."""
    try:
        value = json_text.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get("input") if type(value) is dict else None
    return text if type(text) is str else arguments


def item_id(request: Request, index: int) -> str:
    """The id of item number `index` of the answer, without its prefix."""
    return f"{request.response_id.removeprefix('resp_')}_{index}"
