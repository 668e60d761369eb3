"""Short ways to write steps: a minimal body of each format, what differs from it,
and text of any length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tools.corpus.steps import Step

MISSING: Final = ...
"""As a field's value: the field is left out."""

V1: Final = {"anthropic-version": "2023-06-01"}
V2: Final = {"anthropic-version": "2026-10-21"}

_WORDS: Final = (
    *("river", "stone", "amber", "night", "quiet", "copper", "garden"),
    *("window", "harbor", "paper", "silver", "morning", "forest", "letter"),
)


def text(topic: str, num_words: int) -> str:
    """Words that begin like no other topic's, the same on every call."""
    return f"{topic}: " + " ".join(
        _WORDS[(i * i + len(topic)) % len(_WORDS)] for i in range(num_words)
    )


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def block(content: str, ttl: str | None = None, **more: Any) -> dict[str, Any]:
    """A text block of Anthropic's format, marked where a TTL is given."""
    return {"type": "text", "text": content} | ({"cache_control": mark(ttl)} if ttl else {}) | more


def mark(ttl: str) -> dict[str, Any]:
    return {"type": "ephemeral", "ttl": ttl}


def body(minimal: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**minimal, **changes}.items() if value is not MISSING}


def messages(name: str, /, *, step: Mapping[str, Any] | None = None, **changes: Any) -> Step:
    """POST /v1/messages. `step` holds fields of the step, `changes` of the body."""
    minimal = {"model": "small", "max_tokens": 5, "temperature": 0, "messages": [user("Hi")]}
    return _post(name, "/v1/messages", body(minimal, changes), V1, step)


def count(name: str, /, *, step: Mapping[str, Any] | None = None, **changes: Any) -> Step:
    minimal = {"model": "small", "messages": [user("Hi")]}
    return _post(name, "/v1/messages/count_tokens", body(minimal, changes), V1, step)


def chat(name: str, /, *, step: Mapping[str, Any] | None = None, **changes: Any) -> Step:
    minimal = {"model": "small", "max_tokens": 5, "temperature": 0, "messages": [user("Hi")]}
    return _post(name, "/v1/chat/completions", body(minimal, changes), {}, step)


def complete(name: str, /, *, step: Mapping[str, Any] | None = None, **changes: Any) -> Step:
    minimal = {"model": "small", "max_tokens": 5, "temperature": 0, "prompt": "Once upon a time"}
    return _post(name, "/v1/completions", body(minimal, changes), {}, step)


def respond(name: str, /, *, step: Mapping[str, Any] | None = None, **changes: Any) -> Step:
    minimal = {"model": "small", "max_output_tokens": 5, "temperature": 0, "input": "Hi"}
    return _post(name, "/v1/responses", body(minimal, changes), {}, step)


def get(name: str, path: str, headers: Mapping[str, str | None] | None = None, **more: Any) -> Step:
    return Step(name, path, method="GET", headers=headers or {}, **more)


def streamed(step: Step, **changes: Any) -> Iterator[Step]:
    """The step, and then the same as a stream; what was cached by the first is read by the
    second."""
    yield step
    yield _replaced(step, f"{step.name}-stream", {"stream": True} | changes)


def _replaced(step: Step, name: str, changes: Mapping[str, Any]) -> Step:
    return Step(
        name, step.path, body(step.body, changes), headers=step.headers, after_s=step.after_s
    )


def _post(
    name: str,
    path: str,
    content: Any,
    headers: Mapping[str, str | None],
    step: Mapping[str, Any] | None,
) -> Step:
    more = dict(step or {})
    return Step(name, path, content, headers={**headers, **more.pop("headers", {})}, **more)


WEATHER: Final = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TIME: Final = {
    "type": "object",
    "properties": {"zone": {"const": "UTC"}},
    "required": ["zone"],
    "additionalProperties": False,
}


def tool(
    name: str = "get_weather", schema: Mapping[str, Any] = WEATHER, **more: Any
) -> dict[str, Any]:
    """A tool of Anthropic's format."""
    return {"name": name, "description": f"Tells the {name}.", "input_schema": schema} | more


def function(
    name: str = "get_weather", schema: Mapping[str, Any] = WEATHER, **more: Any
) -> dict[str, Any]:
    """A function of Chat Completions."""
    return {
        "type": "function",
        "function": {"name": name, "description": f"Tells the {name}.", "parameters": schema},
    } | more


def flat(name: str = "get_weather", schema: Mapping[str, Any] = WEATHER) -> dict[str, Any]:
    """A function of Responses."""
    return {
        "type": "function",
        "name": name,
        "description": f"Tells the {name}.",
        "parameters": schema,
    }
