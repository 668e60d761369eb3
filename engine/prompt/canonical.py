"""The one text form of tools, calls and results: same meaning, same bytes.

Knows no template and no tokens.

JSON keeps the client's key order and its characters (no `\\u` escapes, no Unicode normalisation,
nothing trimmed), with the separators `", "` and `": "` that the Hermes and Qwen templates were
trained with. Integers stay integers and floats floats, and what neither
holds keeps its digits (`numerals.py`).
"""

from __future__ import annotations

from typing import Any, Final

from engine.prompt.call_format import CallFormat
from engine.prompt.numerals import to_text
from engine.prompt.types import Tool, ToolCallPart, ToolResultPart

TOOLS_OPEN: Final = (
    "You can call the functions described below, one JSON object per line.\n"
    'To call one, answer with {"name": <function name>, "arguments": <object>} between '
    "<tool_call> and </tool_call>.\n"
    "<tools>"
)
TOOLS_CLOSE: Final = "</tools>"


def to_json(value: Any) -> str:
    """`value` as JSON text; equal for equal values with equally ordered keys, in every process."""
    return to_text(value, ensure_ascii=False)


def tool_data(tool: Tool) -> dict[str, Any]:
    """A tool in the shape chat templates expect: `{type, function: {name, description,
    parameters}}`."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def call_data(call: ToolCallPart, call_id: str) -> dict[str, Any]:
    """A call in the shape chat templates expect: `{type, id, function: {name, arguments}}`,
    arguments not serialised."""
    return {
        "type": "function",
        "id": call_id,
        "function": {"name": call.name, "arguments": call.arguments},
    }


def call_text(call: ToolCallPart, form: CallFormat) -> str:
    """A call as a model writes it in `form`, for templates that have no place for calls."""
    arguments = call.arguments if isinstance(call.arguments, str) else to_json(call.arguments)
    return form.text([(call.name, arguments)])


def result_text(result: ToolResultPart) -> str:
    """The text that a call returned. Templates have no field for failure, so a failed call's text
    begins with `Error:`."""
    return f"Error: {result.text}" if result.is_error else result.text
