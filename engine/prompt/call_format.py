"""The ways models write tool calls, as data: the text around a call's name and arguments.

Knows no parser or grammar.

Sources: the chat templates of Hermes 2 Pro and Qwen 2.5/3, Llama 3.1 to 3.3, Mistral 7B v0.3 and
Nemo, Mistral Small 3.2 and Devstral, as published with the models (2026-11).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One way. All calls of an answer are `before`, the calls with `between` between them, `after`.

    A call is `opening(name)`, its arguments as JSON, `end`. `tags` are texts that are one token
    where the vocabulary has them as control tokens; the first `num_opens` of them begin a call
    wherever they stand. `close` may follow a call. With `bare` an object at the start of a line is
    a call too, if it names a tool that was offered. `is_named`: the name stands alone in front of
    the arguments, else both are members of an object.
    """

    name: str
    begin: str
    middle: str
    end: str
    before: str = ""
    between: str = "\n"
    after: str = ""
    tags: tuple[str, ...] = ()
    num_opens: int = 1
    close: str = ""
    bare: bool = False
    is_named: bool = False

    @property
    def opens(self) -> tuple[str, ...]:
        """The tags that begin a call."""
        return self.tags[: self.num_opens]

    def opening(self, tool_name: str) -> str:
        """The text of a call up to its arguments."""
        name = tool_name if self.is_named else json.dumps(tool_name, ensure_ascii=False)
        return f"{self.begin}{name}{self.middle}"

    def text(self, calls: Iterable[tuple[str, str]]) -> str:
        """Names and arguments (as JSON) as a model writes them."""
        written = (f"{self.opening(name)}{arguments}{self.end}" for name, arguments in calls)
        return f"{self.before}{self.between.join(written)}{self.after}"


HERMES: Final = CallFormat(
    "hermes",
    begin='<tool_call>\n{"name": ',
    middle=', "arguments": ',
    end="}\n</tool_call>",
    tags=("<tool_call>", "</tool_call>"),
    close="</tool_call>",
)
LLAMA3: Final = CallFormat(
    "llama3",
    begin='{"name": ',
    middle=', "parameters": ',
    end="}",
    tags=("<|python_tag|>",),
    bare=True,
)
MISTRAL: Final = CallFormat(
    "mistral",
    before="[TOOL_CALLS] [",
    begin='{"name": ',
    middle=', "arguments": ',
    end="}",
    between=", ",
    after="]",
    tags=("[TOOL_CALLS]",),
)
MISTRAL_ARGS: Final = CallFormat(
    "mistral_args",
    begin="[TOOL_CALLS]",
    middle="[ARGS]",
    end="",
    between="",
    tags=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    is_named=True,
)

_SIGNS: Final = (
    (re.compile(r"\[TOOL_CALLS\]\s*probecall\s*(\[CALL_ID\]\w*)?\[ARGS\]"), MISTRAL_ARGS),
    (re.compile(r"\[TOOL_CALLS\]\s*\["), MISTRAL),
    (re.compile(r"<tool_call>\s*\{[^<]*probecall"), HERMES),
    (re.compile(r'\{\s*"name":\s*"probecall",\s*"parameters":'), LLAMA3),
)


def detect_format(rendered: str) -> CallFormat | None:
    """The way a template writes a call of `probecall`, from a conversation it rendered; None if it
    is none of ours."""
    return next((made for sign, made in _SIGNS if sign.search(rendered)), None)
