"""Models, batches, upstreams, and what operators ask."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tools.corpus.cases.bodies import (
    V1,
    block,
    chat,
    complete,
    count,
    get,
    messages,
    respond,
    text,
    user,
)
from tools.corpus.steps import Step

BATCHES: Final = "/v1/messages/batches"


def models() -> Iterator[Step]:
    yield get("models", "/v1/models")
    yield get("models-anthropic", "/v1/models", V1)
    yield get("models-page", "/v1/models?limit=1", V1)
    yield get("models-page-after", "/v1/models?limit=1&after_id=small", V1)
    yield get("models-page-bad", "/v1/models?limit=0", V1)
    for name in (
        "small",
        "thinker",
        "claude-sonnet-5",
        "up-text",
        "gpt-4o",
        "nope-1",
        "openrouter/x",
        "a/b%20c",
    ):
        yield get(f"model-{name}", f"/v1/models/{name}")
        yield get(f"model-{name}-anthropic", f"/v1/models/{name}", V1)


def batches() -> Iterator[Step]:
    params: dict[str, Any] = {"model": "thinker", "max_tokens": 50, "messages": [user("Hi")]}
    requests = [
        {"custom_id": "one", "params": params},
        {"custom_id": "stream", "params": params | {"stream": True}},
        {"custom_id": "warm", "params": params | {"max_tokens": 0}},
        {"custom_id": "nope", "params": params | {"model": "nope-1"}},
        {"custom_id": "upstream", "params": params | {"model": "anthropic-up"}},
        {"custom_id": "bad", "params": {}},
        {
            "custom_id": "cached",
            "params": params
            | {"model": "small", "temperature": 0, "system": [block(text("batch", 120), "1h")]},
        },
    ]
    yield Step(
        "batch-single", BATCHES, {"requests": requests[:1]}, headers=V1, keep={"single": "id"}
    )
    yield get(
        "batch-single-shown", f"{BATCHES}/{{{{single}}}}", V1, until=("processing_status", "ended")
    )
    yield get("batch-single-results", f"{BATCHES}/{{{{single}}}}/results", V1)
    for request in requests[1:]:
        name = request["custom_id"]
        yield Step(
            f"batch-{name}",
            BATCHES,
            {"requests": [request]},
            headers=V1,
            keep={"batch": "id"},
            after_s=1,
        )
        yield get(
            f"batch-{name}-shown",
            f"{BATCHES}/{{{{batch}}}}",
            V1,
            until=("processing_status", "ended"),
        )
        yield get(f"batch-{name}-results", f"{BATCHES}/{{{{batch}}}}/results", V1)
    yield get("batches", BATCHES, V1)
    yield get("batches-page", f"{BATCHES}?limit=2", V1)
    yield get("batches-after", f"{BATCHES}?limit=2&after_id={{{{batch}}}}", V1)
    yield get("batches-bad", f"{BATCHES}?limit=none", V1)
    yield Step("batch-cancel-ended", f"{BATCHES}/{{{{batch}}}}/cancel", headers=V1)
    yield Step("batch-delete", f"{BATCHES}/{{{{batch}}}}", method="DELETE", headers=V1)
    yield get("batch-deleted", f"{BATCHES}/{{{{batch}}}}", V1)
    yield get("batch-none", f"{BATCHES}/msgbatch_none/results", V1)
    refused: Mapping[str, Any] = {
        "no-requests": {},
        "empty": {"requests": []},
        "twice": {"requests": [requests[0], requests[0]]},
        "bad-id": {"requests": [{"custom_id": "a b", "params": params}]},
    }
    for name, body in refused.items():
        yield Step(f"batch-refused-{name}", BATCHES, body, headers=V1)


def upstreams() -> Iterator[Step]:
    """`up-*` speaks OpenAI's formats, `anthropic-*` Anthropic's, `renamed` is called otherwise
    there."""
    for stream in (False, True):
        end = "-stream" if stream else ""
        yield messages(
            f"up-messages{end}",
            model="anthropic-up",
            stream=stream,
            step={"headers": {"anthropic-beta": "b", "x-stainless-os": "L"}},
        )
        yield chat(
            f"up-chat{end}", model="up-text", stream=stream, stream_options={"include_usage": True}
        )
        yield chat(f"up-renamed{end}", model="renamed", stream=stream)
        yield respond(f"up-respond{end}", model="up-text", stream=stream)
        yield complete(f"up-complete{end}", model="up-text", stream=stream)
    yield count("up-count", model="anthropic-up")
    for path in (
        "embeddings",
        "moderations",
        "images/generations",
        "audio/speech",
        "rerank",
        "score",
    ):
        yield Step(f"up-{path}", f"/v1/{path}", {"model": "up-text", "input": "Hi"})
    yield Step("up-compact", "/v1/responses/compact", {"model": "up-text", "input": "Hi"})
    yield Step("embeddings-refused", "/v1/embeddings", {"model": "small", "input": "Hi"})
    yield Step("embeddings-unknown", "/v1/embeddings", {"model": "nope-1", "input": "Hi"})
    yield Step("embeddings-empty", "/v1/embeddings", b"")
    yield get("embeddings-get", "/v1/embeddings")
    for kind in ("e529", "e400", "e401", "e302", "html", "nousage", "nocache", "odd", "gone"):
        yield chat(f"up-chat-{kind}", model=f"up-{kind}")
    for kind in ("e529", "e401", "html", "gone"):
        yield messages(f"up-messages-{kind}", model=f"anthropic-{kind}")
        yield messages(f"up-messages-{kind}-stream", model=f"anthropic-{kind}", stream=True)
    yield messages("up-other-format", model="up-text")
    yield chat("up-other-format-chat", model="anthropic-up")
    yield chat(
        "up-only-if-cached", model="up-text", step={"headers": {"cache-control": "only-if-cached"}}
    )
    odd = (
        b'{ "stream":false,\n "messages": [{"role":"user","content":"\\u00fc"}], "model" : '
        b'"renamed" , "x":1e400}'
    )
    yield Step(
        "up-odd-bytes",
        "/v1/chat/completions?a=b",
        odd,
        headers={
            "content-type": "application/json",
            "cookie": "a=b",
            "traceparent": "x",
            "authorization": "Bearer mine",
        },
    )
    twice = json.dumps({"model": "up-text"})[:-1].encode() + b', "model": "renamed"}'
    yield Step("up-two-models", "/v1/chat/completions", twice)


def admin() -> Iterator[Step]:
    yield get("livez", "/livez")
    yield get("readyz", "/readyz")
    yield get("health", "/health")
    yield get("version", "/version")
    yield get("entries", "/admin/cache/entries")
    yield get("stat", "/admin/cache/stat")
    yield get("stat-page", "/admin/cache/stat", {"origin": "https://a.example"})
    yield Step("verify", "/admin/cache/verify")
    yield Step("pin-none", "/admin/cache/pin", {"key": "abcdef0123456789"})
    yield Step("pin-bad", "/admin/cache/pin", {"key": 1})
    yield Step("unpin-none", "/admin/cache/unpin", {"key": "abcdef0123456789"})
    yield Step("flush-bad", "/admin/cache/flush", {"tenants": "x"})
    yield Step("flush", "/admin/cache/flush", {})
    yield messages("after-flush", system=[block(text("for an hour", 110), "1h")])
    yield get("metrics", "/metrics")
