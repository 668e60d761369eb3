"""How a body wants to be answered: tools, reasoning, effort, form.

Source: anthropic 2.14 `message_create_params`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from engine.prompt.types import Tool
from engine.types import OutputFormat, ToolChoice
from gateway.errors import InvalidRequest
from gateway.wire.anthropic.errors import invalid, unknown_tag
from gateway.wire.fields import Node, clip

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
DEFAULT_EFFORT: Final = "high"
THINKING: Final = ("enabled", "adaptive", "disabled", "between_tools")
MIN_THINKING_BUDGET: Final = 1024


@dataclass(slots=True)
class RequestOptions:
    """`parameters` are not rendered but may cost a cache level; a default given in words is the
    same as one left out. `wire_options` only shape the answer."""

    parameters: dict[str, Any] = field(default_factory=dict)
    wire_options: dict[str, Any] = field(default_factory=dict)
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    output_format: OutputFormat | None = None


def read_options(body: Node, *, max_tokens: int, counting: bool) -> RequestOptions:
    """Raises `InvalidRequest`, `FieldError`."""
    wish = RequestOptions()
    _read_tool_choice(body, wish)
    _read_thinking(body, wish, max_tokens=max_tokens, counting=counting)
    _read_output(body, wish)
    if body.has("speed") and (speed := body.choice("speed", ("standard", "fast"))) != "standard":
        wish.parameters["speed"] = speed
    return wish


def check_tool_choice(wish: RequestOptions, tools: Sequence[Tool]) -> None:
    """A forced call needs a tool to call, and leaves no room for reasoning before it."""
    choice = wish.tool_choice
    if choice.mode != "required":
        return
    if not tools:
        raise InvalidRequest(
            "tool_choice may only be specified while providing tools", path="tool_choice"
        )
    for name in set(choice.names) - {tool.name for tool in tools}:
        raise InvalidRequest(f"Tool '{clip(name)}' not found in provided tools", path="tool_choice")
    if wish.parameters.get("thinking", {}).get("type") == "enabled":
        raise InvalidRequest("Thinking may not be enabled when tool_choice forces tool use.")


def _read_tool_choice(body: Node, wish: RequestOptions) -> None:
    choice = body.child("tool_choice")
    if choice is None:
        return
    kind = choice.choice("type", ("auto", "any", "tool", "none"))
    name = choice.text("name") if kind == "tool" else None
    if kind != "auto":
        wish.parameters["tool_choice"] = kind if name is None else {"tool": name}
    parallel = not choice.flag("disable_parallel_tool_use")
    if not parallel:
        wish.parameters["parallel_tool_calls"] = False
    match kind:
        case "tool" | "any":
            wish.tool_choice = ToolChoice("required", () if name is None else (name,), parallel)
        case "none":
            wish.tool_choice = ToolChoice("none", parallel=parallel)
        case _:
            wish.tool_choice = ToolChoice("auto", parallel=parallel)


def _read_thinking(body: Node, wish: RequestOptions, *, max_tokens: int, counting: bool) -> None:
    thinking = body.child("thinking")
    if thinking is None:
        return
    kind = thinking.text("type")
    if kind not in THINKING:
        raise unknown_tag(("thinking",), kind, THINKING)
    if kind == "disabled":
        return
    wish.parameters["thinking"] = {"type": kind}
    details = Node(thinking.value, thinking.at(kind))
    if kind == "enabled":
        wish.parameters["thinking"]["budget_tokens"] = _budget(
            details, max_tokens=max_tokens, counting=counting
        )
    if details.has("display"):
        wish.wire_options["thinking_display"] = details.choice("display", ("summarized", "omitted"))


def _budget(thinking: Node, *, max_tokens: int, counting: bool) -> int:
    budget = thinking.integer("budget_tokens", low=MIN_THINKING_BUDGET)
    if budget is None:
        raise invalid(thinking.at("budget_tokens"), "Field required")
    if not counting and 0 < max_tokens <= budget:
        raise InvalidRequest("`max_tokens` must be greater than `thinking.budget_tokens`.")
    return budget


def _read_output(body: Node, wish: RequestOptions) -> None:
    """`output_config`, and `output_format` as the beta of 2025-11 had it. Another format costs the
    messages (page "Structured outputs", 2026-08)."""
    output = body.child("output_config")
    if (
        output is not None
        and output.has("effort")
        and (effort := output.choice("effort", EFFORTS)) != DEFAULT_EFFORT
    ):
        wish.parameters["effort"] = effort
    form = (output.child("format") if output is not None else None) or body.child("output_format")
    if form is None:
        return
    kind = form.text("type")
    if kind != "json_schema":
        raise unknown_tag(form.path, kind, ("json_schema",))
    definition = json.dumps(
        Node(form.value, form.at("json_schema")).json_object("schema"), ensure_ascii=False
    )
    wish.output_format = OutputFormat("json_schema", definition)
    wish.parameters["output_format"] = hashlib.sha256(definition.encode()).hexdigest()
