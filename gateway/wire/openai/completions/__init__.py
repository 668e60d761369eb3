"""OpenAI's legacy Completions: a raw prompt continued, without a chat template.

Knows no HTTP server and no caching rules.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from gateway.wire.base import Endpoint
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.completions.encode import TextStream, encode_answer
from gateway.wire.openai.completions.parse import parse
from gateway.wire.openai.errors import encode_error

COMPLETIONS_WIRE: Final = replace(
    CHAT_WIRE,
    endpoints=(Endpoint("/v1/completions", "completions"),),
    prefixes=("/v1/completions",),
    claims=lambda body: False,
    parse=parse,
    parse_count=parse,
    encode_answer=encode_answer,
    stream=TextStream,
    encode_error=partial(encode_error, input_field="prompt"),
)
