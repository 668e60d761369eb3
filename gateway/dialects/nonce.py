"""The billing nonce that some clients put into the system text, different in every request."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from engine.prompt.types import Message, Prompt, TextPart

BILLING_NONCE: Final = re.compile(r"x-anthropic-billing-header:(?:\s*[A-Za-z_]+=[^;\r\n]*;)+\s*")
"""The whole first system block then: `x-anthropic-billing-header: cc_version=...; ...`."""

NONCE_LINE: Final = re.compile(
    r"x-anthropic-billing-header:(?:[ \t]*[A-Za-z_]+=[^;\r\n]*;)+[ \t]*(?:\r\n|\n|\r)"
)
"""The same as the first line of a text that goes on, with its line break."""

NONCE_DROPPED: Final = "billing-nonce-dropped"


def without_nonce(prompt: Prompt) -> Prompt:
    """The prompt without the nonce that its first text is, or begins with; else the prompt itself.

    The first text is that of the system, or of the first message where there is no system text. A
    raw prompt is not looked at: it is the client's to the letter.
    """
    if prompt.raw is not None:
        return prompt
    if prompt.system:
        first, *others = prompt.system
        if BILLING_NONCE.fullmatch(first.text):
            return msgspec.structs.replace(prompt, system=tuple(others))
        shorter = _without_line(first)
        if shorter is first:
            return prompt
        return msgspec.structs.replace(prompt, system=(shorter, *others))
    message = next(iter(prompt.messages), None)
    part = message.parts[0] if message is not None and message.parts else None
    if message is None or not isinstance(part, TextPart):
        return prompt
    shorter = _without_line(part)
    if shorter is part:
        return prompt
    begun = Message(message.role, (shorter, *message.parts[1:]))
    return msgspec.structs.replace(prompt, messages=(begun, *prompt.messages[1:]))


def _without_line(part: TextPart) -> TextPart:
    """The part without a nonce as its first line, if some text follows; else the part itself."""
    line = NONCE_LINE.match(part.text)
    if line is None or not (rest := part.text[line.end() :]).strip():
        return part
    return msgspec.structs.replace(part, text=rest)
