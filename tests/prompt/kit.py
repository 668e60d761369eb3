"""What prompt tests share: every template, shipped and foreign,
with a vocabulary of bytes that fits it, and short prompts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate, shipped_names
from engine.prompt.types import (
    CacheMark,
    Message,
    Position,
    Prompt,
    Role,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from tests.fakes.tokenizer import ByteTokenizer

FOLDER = Path(__file__).parent / "templates"
FOREIGN = sorted(path.stem for path in FOLDER.glob("*.jinja"))
TEMPLATES = [*shipped_names(), *FOREIGN]

SPECIAL = (
    "<s>",
    "</s>",
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    *(
        "[INST]",
        "[/INST]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
    ),
    *(
        "[ARGS]",
        "[CALL_ID]",
        "[TOOL_CONTENT]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "<|python_tag|>",
    ),
)
ADDED = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "  ",
)
BYTES = ByteTokenizer(SPECIAL, ADDED, template_tokens={"bos_token": "<s>", "eos_token": "</s>"})

MARK = CacheMark(300.0)


def source(name: str) -> str:
    """The text of a foreign template."""
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def template(name: str) -> ChatTemplate:
    """A shipped template, or one of those in tests/prompt/templates."""
    if name in FOREIGN:
        return ChatTemplate(source(name), name=name, tokens=BYTES.template_tokens)
    return ChatTemplate.load(name, Path(), BYTES)


RENDERERS = {name: Renderer(BYTES, template(name)) for name in TEMPLATES}


def say(role: Role, *texts: str) -> Message:
    """A message of text parts."""
    return Message(role, tuple(TextPart(text) for text in texts))


def call(number: int, **arguments: Any) -> ToolCallPart:
    """A call of `weather` with an id as Anthropic's API makes them."""
    return ToolCallPart(f"toolu_{number}", "weather", arguments)


def result(number: int, text: str) -> ToolResultPart:
    """What call `number` returned."""
    return ToolResultPart(f"toolu_{number}", text)


def tool(name: str, **properties: Any) -> Tool:
    """A tool with some described properties."""
    return Tool(
        name,
        f"about {name}",
        {"type": "object", "properties": properties, "required": list(properties)},
    )


def message(index: int, part: int = 0) -> Position:
    """The end of one message part."""
    return Position("messages", index, part)


AGENT = Prompt(
    tools=(tool("weather", city={"type": "string"}), tool("clock", zone={"type": "string"})),
    system=(TextPart("You are terse."), TextPart("Answer in German.")),
    messages=(
        say("user", "How warm is it in Köln", "and in Bonn?"),
        Message(
            "assistant", (TextPart("I look."), call(1, city="Köln"), call(2, city="Bonn", days=3))
        ),
        Message(
            "user", (result(1, "21 degrees"), result(2, "22 degrees"), TextPart("Now answer."))
        ),
        say("assistant", "Warm."),
        say("user", "Thanks."),
    ),
)
"""One conversation with everything in it."""
