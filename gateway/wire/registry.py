"""The wire formats that the gateway ships."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Wire
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.completions import COMPLETIONS_WIRE
from gateway.wire.openai.responses import responses_wire
from gateway.wire.openai.responses.compact import compact_wire

WIRES: Final[Mapping[str, Wire]] = MappingProxyType(
    {
        "anthropic": MESSAGES_WIRE,
        "openai": CHAT_WIRE,
        "responses": responses_wire(),
        "compact": compact_wire(),
        "completions": COMPLETIONS_WIRE,
    }
)
"""Formats by name; a provider may have several. A body that none claims is in the first one."""
