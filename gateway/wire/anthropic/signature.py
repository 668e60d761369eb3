"""Reasoning as clients see and send it back: shown, hidden or left out, and signed.

Knows no stream and no prompt.

A signature is no secret. It shows whether a client changed the text, and brings a hidden text
back. It begins with `pcg1`, then a letter for the kind of the rest, in URL-safe base64: `h` and the
SHA-256 of the text, or `t` and the text itself. Signatures that begin otherwise were made
elsewhere, and pass unread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Final

from gateway.request import Request
from gateway.wire.anthropic.settings import AnthropicOptions

_HASH: Final = "pcg1h"
_TEXT: Final = "pcg1t"


class BadSignature(Exception):
    """The text is not the one that was signed."""


@dataclass(slots=True)
class Thinking:
    """The reasoning of one answer. `hidden`: the client asked for `display: omitted` and gets the
    signature alone."""

    hidden: bool
    text: str = ""

    @classmethod
    def of(cls, request: Request) -> Thinking | None:
        """None where the client didn't ask for reasoning: then none is shown, though it be
        generated and counted."""
        if "thinking" not in request.parameters:
            return None
        return cls(hidden=request.options_of(AnthropicOptions).thinking_display == "omitted")

    def push(self, text: str) -> None:
        self.text += text

    @property
    def visible(self) -> str:
        """The text that the client may read."""
        return "" if self.hidden else self.text

    def signature(self) -> str:
        return (
            _TEXT + _encoded(self.text.encode())
            if self.hidden
            else _HASH + _encoded(_digest(self.text))
        )


def signed_text(shown: str, signature: str) -> str:
    """The reasoning that a block sent back by a client stands for. Raises `BadSignature`."""
    if signature.startswith(_HASH):
        if signature[len(_HASH) :] != _encoded(_digest(shown)):
            raise BadSignature
        return shown
    if not signature.startswith(_TEXT):
        return shown
    try:
        text = base64.b64decode(signature[len(_TEXT) :], altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise BadSignature from None
    if shown not in ("", text):
        raise BadSignature
    return text


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()
