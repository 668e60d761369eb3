"""The dialect of every preset."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.dialects import anthropic, openai, qwen
from gateway.dialects.dialect import Dialect
from gateway.dialects.marks import automatic_mark, checked_marks
from policies.rules import PresetName

ANTHROPIC: Final = Dialect(
    entries=anthropic.plan, usage=anthropic.usage, place_marks=checked_marks, looks_back=True
)
OPENAI: Final = Dialect(entries=openai.plan, usage=openai.usage, place_marks=automatic_mark)
QWEN: Final = Dialect(
    entries=qwen.plan, usage=qwen.usage, place_marks=automatic_mark, looks_back=True
)

DIALECTS: Final[Mapping[PresetName, Dialect]] = MappingProxyType(
    {
        "anthropic": ANTHROPIC,
        "openai": OPENAI,
        "gemini": OPENAI,
        "deepseek": OPENAI,
        "kimi": OPENAI,
        "qwen": QWEN,
        "openrouter": OPENAI,
    }
)
"""Rules by preset: a new provider adds an entry, or shares one."""
