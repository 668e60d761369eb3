"""The forms of an answer beyond OpenAI's that vLLM's server takes:

`structured_outputs`, and the older `guided_...` fields.

Source: https://docs.vllm.ai/en/latest/features/structured_outputs.html (2026-11).
"""

from __future__ import annotations

import json
from typing import Any, Final

from engine.types import OutputFormat
from gateway.wire.fields import Node
from gateway.wire.openai.errors import invalid

KINDS: Final = ("json", "regex", "choice", "grammar")


def guided_format(body: Node) -> OutputFormat | None:
    """The one form that is asked for, or None. Raises `InvalidRequest` for several."""
    outputs = body.child("structured_outputs")
    asked = [(outputs, kind) for kind in KINDS if outputs is not None and outputs.has(kind)]
    asked += [(body, f"guided_{kind}") for kind in KINDS if body.has(f"guided_{kind}")]
    if len(asked) > 1:
        raise invalid(
            asked[1][0].at(asked[1][1]), "An answer can be kept in one form only.", "invalid_value"
        )
    for node, key in asked:
        return _format(node, key, key.removeprefix("guided_"))
    return None


def _format(node: Node, key: str, kind: str) -> OutputFormat:
    match kind:
        case "json":
            value: Any = node.value[key]
            return OutputFormat(
                "json_schema", value if type(value) is str else json.dumps(node.json_object(key))
            )
        case "regex":
            return OutputFormat("regex", node.text(key))
        case "choice":
            choices = node.strings(key)
            if not choices:
                raise invalid(
                    node.at(key),
                    f"Invalid '{key}': empty array. Expected at least one choice.",
                    "invalid_value",
                )
            return OutputFormat("lark", "start: " + " | ".join(map(json.dumps, choices)))
    return OutputFormat("lark", node.text(key))
