"""Prompts without a template: the model is given what the client wrote."""

from __future__ import annotations

import pytest

from engine.errors import BadPrompt
from engine.prompt.render import Renderer
from engine.prompt.types import Message, Position, Prompt, TextPart
from tests.fakes.tokenizer import ByteTokenizer
from tests.prompt.kit import template

PLACE = Position("messages", 0, 0)


def render(raw: str | tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Token ids, and where the prompt's one position ends."""
    tokenizer = ByteTokenizer()
    prompt = Prompt(messages=(Message("user", (TextPart("x"),)),), raw=raw)
    rendered = Renderer(tokenizer, template("chatml")).render(prompt)
    return rendered.token_ids, rendered.offsets[PLACE]


def test_a_text_is_encoded_as_it_is() -> None:
    """No template around it, control tokens included: this client writes its own."""
    assert render("ab<|im_end|>") == ((97, 98, ByteTokenizer().special_tokens["<|im_end|>"]), 2)


def test_token_ids_are_the_prompt() -> None:
    """The position ends before the last token, which is always computed."""
    assert render((5, 6, 7)) == ((5, 6, 7), 2)


@pytest.mark.parametrize("raw", ["", (), (5, 999_999), "\ud800"])
def test_what_is_no_prompt(raw: str | tuple[int, ...]) -> None:
    """Nothing, ids the model does not know, and half a character are the client's error."""
    with pytest.raises(BadPrompt):
        render(raw)
