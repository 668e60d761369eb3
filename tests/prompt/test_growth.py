"""What rendering costs: twice as much of anything costs at most about twice as much,
because one thread renders for all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from engine.prompt.position_marks import MarkedDict, to_json_marked
from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from engine.prompt.types import Message, Prompt, TextPart, Tool, ToolCallPart
from tests.fakes.growth import assert_linear
from tests.fakes.tokenizer import ByteTokenizer

TEXT: Final = (TextPart("x" * 50),)


def calls(num: int) -> Prompt:
    parts = tuple(ToolCallPart(f"c{i}", f"name{i}", {"a": i}) for i in range(num))
    return Prompt(
        messages=(Message("user", TEXT), Message("assistant", parts), Message("user", TEXT))
    )


def tools(num: int) -> Prompt:
    return Prompt(
        messages=(Message("user", TEXT),),
        tools=tuple(Tool(f"name{i}", "d", {}) for i in range(num)),
    )


def turns(num: int) -> Prompt:
    return Prompt(messages=(Message("user", TEXT), Message("system", TEXT)) * num)


@pytest.mark.parametrize("prompt", [calls, tools, turns])
def test_twice_as_much_costs_twice_as_much(prompt: Callable[[int], Prompt]) -> None:
    """Calls of ever other tools, definitions, and turns that a template joins to one message."""
    tokenizer = ByteTokenizer()
    renderer = Renderer(tokenizer, ChatTemplate.load("chatml", Path(), tokenizer))

    def cost(num: int) -> Callable[[], object]:
        made = prompt(num)
        return lambda: renderer.render(made)

    assert_linear(cost, 1_000)


@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_marked_json_costs_what_it_is_long(ensure_ascii: bool) -> None:
    """A template may write all tools as one list: every one's marks are put around its own text."""

    def marked(num: int) -> list[MarkedDict]:
        return [
            MarkedDict({"a": i}, chr(0xF0000 + 2 * i), chr(0xF0001 + 2 * i)) for i in range(num)
        ]

    assert to_json_marked(marked(2), ensure_ascii=ensure_ascii) == (
        '[\U000f0000{"a": 0}\U000f0001, \U000f0002{"a": 1}\U000f0003]'
    )

    def cost(num: int) -> Callable[[], object]:
        made = marked(num)
        return lambda: to_json_marked(made, ensure_ascii=ensure_ascii)

    assert_linear(cost, 4_000)
