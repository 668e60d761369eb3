"""Chat Completions that are refused: the field, the code and the words of each 400."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from tests.fakes.chat_bodies import (
    OTHER_TOOL,
    TOOL,
    WIRE,
    allowed,
    body,
    function,
    refused,
    text,
    turns,
    user,
)

BAD: list[tuple[Any, str | None, str | None, str]] = [
    (
        [],
        None,
        "invalid_type",
        "Invalid type for 'body': expected an object, but got an array instead.",
    ),
    (
        body(model=...),
        "model",
        "missing_required_parameter",
        "Missing required parameter: 'model'.",
    ),
    (
        body(model=1),
        "model",
        "invalid_type",
        "Invalid type for 'model': expected a string, but got an integer instead.",
    ),
    (
        body(messages=...),
        "messages",
        "missing_required_parameter",
        "Missing required parameter: 'messages'.",
    ),
    (
        body(messages=[]),
        "messages",
        "empty_array",
        "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an "
        "empty array instead.",
    ),
    (
        body(messages="hi"),
        "messages",
        "invalid_type",
        "Invalid type for 'messages': expected an array, but got a string instead.",
    ),
    (
        turns({"content": "x"}),
        "messages[0].role",
        "missing_required_parameter",
        "Missing required parameter: 'messages[0].role'.",
    ),
    (
        turns({"role": "bot", "content": "x"}),
        "messages[0].role",
        "invalid_value",
        "Invalid value: 'bot'. Supported values are: 'system', 'assistant', 'user', 'function', "
        "'tool', and 'developer'.",
    ),
    (
        turns({"role": "function", "name": "f", "content": "x"}),
        "messages[0].role",
        "unsupported_value",
        "Unsupported value: 'messages[0].role' does not support 'function' with this model.",
    ),
    (
        turns({"role": "user", "content": None}),
        "messages[0].content",
        "invalid_type",
        "Invalid value for 'content': expected a string, got null.",
    ),
    (
        turns({"role": "assistant"}),
        "messages[0].content",
        "invalid_type",
        "Invalid value for 'content': expected a string, got null.",
    ),
    (
        turns({"role": "user", "content": 3}),
        "messages[0].content",
        "invalid_type",
        "Invalid type for 'messages[0].content': expected an array, but got an integer instead.",
    ),
    (
        user(text(), {"type": "image_url", "image_url": {"url": "x"}}),
        "messages[0].content[1].type",
        "unsupported_value",
        "Unsupported value: 'messages[0].content[1].type' does not support 'image_url' with this "
        "model.",
    ),
    (
        user({"type": "text"}),
        "messages[0].content[0].text",
        "missing_required_parameter",
        "Missing required parameter: 'messages[0].content[0].text'.",
    ),
    (
        turns({"role": "tool", "content": "x"}),
        "messages[0].tool_call_id",
        "missing_required_parameter",
        "Missing required parameter: 'messages[0].tool_call_id'.",
    ),
    (
        turns(
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]}
        ),
        "messages[0].tool_calls[0].function",
        "missing_required_parameter",
        "Missing required parameter: 'messages[0].tool_calls[0].function'.",
    ),
    (
        turns(
            {"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": ""}}
        ),
        "messages[0].function_call",
        "unsupported_parameter",
        "Unsupported parameter: 'messages[0].function_call' is not supported with this model.",
    ),
    (
        body(tools=[{"type": "custom", "custom": {"name": "f"}}]),
        "tools[0].type",
        "unsupported_value",
        "Unsupported value: 'tools[0].type' does not support 'custom' with this model.",
    ),
    (
        function(name="a b"),
        "tools[0].function.name",
        "invalid_value",
        "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that "
        "matches the pattern "
        "'^[a-zA-Z0-9_-]{1,64}$'.",
    ),
    (
        function(name="f", parameters=[]),
        "tools[0].function.parameters",
        "invalid_type",
        "Invalid type for 'tools[0].function.parameters': expected an object, but got an array "
        "instead.",
    ),
    (
        body(n=129),
        "n",
        "integer_above_max_value",
        "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 129 instead.",
    ),
    (
        body(n=0),
        "n",
        "integer_below_min_value",
        "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.",
    ),
    (
        body(temperature=2.5),
        "temperature",
        "decimal_above_max_value",
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.5 "
        "instead.",
    ),
    (
        body(max_tokens=0),
        "max_tokens",
        "integer_below_min_value",
        "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 "
        "instead.",
    ),
    (
        body(stop=["a", "b", "c", "d", "e"]),
        "stop",
        "array_above_max_length",
        "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an "
        "array with length 5 instead.",
    ),
    (
        body(stop=""),
        "stop",
        "invalid_value",
        "Invalid 'stop': empty string. A stop sequence has at least one character.",
    ),
    (
        body(logit_bias={str(i): 1 for i in range(4097)}),
        "logit_bias",
        "object_above_max_properties",
        "Invalid 'logit_bias': too many properties. Expected an object with at most 4096 "
        "properties, but got an object with "
        "4097 properties instead.",
    ),
    (
        body(logit_bias={"x": 1}),
        "logit_bias",
        "invalid_value",
        "Invalid key in 'logit_bias': x. Expected a token id.",
    ),
    (
        body(top_logprobs=2),
        "top_logprobs",
        None,
        "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
    ),
    (
        body(logprobs=True, top_logprobs=21),
        "top_logprobs",
        "integer_above_max_value",
        "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 21 "
        "instead.",
    ),
    (
        body(functions=[{"name": "f"}]),
        "functions",
        "unsupported_parameter",
        "Unsupported parameter: 'functions' is not supported with this model.",
    ),
    (
        body(web_search_options={}),
        "web_search_options",
        "unsupported_parameter",
        "Unsupported parameter: 'web_search_options' is not supported with this model.",
    ),
    (
        body(moderation={"model": "omni-moderation-latest"}),
        "moderation",
        "unsupported_parameter",
        "Unsupported parameter: 'moderation' is not supported with this model.",
    ),
    (
        body(modalities=["text", "audio"]),
        "modalities",
        "unsupported_value",
        "Unsupported value: 'modalities' does not support 'audio' with this model.",
    ),
    (
        body(response_format={"type": "json_schema"}),
        "response_format.json_schema",
        "missing_required_parameter",
        "Missing required parameter: 'response_format.json_schema'.",
    ),
    (
        body(response_format={"type": "json_schema", "json_schema": {"schema": {}}}),
        "response_format.json_schema.name",
        "missing_required_parameter",
        "Missing required parameter: 'response_format.json_schema.name'.",
    ),
    (
        body(response_format={"type": "xml"}),
        "response_format.type",
        "unsupported_value",
        "Unsupported value: 'response_format.type' does not support 'xml' with this model.",
    ),
    (
        body(structured_outputs={"regex": "a", "choice": ["b"]}),
        "structured_outputs.choice",
        "invalid_value",
        "An answer can be kept in one form only.",
    ),
    (
        body(guided_choice=[]),
        "guided_choice",
        "invalid_value",
        "Invalid 'guided_choice': empty array. Expected at least one choice.",
    ),
    (
        body(tool_choice="required"),
        "tool_choice",
        None,
        "'tool_choice' is only allowed when 'tools' are specified.",
    ),
    (
        body(tool_choice={"type": "function", "function": {"name": "f"}}),
        "tool_choice",
        "invalid_value",
        "Tool choice 'f' not found in 'tools' parameter.",
    ),
    (
        body(tool_choice={"type": "function"}, tools=[TOOL]),
        "tool_choice.function",
        "missing_required_parameter",
        "Missing required parameter: 'tool_choice.function'.",
    ),
    (
        body(tool_choice={"type": "custom", "custom": {"name": "f"}}, tools=[TOOL]),
        "tool_choice.type",
        "unsupported_value",
        "Unsupported value: 'tool_choice.type' does not support 'custom' with this model.",
    ),
    (
        body(tool_choice=allowed("auto"), tools=[TOOL, OTHER_TOOL]),
        "tool_choice.allowed_tools.tools",
        "invalid_value",
        "Invalid 'tool_choice.allowed_tools.tools': no tool to choose from.",
    ),
    (
        body(stream_options={"include_usage": True}),
        "stream_options",
        None,
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
    ),
    (
        body(prompt_cache_options={"ttl": "9h"}),
        "prompt_cache_options.ttl",
        "invalid_value",
        "Invalid value: '9h'. Supported values are: '5m', '30m', '1h', and '12h'.",
    ),
    (
        user(text(prompt_cache_breakpoint={"mode": "implicit"})),
        "messages[0].content[0].prompt_cache_breakpoint.mode",
        "invalid_value",
        "Invalid value: 'implicit'. Supported values are: 'explicit'.",
    ),
]


@pytest.mark.parametrize(
    ("fields", "param", "code", "message"), BAD, ids=[row[3][:60] for row in BAD]
)
def test_refused_bodies(fields: Any, param: str | None, code: str | None, message: str) -> None:
    """Each broken body gets the one message, param and code that name its field."""
    error = refused(fields)
    assert (error["param"], error["code"], error["message"]) == (param, code, message)


def test_malformed_json() -> None:
    """Bytes that are no JSON are a 400."""
    with pytest.raises(InvalidRequest, match="could not parse the JSON body"):
        WIRE.parse(b'{"model": ', {}, request_id="r")
