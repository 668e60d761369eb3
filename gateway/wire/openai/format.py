"""The language an answer must be in:

`response_format` of Chat Completions and `text.format` of Responses.
"""

from __future__ import annotations

import hashlib
from typing import Any

from engine.types import OutputFormat
from gateway.wire import json_text
from gateway.wire.fields import Node, clip
from gateway.wire.openai.errors import missing, unsupported_value


def output_format(node: Node | None, *, nested: bool) -> OutputFormat | None:
    """None for plain text. The schema stands in `json_schema` (`nested`, Chat Completions) or
    beside the type (Responses)."""
    if node is None:
        return None
    match kind := node.text("type"):
        case "text":
            return None
        case "json_object":
            return OutputFormat("json_object")
        case "json_schema":
            holder = node.child("json_schema") if nested else node
            if holder is None:
                raise missing(node.at("json_schema"))
            holder.text("name")
            schema = holder.json_object("schema") if holder.has("schema") else {}
            return OutputFormat("json_schema", json_text.dumps(schema).decode())
    raise unsupported_value(node.at("type"), clip(kind))


def format_parameters(form: OutputFormat | None) -> dict[str, Any]:
    """The format in the dialects' words: its kind, and the digest of its definition."""
    if form is None:
        return {}
    return {"output_format": [form.kind, hashlib.sha256(form.definition.encode()).hexdigest()]}
