"""The tools of a Responses body.

Functions and custom tools are the model's, alone or in a namespace; tools a provider would run
itself are not here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from engine.prompt.types import Tool
from gateway.wire.fields import Node, clip
from gateway.wire.openai.caching import cache_control
from gateway.wire.openai.errors import invalid, unsupported_value
from gateway.wire.openai.messages import function_tool

CUSTOM_INPUT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""A custom tool takes free text: to the model it is a function with that text as its only
argument."""

SERVED: Final = frozenset({"function", "custom", "namespace"})
"""Types of tools that the client runs, and whose calls have a form here."""

FOR_TRAINED_MODELS: Final = frozenset(
    {"apply_patch", "computer", "computer_use_preview", "local_shell", "shell", "tool_search"}
)
"""Types that clients run, too, but only for models trained on their calls: no schema is sent along
that would tell another model what to write."""

HOSTED: Final = frozenset(
    {
        *("code_interpreter", "file_search", "image_generation", "mcp"),
        *("programmatic_tool_calling", "web_search", "web_search_2025_08_26"),
        *("web_search_preview", "web_search_preview_2025_03_11"),
    }
)
"""Types that the provider runs. Source of all: openai 3.57 `types/responses/tool_param.py`."""

HOSTED_WARNING: Final = "hosted-tools-ignored"
UNTRAINED_WARNING: Final = "client-tools-ignored"

_JOINT: Final = "__"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the model is offered, the names of custom ones, and warnings about the rest.

    `namespaced` has, by the name that the model is offered, the namespace and the client's name of
    a tool.
    """

    offered: tuple[Tool, ...]
    custom: frozenset[str]
    namespaced: dict[str, tuple[str, str]]
    warnings: tuple[str, ...]

    def names(self) -> dict[str, tuple[str, ...]]:
        """The offered names by each name that only tools of namespaces have with the client."""
        found = defaultdict[str, tuple[str, ...]](tuple)
        for offered, (_, name) in self.namespaced.items():
            found[name] += (offered,)
        return found


def read_tools(body: Node) -> Tools:
    """Raises `FieldError` or `InvalidRequest`.

    Hosted tools (web search, file search, code interpreter, MCP, ...) run on the provider's side
    and cannot run here. The model does not see them, and `pcg-warning` reports it: clients list
    them by default without needing them.
    """
    offered: list[Tool] = []
    custom: set[str] = set()
    namespaced: dict[str, tuple[str, str]] = {}
    warnings: list[str] = []
    for node in body.children("tools"):
        kind = node.text("type")
        if kind == "namespace":
            for own, tool in _members(node, custom).items():
                offered.append(tool)
                namespaced[tool.name] = (node.text("name"), own)
        elif kind in SERVED:
            offered.append(_tool(node)[1])
            if kind == "custom":
                custom.add(offered[-1].name)
        else:
            warnings.append(UNTRAINED_WARNING if kind in FOR_TRAINED_MODELS else HOSTED_WARNING)
    if namespaced:
        _check_names(body, offered, namespaced)
    unique = tuple(dict.fromkeys(warnings))
    return Tools(tuple(offered), frozenset(custom), namespaced, unique)


def joined_name(namespace: str, name: str) -> str:
    """The name by which the model is offered the tool `name` of a namespace, without one the name
    itself."""
    if not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith(_JOINT) else _JOINT}{name}"


def _members(namespace: Node, custom: set[str]) -> dict[str, Tool]:
    """The tools of a namespace by their own names, each under its joined name. What the namespace
    is for stands before the description of its first tool."""
    name, about = namespace.text("name"), namespace.text_or("description", "")
    members: dict[str, Tool] = {}
    for node in namespace.children("tools"):
        if (own := node.text("name")) in members:
            raise invalid(node.at("name"), f"Duplicate tool '{clip(own)}'.", "invalid_value")
        kind, tool = _tool(node)
        texts = (about, tool.description)
        members[own] = msgspec.structs.replace(
            tool,
            name=joined_name(name, own),
            description="\n".join(text for text in texts if text),
        )
        if kind == "custom":
            custom.add(members[own].name)
        about = ""
    return members


def _tool(node: Node) -> tuple[str, Tool]:
    """The type of a function or a custom tool, and what the model is offered."""
    kind = node.text("type")
    if kind == "custom":
        node = Node({**node.value, "parameters": dict(CUSTOM_INPUT)}, node.path)
    elif kind != "function":
        raise unsupported_value(node.at("type"), clip(kind))
    return kind, function_tool(node, cache_control(node))


def _check_names(body: Node, offered: list[Tool], namespaced: Mapping[str, Any]) -> None:
    counts = Counter(tool.name for tool in offered)
    for name in namespaced:
        if counts[name] > 1:
            message = f"Invalid 'tools': two tools would be offered as '{clip(name)}'."
            raise invalid(body.at("tools"), message, "invalid_value")
