"""What is refused, in the format of whoever asks: bodies, headers, paths, methods."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tools.corpus.cases.bodies import (
    MISSING,
    V1,
    V2,
    assistant,
    block,
    chat,
    complete,
    get,
    messages,
    respond,
    tool,
    user,
)
from tools.corpus.steps import Step

IMAGE: Final = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}

ANTHROPIC: Final[Mapping[str, Mapping[str, Any]]] = {
    "no-model": {"model": MISSING},
    "empty-model": {"model": ""},
    "unknown-model": {"model": "nope-1"},
    "long-model": {"model": "claude-" + "x" * 300},
    "no-max-tokens": {"max_tokens": MISSING},
    "negative-max-tokens": {"max_tokens": -1},
    "max-tokens-text": {"max_tokens": "5"},
    "no-messages": {"messages": MISSING},
    "empty-messages": {"messages": []},
    "messages-text": {"messages": "Hi"},
    "bad-role": {"messages": [{"role": "robot", "content": "Hi"}]},
    "empty-content": {"messages": [user("")]},
    "no-content": {"messages": [{"role": "user"}]},
    "bad-block": {"messages": [user([{"type": "smell", "x": 1}])]},
    "image": {"messages": [user([IMAGE])]},
    "tool-use-by-user": {
        "messages": [user([{"type": "tool_use", "id": "t", "name": "n", "input": {}}])]
    },
    "first-system-turn": {"messages": [{"role": "system", "content": "x"}]},
    "hot": {"temperature": 1.5},
    "temperature-text": {"temperature": "hot"},
    "bad-top-p": {"top_p": 2},
    "bad-stop": {"stop_sequences": [1]},
    "bad-tool-name": {"tools": [tool("no blanks")]},
    "same-tools": {"tools": [tool(), tool()]},
    "tool-without-schema": {"tools": [{"name": "x"}]},
    "bad-tool-choice": {"tools": [tool()], "tool_choice": {"type": "maybe"}},
    "choice-without-tools": {"tool_choice": {"type": "any"}},
    "bad-thinking": {"thinking": {"type": "deep"}},
    "small-budget": {"thinking": {"type": "enabled", "budget_tokens": 5}},
    "bad-effort": {"output_config": {"effort": "utmost"}},
    "bad-form": {"output_config": {"format": {"type": "yaml"}}},
    "mcp": {"mcp_servers": [{"name": "x"}]},
    "bad-stream": {"stream": "yes"},
    "bad-system": {"system": [{"type": "image"}]},
    "bad-speed": {"speed": "warp"},
}
CHAT: Final[Mapping[str, Mapping[str, Any]]] = {
    "no-model": {"model": MISSING},
    "unknown-model": {"model": "nope-1"},
    "no-messages": {"messages": MISSING},
    "empty-messages": {"messages": []},
    "bad-role": {"messages": [{"role": "robot", "content": "Hi"}]},
    "function-role": {"messages": [{"role": "function", "content": "Hi", "name": "f"}]},
    "null-content": {"messages": [user(None)]},
    "empty-parts": {"messages": [user([])]},
    "image": {"messages": [user([{"type": "image_url", "image_url": {"url": "data:,"}}])]},
    "hot": {"temperature": 3},
    "many-stops": {"stop": list("abcde")},
    "empty-stop": {"stop": [""]},
    "bad-bias": {"logit_bias": {"x": 1}},
    "big-bias": {"logit_bias": {"5": 101}},
    "many-choices": {"n": 129},
    "top-without-logprobs": {"top_logprobs": 2},
    "options-without-stream": {"stream_options": {"include_usage": True}},
    "audio": {"modalities": ["audio"]},
    "functions": {"functions": [{"name": "f"}]},
    "web-search": {"web_search_options": {}},
    "bad-format": {"response_format": {"type": "yaml"}},
    "format-without-schema": {"response_format": {"type": "json_schema"}},
    "bad-effort": {"reasoning_effort": "utmost"},
    "bad-tool": {"tools": [{"type": "function"}]},
    "bad-tool-name": {"tools": [{"type": "function", "function": {"name": "no blanks"}}]},
    "choice-without-tools": {"tool_choice": "required"},
    "zero-tokens": {"max_tokens": 0},
    "two-forms": {"guided_regex": "a", "guided_choice": ["b"]},
    "bad-regex": {"guided_regex": "("},
    "bad-breakpoint": {
        "messages": [
            user([{"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "odd"}}])
        ]
    },
    "bad-retention": {"prompt_cache_retention": "48h"},
}
RESPONSES: Final[Mapping[str, Mapping[str, Any]]] = {
    "no-input": {"input": MISSING},
    "empty-input": {"input": []},
    "unknown-model": {"model": "nope-1"},
    "unknown-item": {"input": [{"type": "computer_call"}]},
    "unknown-previous": {"previous_response_id": "resp_none"},
    "unknown-reference": {"input": [{"type": "item_reference", "id": "msg_none"}]},
    "background-unstored": {"background": True, "store": False},
    "bad-part": {"input": [user([{"type": "input_image", "image_url": "x"}])]},
    "foreign-compaction": {"input": [{"type": "compaction", "encrypted_content": "abc"}]},
    "bad-tool": {"tools": [{"type": "function", "name": "no blanks"}]},
    "bad-format": {"text": {"format": {"type": "yaml"}}},
    "bad-metadata": {"metadata": {"a": 1}},
    "conversation": {"conversation": "conv_1"},
    "bad-logprobs": {"top_logprobs": 21},
}
COMPLETIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "no-prompt": {"prompt": MISSING},
    "suffix": {"suffix": "x"},
    "best-of": {"best_of": 3},
    "mixed-prompts": {"prompt": ["a", [1, 2]]},
    "many-logprobs": {"logprobs": 6},
    "negative-token": {"prompt": [-1]},
    "token-beyond": {"prompt": [1_000_000]},
    "unknown-model": {"model": "nope-1"},
}


def steps() -> Iterator[Step]:
    yield from (
        messages(f"refused-messages-{name}", **changes) for name, changes in ANTHROPIC.items()
    )
    yield from (chat(f"refused-chat-{name}", **changes) for name, changes in CHAT.items())
    yield from (
        respond(f"refused-responses-{name}", **changes) for name, changes in RESPONSES.items()
    )
    yield from (
        complete(f"refused-completions-{name}", **changes) for name, changes in COMPLETIONS.items()
    )
    yield messages("refused-messages-stream", stream=True, max_tokens=-1)
    yield chat("refused-chat-stream", stream=True, n=0)
    yield messages("removed-field", step={"headers": V2})
    yield messages("unknown-version", step={"headers": {"anthropic-version": "2020-01-01"}})
    yield messages(
        "user-cites",
        messages=[user([block("x") | {"citations": [{}]}]), assistant("y"), user("z")],
        temperature=MISSING,
        step={"headers": V2},
    )
    yield from _bodies()
    yield from _paths()
    yield from _ids()


def _bodies() -> Iterator[Step]:
    """Bodies that are no object, and those that come packed."""
    whole = json.dumps(
        {"model": "small", "max_tokens": 3, "temperature": 0, "messages": [user("Hi")]}
    ).encode()
    odd = {
        "empty": b"",
        "no-json": b"{nope",
        "list": b"[1]",
        "latin": b'{"model": "sm\xe4ll"}',
        "surrogate": b'{"model": "\\ud800"}',
        "twice": b'{"model": "a", "model": "small", "max_tokens": 1, "messages": [{"role": '
        b'"user", "content": "Hi"}]}',
        "deep": b'{"model": "small", "tools": ' + b"[" * 600 + b"]" * 600 + b"}",
        "large": b'{"model": "' + b"x" * 300_000 + b'"}',
        "nan": b'{"model": "small", "max_tokens": NaN}',
    }
    for path in ("/v1/messages", "/v1/chat/completions"):
        kind = "messages" if path == "/v1/messages" else "chat"
        for name, content in odd.items():
            yield Step(
                f"body-{kind}-{name}", path, content, headers={"content-type": "application/json"}
            )
        packed = gzip.compress(whole, mtime=0)
        yield Step(
            f"body-{kind}-gzip",
            path,
            packed,
            headers={"content-encoding": "gzip", "content-type": "application/json"},
        )
        yield Step(f"body-{kind}-not-gzip", path, whole, headers={"content-encoding": "gzip"})
        yield Step(f"body-{kind}-zstd", path, whole, headers={"content-encoding": "compress"})
        yield Step(f"body-{kind}-untyped", path, whole)


def _paths() -> Iterator[Step]:
    yield get("greeting", "/")
    yield get("no-path", "/v1/nothing")
    yield get("no-path-anthropic", "/v1/nothing", {"anthropic-version": "2023-06-01"})
    yield get("no-path-key", "/v2", {"x-api-key": "k"})
    yield get("no-admin-path", "/admin/nothing")
    yield get("messages-get", "/v1/messages")
    yield get("chat-get", "/v1/chat/completions")
    yield Step("responses-put", "/v1/responses", {}, method="PUT")
    yield Step("models-post", "/v1/models", {}, headers=V1)
    yield Step("admin-post", "/admin/cache/stat", {})
    yield Step("head", "/v1/models", method="HEAD")
    yield Step("options", "/v1/messages", method="OPTIONS", headers={"origin": "https://a.example"})
    yield Step("messages-slash", "/v1/messages/", {})
    yield Step(
        "messages-query",
        "/v1/messages?beta=true",
        {"model": "small", "max_tokens": 1, "temperature": 0, "messages": [user("Hi")]},
        headers=V1,
    )
    yield Step("double-slash", "//v1/messages", {})


def _ids() -> Iterator[Step]:
    """Requests that name themselves badly, or not at all."""
    for name, given in {"none": None, "bad": "a b", "long": "x" * 129, "native": "req_abc"}.items():
        yield messages(f"id-messages-{name}", step={"headers": {"x-request-id": given}})
        yield chat(f"id-chat-{name}", step={"headers": {"x-request-id": given}})
    yield messages("id-messages-stream", stream=True, step={"headers": {"x-request-id": None}})
    yield chat("id-chat-stream", stream=True, step={"headers": {"x-request-id": None}})
    yield respond("id-responses-stream", stream=True, step={"headers": {"x-request-id": None}})
    yield respond("id-responses", tools=[], step={"headers": {"x-request-id": None}})
