"""Fields spelled nearly like one that matters: a warning, and nothing else."""

from __future__ import annotations

from typing import Any, Final, get_args

import orjson
import pytest
from anthropic.types import message_create_params, message_param, tool_param
from anthropic.types.beta import message_create_params as beta_params
from openai.types import completion_create_params
from openai.types.chat import chat_completion_message_param
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params, response_input_item_param
from typing_extensions import is_typeddict

from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.misspelt import FIELDS, MAX_UNKNOWN, MEANT, misspelt
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.completions import COMPLETIONS_WIRE
from gateway.wire.openai.responses import responses_wire

CLAUDE: Final = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}]}
SLIP: Final = {"type": "text", "text": "q", "cache_contol": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("fields", "warnings"),
    [
        ({"system": [SLIP]}, ("cache_control-misspelt",)),
        ({"messages": [{"role": "user", "content": [SLIP, SLIP]}]}, ("cache_control-misspelt",)),
        (
            {"tools": [{"name": "f", "input_schema": {}, "cacheControl": {}}]},
            ("cache_control-misspelt",),
        ),
        ({"temprature": 0}, ("temperature-misspelt",)),
        (
            {"stop_sequence": ["x"], "Max-Tokens": 3},
            ("max_tokens-misspelt", "stop_sequences-misspelt"),
        ),
        ({"favourite_colour": 1, "x": 2, "cache": 3}, ()),
        ({"metadata": {"cache_contol": 1}}, ()),
        ({"tools": [{"name": "f", "input_schema": {"cache_contol": 1}}]}, ()),
        ({f"temperatur{i}": 1 for i in range(MAX_UNKNOWN + 1)}, ()),
        ({"temperature" + "e" * 90: 1}, ()),
    ],
)
def test_what_was_meant_is_named(fields: dict[str, Any], warnings: tuple[str, ...]) -> None:
    """Where fields have a meaning, and once each; what is like nothing is ignored as ever."""
    request = MESSAGES_WIRE.parse(orjson.dumps(CLAUDE | fields), {}, request_id="r")
    assert request.warnings == warnings


@pytest.mark.parametrize("wire", [CHAT_WIRE, responses_wire(), COMPLETIONS_WIRE])
def test_every_format_warns(wire: Any) -> None:
    """And keeps the warnings it has already."""
    body = {"model": "m", "prompt": "q", "input": "q", "messages": CLAUDE["messages"]}
    if wire is not CHAT_WIRE and wire is not COMPLETIONS_WIRE:
        del body["prompt"]
        body["tools"] = [{"type": "mcp"}]
    request = wire.parse(orjson.dumps(body | {"prompt_cache_ky": "k"}), {}, request_id="r")
    assert request.warnings[-1] == "prompt_cache_key-misspelt"
    assert len(request.warnings) == 1 + ("tools" in body)


def fields_of(kind: Any) -> set[str]:
    """The fields of a TypedDict, or of all in a union or list of them."""
    if is_typeddict(kind):
        return {*kind.__required_keys__, *kind.__optional_keys__}
    return {name for inner in get_args(kind) for name in fields_of(inner)}


@pytest.mark.parametrize(
    "kind",
    [
        message_create_params.MessageCreateParamsNonStreaming,
        beta_params.MessageCreateParamsNonStreaming,
        message_param.MessageParam,
        tool_param.ToolParam,
        chat_params.CompletionCreateParamsNonStreaming,
        chat_completion_message_param.ChatCompletionMessageParam,
        completion_create_params.CompletionCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsNonStreaming,
        response_input_item_param.ResponseInputItemParam,
    ],
)
def test_no_field_of_an_sdk_is_a_slip(kind: Any) -> None:
    """However near it is to another."""
    found = fields_of(kind)
    assert found
    assert [name for name in found - FIELDS if misspelt({name: None})] == []


def test_what_can_be_meant_is_known() -> None:
    """A field is never a slip for itself."""
    assert set(MEANT) <= FIELDS
