"""A text that cannot fit is refused before it is tokenized; one that could is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import BadPrompt, ContextExceeded
from engine.prompt.ceiling import Ceiling
from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from engine.prompt.tokenizer import HfTokenizer
from engine.prompt.types import Message, Prompt, TextPart
from tests.fakes.tokenizer import ByteTokenizer


class Uncalled(ByteTokenizer):
    """Must not be asked to tokenize."""

    def encode(self, text: str) -> tuple[int, ...]:
        raise AssertionError("tokenized")


def prompt(text: str) -> Prompt:
    return Prompt(messages=(Message("user", (TextPart(text),)),))


@pytest.mark.parametrize("text", ["ab" * 500, "é" * 500, "\U0001f600" * 250])
def test_a_text_that_must_be_too_many_tokens_is_refused_unseen(text: str) -> None:
    """1,000 bytes are 100 tokens at the very least where no token has more than ten."""
    Ceiling(100, 10).check(text)
    with pytest.raises(ContextExceeded) as refused:
        Ceiling(99, 10).check(text)
    assert (refused.value.num_prompt, refused.value.limit) == (100, 99)


def test_what_keeps_control_tokens_apart_does_not_count() -> None:
    """The breaker is taken out again before tokens are made."""
    Ceiling(100, 10).check("\ue000".join("a" * 1000), "\ue000")


@pytest.mark.parametrize("raw", [None, "a" * 10_000])
def test_a_renderer_refuses_before_it_tokenizes(raw: str | None) -> None:
    """Conversations and raw prompts alike; without a limit they are tokenized."""
    tokenizer = Uncalled()
    long = Prompt(messages=prompt("a" * 10_000).messages, raw=raw)
    limit = 10_000 // tokenizer.longest_token
    template = ChatTemplate.load("chatml", Path(), tokenizer)
    with pytest.raises(ContextExceeded):
        Renderer(tokenizer, template, limit - 1).render(long)
    with pytest.raises(AssertionError, match="tokenized"):
        Renderer(tokenizer, template).render(long)


def test_half_a_character_is_still_a_bad_prompt() -> None:
    """Also in a text that is long enough to be measured."""
    tokenizer = ByteTokenizer()
    with pytest.raises(BadPrompt):
        Renderer(tokenizer, ChatTemplate.load("chatml", Path(), tokenizer), 10).render(
            prompt("\ud800" * 10_000)
        )


def test_no_token_of_a_real_vocabulary_is_longer(default_model: Path) -> None:
    """The longest token's own text, repeated, is as few tokens as its length allows, and is not
    refused."""
    tokenizer = HfTokenizer.from_folder(default_model)
    longest = tokenizer.longest_token
    assert longest is not None
    assert longest == max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
    text = next(
        tokenizer.token_bytes(i)
        for i in range(tokenizer.vocab_size)
        if len(tokenizer.token_bytes(i)) == longest
    )
    ids = tokenizer.encode(text.decode() * 50)
    Ceiling(len(ids), longest).check(text.decode() * 50)
