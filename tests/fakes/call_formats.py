"""All formats of calls, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from engine.prompt.call_format import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, CallFormat

FORMATS: Final[Mapping[str, CallFormat]] = MappingProxyType(
    {form.name: form for form in (HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS)}
)
