"""The settings of a body: tool choice, reasoning, effort, output format.

Source: anthropic 2.14 `message_create_params`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from engine.prompt.numerals import to_text
from engine.prompt.types import Tool
from engine.types import OutputFormat, ToolChoice
from gateway.errors import InvalidRequest
from gateway.request import WireOptions
from gateway.wire.anthropic.errors import invalid, unknown_tag
from gateway.wire.fields import Node, clip

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
DEFAULT_EFFORT: Final = "high"
THINKING: Final = ("enabled", "adaptive", "disabled", "between_tools")
MIN_THINKING_BUDGET: Final = 1024


class DiagnosticsRequest(msgspec.Struct, frozen=True):
    """A request to be compared with an earlier message. `settings` is a digest of all that may part
    two requests besides model and prompt."""

    previous: str | None
    settings: str


class AnthropicOptions(WireOptions, frozen=True):
    """Options that only this format reads.

    `thinking_display`: `omitted` hides the reasoning's text. `diagnosis` is the answer's field
    `diagnostics`, once the earlier message has been looked up.
    """

    thinking_display: str | None = None
    diagnostics: DiagnosticsRequest | None = None
    diagnosis: dict[str, Any] | None = None


@dataclass(slots=True)
class AnswerSettings:
    """AnswerSettings as they are read. `parameters` are not rendered but may cost a cache level; a
    default that is spelled out is the same as one left out."""

    parameters: dict[str, Any] = field(default_factory=dict)
    thinking_display: str | None = None
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    output_format: OutputFormat | None = None


def read_settings(body: Node, *, max_tokens: int, counting: bool) -> AnswerSettings:
    """Raises `InvalidRequest`, `FieldError`."""
    settings = AnswerSettings()
    form: Node | None = None
    if (choice := body.child("tool_choice")) is not None:
        _read_tool_choice(choice, settings)
    if (thinking := body.child("thinking")) is not None:
        _read_thinking(thinking, settings, max_tokens=max_tokens, counting=counting)
    if (output := body.child("output_config")) is not None:
        effort = output.choice("effort", EFFORTS, DEFAULT_EFFORT)
        if effort != DEFAULT_EFFORT:
            settings.parameters["effort"] = effort
        form = output.child("format")
    if (form := form or body.child("output_format")) is not None:  # the latter as of 2025-11
        _read_format(form, settings)
    speed = body.choice("speed", ("standard", "fast"), "standard")
    if speed != "standard":
        settings.parameters["speed"] = speed
    return settings


def check_forced_call(settings: AnswerSettings, tools: Sequence[Tool]) -> None:
    """A forced call needs a tool to call, and leaves no room for reasoning before it."""
    if not tools:
        raise InvalidRequest(
            "tool_choice may only be specified while providing tools", path="tool_choice"
        )
    for name in set(settings.tool_choice.names) - {tool.name for tool in tools}:
        raise InvalidRequest(f"Tool '{clip(name)}' not found in provided tools", path="tool_choice")
    if settings.parameters.get("thinking", {}).get("type") == "enabled":
        raise InvalidRequest("Thinking may not be enabled when tool_choice forces tool use.")


def _read_tool_choice(choice: Node, settings: AnswerSettings) -> None:
    kind = choice.choice("type", ("auto", "any", "tool", "none"))
    name = choice.text("name") if kind == "tool" else None
    if kind != "auto":
        settings.parameters["tool_choice"] = kind if name is None else {"tool": name}
    parallel = not choice.flag("disable_parallel_tool_use")
    if not parallel:
        settings.parameters["parallel_tool_calls"] = False
    match kind:
        case "tool" | "any":
            settings.tool_choice = ToolChoice("required", () if name is None else (name,), parallel)
        case "none":
            settings.tool_choice = ToolChoice("none", parallel=parallel)
        case _:
            settings.tool_choice = ToolChoice("auto", parallel=parallel)


def _read_thinking(
    thinking: Node, settings: AnswerSettings, *, max_tokens: int, counting: bool
) -> None:
    kind = thinking.text("type")
    if kind not in THINKING:
        raise unknown_tag(("thinking",), kind, THINKING)
    if kind == "disabled":
        return
    settings.parameters["thinking"] = {"type": kind}
    details = Node(thinking.value, thinking.at(kind))
    if kind == "enabled":
        settings.parameters["thinking"]["budget_tokens"] = _budget(
            details, max_tokens=max_tokens, counting=counting
        )
    if details.has("display"):
        settings.thinking_display = details.choice("display", ("summarized", "omitted"))


def _budget(thinking: Node, *, max_tokens: int, counting: bool) -> int:
    budget = thinking.integer("budget_tokens", low=MIN_THINKING_BUDGET)
    if budget is None:
        raise invalid(thinking.at("budget_tokens"), "Field required")
    if not counting and 0 < max_tokens <= budget:
        raise InvalidRequest("`max_tokens` must be greater than `thinking.budget_tokens`.")
    return budget


def _read_format(form: Node, settings: AnswerSettings) -> None:
    """Another format costs the messages (page "Structured outputs", 2026-08)."""
    kind = form.text("type")
    if kind != "json_schema":
        raise unknown_tag(form.path, kind, ("json_schema",))
    definition = to_text(
        Node(form.value, form.at("json_schema")).json_object("schema"), ensure_ascii=False
    )
    settings.output_format = OutputFormat("json_schema", definition)
    settings.parameters["output_format"] = hashlib.sha256(definition.encode()).hexdigest()
