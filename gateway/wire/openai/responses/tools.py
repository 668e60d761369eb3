"""The tools of a Responses body.

Functions and custom tools are the model's; tools a provider would run itself are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.prompt.types import Tool
from gateway.wire.fields import Node
from gateway.wire.openai.caching import cache_control
from gateway.wire.openai.messages import function_tool

CUSTOM_INPUT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""A custom tool takes free text: to the model it is a function with that text as its only
argument."""

HOSTED_WARNING: Final = "hosted-tools-ignored"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the model is offered, the names of custom ones, and warnings about the
    rest."""

    offered: tuple[Tool, ...]
    custom: frozenset[str]
    warnings: tuple[str, ...]


def read_tools(body: Node) -> Tools:
    """Raises `FieldError` or `InvalidRequest`.

    Hosted tools (web search, file search, code interpreter, MCP, ...) run on the provider's side
    and cannot run here. The model does not see them, and `pcg-warning` reports it: clients list
    them by default without needing them.
    """
    offered: list[Tool] = []
    custom: set[str] = set()
    hosted = False
    for node in body.children("tools"):
        match node.text("type"):
            case "function":
                offered.append(function_tool(node, cache_control(node)))
            case "custom":
                tool = function_tool(
                    Node({**node.value, "parameters": dict(CUSTOM_INPUT)}, node.path),
                    cache_control(node),
                )
                offered.append(tool)
                custom.add(tool.name)
            case _:
                hosted = True
    return Tools(tuple(offered), frozenset(custom), (HOSTED_WARNING,) if hosted else ())
