"""A call that the model wrote and the client sends back is the same text and the same tokens:
the next turn hits through.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prompt.render import Renderer
from engine.prompt.tokenizer import HfTokenizer
from engine.prompt.types import Message, Part, Prompt, TextPart, ThinkingPart, ToolCallPart
from tests.prompt.kit import RENDERERS, result, say, tool

ASKED = Prompt(
    messages=(say("user", "How warm is it?"),),
    tools=(tool("weather", city={"type": "string"}), tool("clock")),
)
Calls = list[tuple[str, dict[str, Any]]]
TWO: Calls = [("weather", {"city": "Köln", "at": [7.0, {"x": '</tool_call>"}'}]}), ("clock", {})]

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["weather", "clock"]),
        st.dictionaries(st.text(max_size=6), JSON, max_size=3),
    ),
    min_size=1,
    max_size=3,
)


def written(renderer: Renderer, calls: Calls, text: str = "") -> str:
    """An answer in the model's own format and the usual JSON style."""
    form = renderer.render(ASKED).syntax.calls
    assert form is not None
    syntax = form.text(
        [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    )
    return f"{text}\n{syntax}" if text else syntax


def echoed(calls: Calls, *before: Part) -> Prompt:
    """The next turn: the answer as a client understood it, and what the calls returned."""
    parts = (
        *before,
        *(ToolCallPart(f"toolu_{i}", name, arguments) for i, (name, arguments) in enumerate(calls)),
    )
    results = tuple(result(i, "21 degrees") for i in range(len(calls)))
    messages = (*ASKED.messages, Message("assistant", parts), Message("user", results))
    return msgspec.structs.replace(ASKED, messages=messages)


@pytest.mark.parametrize("name", ["chatml", "llama3", "plain", "qwen3", "mistral3"])
@pytest.mark.parametrize("text", ["", "I look."])
def test_the_text_is_the_same(name: str, text: str) -> None:
    """In every format whose template adds nothing of its own to a call."""
    renderer = RENDERERS[name]
    separator = "" if name == "mistral3" else "\n"
    answer = written(renderer, TWO) if not text else f"{text}{separator}{written(renderer, TWO)}"
    before = (TextPart(text),) if text else ()
    assert renderer.text(echoed(TWO, *before)).startswith(renderer.text(ASKED) + answer)


def test_a_template_that_numbers_calls_shares_the_first_ones_arguments() -> None:
    """Older Mistral templates write an id into each call that the model did not write: there the
    hit ends, not before."""
    renderer = RENDERERS["mistral"]
    answer = written(renderer, TWO)
    shared = answer[: answer.index('}, {"name"')]
    again = renderer.text(echoed(TWO))
    assert again[again.index("[TOOL_CALLS]") :].startswith(shared + ', "id": "call00001"}')


def test_reasoning_comes_back_where_the_template_keeps_it() -> None:
    """Between a call and its result, reasoning stands in front of the call as the model wrote
    it."""
    renderer = RENDERERS["qwen3"]
    answer = f"<think>\nhm\n</think>\n\n{written(renderer, TWO)}"
    assert renderer.text(echoed(TWO, ThinkingPart("hm"))).startswith(renderer.text(ASKED) + answer)


@settings(max_examples=40)
@given(CALLS, st.sampled_from(["", "I look.", "Hm:", "그럼"]))
def test_the_default_models_tokens_are_the_same(
    renderer: Renderer, tokenizer: HfTokenizer, calls: Calls, text: str
) -> None:
    """Whatever is called with whatever: the answer's tokens, encoded in one go as a model would,
    begin the next prompt."""
    answer = tokenizer.encode(written(renderer, calls, text))
    before = (TextPart(text),) if text else ()
    again = renderer.render(echoed(calls, *before)).token_ids
    expected = (*renderer.render(ASKED).token_ids, *answer)
    assert again[: len(expected)] == expected


def test_what_the_model_spelled_otherwise_is_compared_not_assumed(
    renderer: Renderer, tokenizer: HfTokenizer
) -> None:
    """Arguments in another JSON style come back in the usual one: the tokens are shared up to where
    they differ."""
    answer = tokenizer.encode(
        '<tool_call>\n{"name": "weather", "arguments": {"city":"Bonn"}}\n</tool_call>'
    )
    again = renderer.render(echoed([("weather", {"city": "Bonn"})])).token_ids[
        len(renderer.render(ASKED).token_ids) :
    ]
    shared = next(
        i for i, (one, other) in enumerate(zip(answer, again, strict=False)) if one != other
    )
    assert (
        tokenizer.decode(again[:shared]) == '<tool_call>\n{"name": "weather", "arguments": {"city'
    )
