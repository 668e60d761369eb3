"""Bodies with a few places replaced, removed, doubled or torn: the same ones for the same seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

CC: Final = {"type": "ephemeral", "ttl": "5m"}
CALLING_TURN: Final[dict[str, Any]] = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1, None, {}]}},
    ],
}
"""An assistant's turn of every kind of block, in Anthropic's format."""
VALID: Final[dict[str, Any]] = {
    "model": "smollm2-135m-instruct",
    "max_tokens": 3,
    "stream": False,
    "cache_control": {"type": "ephemeral"},
    "stop_sequences": ["x"],
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "low"},
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "diagnostics": {"previous_message_id": None},
    "metadata": {"user_id": "u"},
    "speed": "standard",
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "system": [{"type": "text", "text": "s", "cache_control": CC}],
    "tools": [
        {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": CC},
        {"name": "late", "input_schema": {"type": "object"}, "defer_loading": True},
    ],
    "messages": [
        {"role": "user", "content": "q"},
        CALLING_TURN,
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [
                        {"type": "text", "text": "r"},
                        {"type": "tool_reference", "tool_name": "late"},
                    ],
                    "is_error": False,
                },
                {
                    "type": "search_result",
                    "title": "t",
                    "source": "s",
                    "content": [{"type": "text", "text": "c"}],
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                },
                {"type": "text", "text": "go"},
            ],
        },
        {"role": "system", "content": "late"},
    ],
}
SCALARS: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63 - 1,
        2**64 - 1,
        0.5,
        -1e300,
        "",
        " ",
        "x",
        "한",
        "🙂",
        "\x00",
        "5m",
        "1h",
    ),
    *(
        "ephemeral",
        "text",
        "image",
        "document",
        "thinking",
        "tool_use",
        "tool_result",
        "any",
        "tool",
        "none",
        "enabled",
    ),
    *(
        "user",
        "assistant",
        "system",
        "base64",
        "json_schema",
        "smollm2-135m-instruct",
        "claude-opus-5",
        "x" * 300,
    ),
)
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
UNKNOWN: Final = ("x_new", "future", "vendor_field")
"""Members that no format has."""
KEYS: Final = (
    "type",
    "text",
    "ttl",
    "role",
    "content",
    "cache_control",
    "source",
    "data",
    "name",
    "schema",
    "x",
)


def mutants(
    seed: int,
    count: int,
    valid: Mapping[str, Any] = VALID,
    kept: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[bytes]:
    """`count` bodies made of `valid`, which is the first. What is `kept` is put back where it was
    taken out."""
    yield _encoded(valid)
    for i in range(1, count):
        yield _mutant(random.Random(f"{seed}/{i}"), valid, kept)


def _mutant(draw: random.Random, valid: Mapping[str, Any], kept: Mapping[str, Any]) -> bytes:
    body = copy.deepcopy(dict(valid))
    for _ in range(draw.randint(1, 3)):
        if known := paths(body):
            _change(draw, body, draw.choice(known))
    if draw.random() < 0.5:
        body["stream"] = True
    encoded = _encoded(body | {key: value for key, value in kept.items() if body.get(key) is None})
    if draw.random() < 0.05:
        at = draw.randrange(len(encoded))
        encoded = (
            encoded[:at]
            if draw.random() < 0.5
            else encoded[:at] + bytes([draw.randrange(256)]) + encoded[at + 1 :]
        )
    return encoded


def _encoded(body: Mapping[str, Any]) -> bytes:
    """As a client may write it, integers of more than 64 bits too."""
    return json.dumps(dict(body), ensure_ascii=False, separators=(",", ":")).encode()


def _change(draw: random.Random, body: Any, path: tuple[Any, ...]) -> None:
    *parents, key = path
    holder = body
    for step in parents:
        holder = holder[step]
    match draw.choice(["replace", "replace", "alike", "alike", "add", "remove", "double", "swap"]):
        case "replace":
            holder[key] = _value(draw, 2)
        case "alike":
            holder[key] = _alike(draw, holder[key])
        case "add" if isinstance(holder, dict):
            holder[draw.choice(KEYS)] = _value(draw, 2)
        case "remove":
            del holder[key]
        case "double" if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        case "swap" if isinstance(holder, list):
            holder[key], holder[0] = holder[0], holder[key]
        case _:
            holder[key] = [holder[key]]


def _alike(draw: random.Random, value: Any) -> Any:
    """Another value of the same JSON type: what a format takes one of, it may take many of."""
    match value:
        case bool():
            return not value
        case str():
            return draw.choice([scalar for scalar in SCALARS if isinstance(scalar, str)])
        case int() | float():
            return draw.choice([0, 1, 2, 3, 0.5, value + 1, -value])
        case list():
            return draw.sample(value, draw.randint(0, len(value)))
        case dict():
            return dict(draw.sample(list(value.items()), len(value))) | {
                draw.choice(UNKNOWN): draw.choice(SCALARS)
            }
    return None


def _value(draw: random.Random, depth: int) -> Any:
    if depth and draw.random() < 0.3:
        return [_value(draw, depth - 1) for _ in range(draw.randint(0, 2))]
    if depth and draw.random() < 0.3:
        return {draw.choice(KEYS): _value(draw, depth - 1) for _ in range(draw.randint(0, 3))}
    return draw.choice(SCALARS)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside a JSON value."""
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [
        path for key, child in children for path in [(*prefix, key), *paths(child, (*prefix, key))]
    ]
