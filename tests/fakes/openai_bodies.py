"""Valid bodies of OpenAI's three formats with nearly every field: what fuzzing begins from."""

from __future__ import annotations

from typing import Any, Final

CC: Final = {"type": "ephemeral", "ttl": "5m"}
CHAT: Final[dict[str, Any]] = {
    "model": "gpt-test",
    "max_tokens": 5,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 1,
    "seed": 3,
    "stop": ["x"],
    "n": 1,
    "logit_bias": {"5": 1},
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "reasoning_effort": "low",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "messages": [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": [
            {"type": "text", "text": "q", "prompt_cache_breakpoint": {"mode": "explicit"}}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [
            {"type": "text", "text": "r", "cache_control": CC}]},
    ],
}  # fmt: skip

RESPONSES: Final[dict[str, Any]] = {
    "model": "gpt-test",
    "stream": True,
    "instructions": "s",
    "max_output_tokens": 5,
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "reasoning": {"effort": "low"},
    "text": {
        "verbosity": "low",
        "format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}},
    },
    "tool_choice": {"type": "function", "name": "f"},
    "metadata": {"a": "b"},
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "explicit", "ttl": "12h", "comparison_response_id": "resp_1"},
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}},
        {"type": "custom", "name": "g"},
    ],
    "input": [
        {"role": "developer", "content": "d"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "q", "prompt_cache_breakpoint": {"mode": "explicit"}}
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "encrypted_content": "pcg1.eJzLyAUAAT8A1w==",
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "r"}],
        },
        {"type": "custom_tool_call", "call_id": "e", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "e", "output": "y"},
    ],
}

COMPLETIONS: Final[dict[str, Any]] = {
    "model": "gpt-test",
    "prompt": ["Once upon a time"],
    "max_tokens": 5,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 1,
    "logprobs": 2,
    "n": 1,
    "best_of": 1,
    "stop": ["x"],
    "prompt_cache_key": "k",
}
