"""The wire formats that the gateway ships."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.wire.anthropic import AnthropicWire
from gateway.wire.base import Wire
from gateway.wire.openai import OpenAIWire
from gateway.wire.openai.completions import CompletionsWire
from gateway.wire.openai.responses import ResponsesWire
from gateway.wire.openai.responses.compact import CompactWire

WIRES: Final[Mapping[str, Wire]] = MappingProxyType(
    {
        "anthropic": AnthropicWire(),
        "openai": OpenAIWire(),
        "responses": ResponsesWire(),
        "compact": CompactWire(),
        "completions": CompletionsWire(),
    }
)
"""Formats by name; a provider may have several. A body that none claims is in the first one."""
