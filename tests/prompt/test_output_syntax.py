"""What a rendered prompt says of its answer: which calls to look for,
and whether it begins with reasoning.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.prompt.call_format import HERMES
from engine.prompt.output_syntax import PLAIN, OutputSyntax
from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from engine.prompt.types import Prompt
from tests.fakes.tokenizer import ByteTokenizer
from tests.prompt.kit import RENDERERS, say, tool

ASKED = Prompt(messages=(say("user", "Is <think> a tag?"),), tools=(tool("weather"), tool("clock")))
OPENS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] "
    "}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def test_calls_of_the_tools_that_are_offered() -> None:
    """The template's format and the tools' names; without tools, in a model that does not reason,
    there is only text."""
    plain = ByteTokenizer()
    renderer = Renderer(plain, ChatTemplate.load("chatml", Path(), plain))
    assert renderer.render(ASKED).syntax == OutputSyntax(HERMES, frozenset({"weather", "clock"}))
    assert renderer.render(msgspec.structs.replace(ASKED, tools=())).syntax == PLAIN


@pytest.mark.parametrize(
    ("renderer", "prompt", "begun"),
    [
        (RENDERERS["qwen3"], ASKED, False),
        (
            RENDERERS["qwen3"],
            msgspec.structs.replace(ASKED, template_options={"enable_thinking": False}),
            False,
        ),
        (Renderer(ByteTokenizer(), ChatTemplate(OPENS, name="model", tokens={})), ASKED, True),
        (
            Renderer(ByteTokenizer(), ChatTemplate(OPENS, name="model", tokens={})),
            Prompt(messages=(say("user", "a"), say("assistant", "<think>")), continue_final=True),
            False,
        ),
    ],
    ids=["says-nothing", "closed", "opened", "continued"],
)
def test_whether_reasoning_has_begun(renderer: Renderer, prompt: Prompt, begun: bool) -> None:
    """Only where the template ends behind an opening tag that it does not close; what a client
    writes decides nothing."""
    reasoning = renderer.render(prompt).syntax.reasoning
    assert reasoning is not None
    assert reasoning.begun is begun
