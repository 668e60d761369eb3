"""The billing nonce that some clients put into the system text, different in every request."""

from __future__ import annotations

import re
from typing import Final

from engine.prompt.types import Prompt

BILLING_NONCE: Final = re.compile(r"x-anthropic-billing-header:(?:\s*[A-Za-z_]+=[^;\r\n]*;)+\s*")
"""The first system block then: `x-anthropic-billing-header: cc_version=...; ...`."""

NONCE_DROPPED: Final = "billing-nonce-dropped"


def has_billing_nonce(prompt: Prompt) -> bool:
    """Whether the first system block is nothing but the nonce."""
    return bool(prompt.system) and BILLING_NONCE.fullmatch(prompt.system[0].text) is not None
