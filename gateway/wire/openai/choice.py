"""`tool_choice` and `parallel_tool_calls` of both APIs. They differ in where a function's name stands: nested or flat."""

from __future__ import annotations

from typing import Any, Final

from engine.prompt.types import Tool
from engine.types import ToolChoice
from gateway.errors import InvalidRequest
from gateway.wire.fields import Node, clip
from gateway.wire.openai.errors import invalid, unsupported_value

MODES: Final = ("none", "auto", "required")


def tool_choice(body: Node, tools: tuple[Tool, ...], *, nested: bool) -> ToolChoice:
    """Raises `InvalidRequest` for a choice of tools that are not there, or that the model cannot be held to."""
    parallel = body.flag("parallel_tool_calls", default=True)
    value = body.value.get("tool_choice")
    if value is None:
        return ToolChoice(parallel=parallel)
    if type(value) is not dict:
        mode = body.choice("tool_choice", MODES)
        if mode == "required" and not tools:
            raise _without_tools()
        return _moded(mode, parallel=parallel)
    choice = Node(value, ("tool_choice",))
    kind = choice.text("type")
    if kind == "function":
        name = _name(choice, nested=nested)
        if name not in {tool.name for tool in tools}:
            raise invalid(choice.path, f"Tool choice '{clip(name)}' not found in 'tools' parameter.", "invalid_value")
        return ToolChoice("tool", name, parallel)
    if kind == "allowed_tools":
        return _allowed(_inner(choice, "allowed_tools") if nested else choice, tools, parallel=parallel, nested=nested)
    raise unsupported_value(choice.at("type"), clip(kind))


def parameters(choice: ToolChoice) -> dict[str, Any]:
    """The choice in the dialects' words, defaults left out."""
    found: dict[str, Any] = {}
    if choice.mode != "auto":
        words: dict[str, Any] = {"none": "none", "required": "any", "tool": {"tool": choice.name}}
        found["tool_choice"] = words[choice.mode]
    if not choice.parallel:
        found["parallel_tool_calls"] = False
    return found


def _allowed(allowed: Node, tools: tuple[Tool, ...], *, parallel: bool, nested: bool) -> ToolChoice:
    """A choice among some of the tools: all of them is no limit, one that is required is that one."""
    mode = allowed.choice("mode", ("auto", "required"))
    names = {_name(tool, nested=nested) for tool in allowed.children("tools") if tool.text("type") == "function"}
    known = {tool.name for tool in tools}
    if unknown := sorted(names - known):
        raise invalid(allowed.at("tools"), f"Tool choice '{clip(unknown[0])}' not found in 'tools' parameter.", "invalid_value")
    if names == known:
        return _moded(mode, parallel=parallel)
    if mode == "required" and len(names) == 1:
        return ToolChoice("tool", names.pop(), parallel)
    raise unsupported_value(("tool_choice", "type"), "allowed_tools")


def _moded(mode: str, *, parallel: bool) -> ToolChoice:
    return ToolChoice("none" if mode == "none" else "required" if mode == "required" else "auto", None, parallel)


def _name(node: Node, *, nested: bool) -> str:
    return (_inner(node, "function") if nested else node).text("name")


def _inner(node: Node, key: str) -> Node:
    inner = node.child(key)
    if inner is None:
        path = ".".join(map(str, node.at(key)))
        raise invalid(node.at(key), f"Missing required parameter: '{path}'.", "missing_required_parameter")
    return inner


def _without_tools() -> InvalidRequest:
    return invalid(("tool_choice",), "'tool_choice' is only allowed when 'tools' are specified.")
