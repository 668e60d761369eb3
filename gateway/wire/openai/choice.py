"""`tool_choice` and `parallel_tool_calls` of both APIs.

They differ in where a function's name stands: nested or flat.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from engine.prompt.types import Tool
from engine.types import ToolChoice
from gateway.errors import InvalidRequest
from gateway.wire.fields import Node, clip
from gateway.wire.openai.errors import invalid, unsupported_value

NO_OTHERS: Final[Mapping[str, tuple[str, ...]]] = {}
MODES: Final = ("none", "auto", "required")
CALLED_BY_CLIENTS: Final = ("function", "custom")
"""Kinds of tools, of which Chat Completions, where names are nested, has the first only."""


def tool_choice(
    body: Node,
    tools: tuple[Tool, ...],
    *,
    nested: bool,
    names: Mapping[str, tuple[str, ...]] = NO_OTHERS,
) -> ToolChoice:
    """Raises `InvalidRequest` for a choice of tools that are not there, or that the model cannot be
    held to. `names` are the offered names of tools that have another with the client."""
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
    if kind == "function" or (kind in CALLED_BY_CLIENTS and not nested):
        name = _name(choice, nested=nested)
        found = _offered(name, {tool.name for tool in tools}, names)
        if not found:
            raise invalid(
                choice.path,
                f"Tool choice '{clip(name)}' not found in 'tools' parameter.",
                "invalid_value",
            )
        return ToolChoice("required", found, parallel)
    if kind == "allowed_tools":
        return _allowed(
            _inner(choice, "allowed_tools") if nested else choice,
            tools,
            parallel=parallel,
            nested=nested,
            others=names,
        )
    raise unsupported_value(choice.at("type"), clip(kind))


def parameters(choice: ToolChoice) -> dict[str, Any]:
    """The choice in the dialects' words, defaults left out."""
    found: dict[str, Any] = {}
    word = {"auto": "auto", "none": "none", "required": "any"}[choice.mode]
    if len(choice.names) == 1 and word == "any":
        found["tool_choice"] = {"tool": choice.names[0]}
    elif choice.names:
        found["tool_choice"] = {word: list(choice.names)}
    elif word != "auto":
        found["tool_choice"] = word
    if not choice.parallel:
        found["parallel_tool_calls"] = False
    return found


def _offered(
    name: str, known: Collection[str], others: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """The offered names of what the client calls `name`: one, or those in several namespaces."""
    return (name,) if name in known else others.get(name, ())


def _allowed(
    allowed: Node,
    tools: tuple[Tool, ...],
    *,
    parallel: bool,
    nested: bool,
    others: Mapping[str, tuple[str, ...]],
) -> ToolChoice:
    """A choice among some of the tools: all of them is no limit. The provider's own tools are not
    offered here."""
    mode = allowed.choice("mode", ("auto", "required"))
    known = {tool.name for tool in tools}
    names: set[str] = set()
    for tool in allowed.children("tools"):
        if tool.text("type") in CALLED_BY_CLIENTS:
            name = _name(tool, nested=nested)
            names.update(_offered(name, known, others) or (name,))
    if unknown := sorted(names - known):
        raise invalid(
            allowed.at("tools"),
            f"Tool choice '{clip(unknown[0])}' not found in 'tools' parameter.",
            "invalid_value",
        )
    if not names:
        path = allowed.at("tools")
        raise invalid(path, f"Invalid '{_dotted(path)}': no tool to choose from.", "invalid_value")
    chosen = () if names == known else tuple(tool.name for tool in tools if tool.name in names)
    return msgspec.structs.replace(_moded(mode, parallel=parallel), names=chosen)


def _moded(mode: str, *, parallel: bool) -> ToolChoice:
    return ToolChoice(
        "none" if mode == "none" else "required" if mode == "required" else "auto",
        parallel=parallel,
    )


def _name(node: Node, *, nested: bool) -> str:
    return (_inner(node, node.text("type")) if nested else node).text("name")


def _inner(node: Node, key: str) -> Node:
    inner = node.child(key)
    if inner is None:
        raise invalid(
            node.at(key),
            f"Missing required parameter: '{_dotted(node.at(key))}'.",
            "missing_required_parameter",
        )
    return inner


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))


def _without_tools() -> InvalidRequest:
    return invalid(("tool_choice",), "'tool_choice' is only allowed when 'tools' are specified.")
