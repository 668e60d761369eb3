"""Tools and JSON in an order of their own,
for clients that send the same in another order each time.

A policy's choice.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.prompt.types import Message, Part, Prompt, ToolCallPart
from policies.rules import DialectRules


def ordered(prompt: Prompt, rules: DialectRules) -> Prompt:
    """The prompt as the policy orders it. Marks stay at their places: a mark on the last tool is on
    whichever is last then."""
    if rules.caching.normalize.tool_order == "by_name":
        marks = [tool.cache for tool in prompt.tools]
        tools = sorted(prompt.tools, key=lambda tool: tool.name)
        placed = (
            msgspec.structs.replace(tool, cache=mark)
            for tool, mark in zip(tools, marks, strict=True)
        )
        prompt = msgspec.structs.replace(prompt, tools=tuple(placed))
    if rules.caching.normalize.json_keys == "sort":
        sorted_tools = (
            msgspec.structs.replace(tool, parameters=sorted_json(tool.parameters))
            for tool in prompt.tools
        )
        messages = (
            Message(message.role, tuple(map(_sorted_part, message.parts)))
            for message in prompt.messages
        )
        prompt = msgspec.structs.replace(
            prompt, tools=tuple(sorted_tools), messages=tuple(messages)
        )
    return prompt


def sorted_json(value: Any) -> Any:
    """The same value with the keys of its objects sorted, and `required`, a set, too. Other arrays
    stay."""
    if isinstance(value, dict):
        return {key: sorted_json(_as_set(key, value[key])) for key in sorted(value)}
    if isinstance(value, list):
        return [sorted_json(item) for item in value]
    return value


def _as_set(key: str, value: Any) -> Any:
    is_set = (
        key == "required"
        and isinstance(value, list)
        and all(isinstance(item, str) for item in value)
    )
    return sorted(value) if is_set else value


def _sorted_part(part: Part) -> Part:
    if isinstance(part, ToolCallPart) and isinstance(part.arguments, dict):
        return msgspec.structs.replace(part, arguments=sorted_json(part.arguments))
    return part
