"""A gateway with tenants, whole answers given again, repaired markers, measured usage,
tiers on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tools.corpus.cases.bodies import (
    TIME,
    block,
    chat,
    complete,
    count,
    get,
    mark,
    messages,
    respond,
    text,
    tool,
    user,
)
from tools.corpus.stages import OPERATOR_KEY
from tools.corpus.steps import Step

A: Final = {"x-api-key": "key-of-a"}
B: Final = {"authorization": "Bearer key-of-b"}
OPERATOR: Final = {"x-api-key": OPERATOR_KEY}


def steps() -> Iterator[Step]:
    yield from _keys()
    yield from _whole_answers()
    yield from _repaired()
    yield from _apart()
    yield from _batches()
    yield from _admin()


def again() -> Iterator[Step]:
    """After a restart, on the same disk."""
    yield get("entries", "/admin/cache/entries", OPERATOR)
    yield messages("forgotten-answer", step={"headers": A})
    yield messages("from-disk", system=[block(text("shared text", 120), "1h")], step={"headers": A})
    yield messages(
        "from-disk-b",
        system=[block(text("shared text", 120), "1h")],
        stream=True,
        step={"headers": B},
    )
    yield get("stat", "/admin/cache/stat", B)
    yield get("metrics", "/metrics")


def _keys() -> Iterator[Step]:
    for name, headers in {
        "none": {},
        "wrong": {"x-api-key": "nope"},
        "basic": {"authorization": "Basic abc"},
    }.items():
        yield messages(f"key-{name}", step={"headers": headers})
        yield chat(f"key-{name}-chat", step={"headers": headers})
        yield get(f"key-{name}-models", "/v1/models", headers)
    for name, headers in {"a": A, "b": B, "operator": OPERATOR}.items():
        yield get(f"key-{name}-models", "/v1/models", headers)
        yield get(f"key-{name}-health", "/health", headers)
        yield messages(f"key-{name}", step={"headers": headers})
    yield get("key-none-health", "/health")
    yield get("key-none-response", "/v1/responses/resp_1")
    yield get("key-none-batches", "/v1/messages/batches")
    yield get("key-none-path", "/v1/nothing")
    yield get("key-none-readyz", "/readyz")


def _whole_answers() -> Iterator[Step]:
    kinds: Mapping[str, Any] = {
        "messages": messages,
        "chat": chat,
        "respond": respond,
        "complete": complete,
    }
    for kind, make in kinds.items():
        asked: dict[str, Any] = {"prompt": text("again", 90)} if kind == "complete" else {}
        user_id: dict[str, Any] = (
            {"metadata": {"user_id": "u"}} if kind == "messages" else {"user": "u"}
        )
        several: tuple[dict[str, Any], ...] = ({}, {}, {"stream": True}, user_id)
        for i, more in enumerate(several):
            yield make(f"whole-{kind}-{i}", **asked, **more, step={"headers": A})
        yield make(f"whole-{kind}-other-tenant", **asked, step={"headers": B})
        for control in ("no-cache", "no-store", "max-age=0", "only-if-cached"):
            yield make(
                f"whole-{kind}-{control}", **asked, step={"headers": A | {"cache-control": control}}
            )
    yield chat("whole-seeded", temperature=1, seed=5, n=2, logprobs=True, step={"headers": A})
    yield chat(
        "whole-seeded-again",
        temperature=1,
        seed=5,
        n=2,
        logprobs=True,
        stream=True,
        step={"headers": A},
    )
    yield messages("whole-tools", tools=[tool("get_time", TIME)], step={"headers": A})
    yield messages("whole-sampled", model="small", temperature=1, max_tokens=0, step={"headers": A})
    yield messages(
        "whole-form",
        output_config={"format": {"type": "json_schema", "schema": TIME}},
        max_tokens=40,
        step={"headers": A},
    )
    yield messages("whole-after-9m", step={"headers": A, "after_s": 540})
    yield messages("whole-stale", step={"headers": A, "after_s": 61})
    yield respond("whole-stored", step={"headers": A, "keep": {"stored": "id"}}, input="Stored?")
    yield respond("whole-stored-again", step={"headers": A}, input="Stored?")
    yield get("stored-by-other", "/v1/responses/{{stored}}", B)
    yield get("stored-by-owner", "/v1/responses/{{stored}}", A)


def _repaired() -> Iterator[Step]:
    """Markers that a provider would refuse, and other things that this policy changes."""
    five = [block(text(f"part {i}", 40), "5m") for i in range(5)]
    yield messages("repair-five", system=five, step={"headers": A})
    yield messages(
        "repair-order",
        system=[block(text("five", 80), "5m"), block(text("hour", 80), "1h")],
        step={"headers": A},
    )
    yield messages(
        "repair-empty",
        messages=[user([block(text("x", 80)), block("", "5m")])],
        step={"headers": A},
    )
    yield messages("repair-both", cache_control=mark("5m"), system=five[:4], step={"headers": A})
    yield messages(
        "sorted-tools",
        tools=[tool("b", TIME), tool("a", TIME)],
        system=[block(text("s", 80), "5m")],
        step={"headers": A},
    )
    yield messages(
        "sorted-tools-again",
        tools=[tool("a", TIME), tool("b", TIME)],
        system=[block(text("s", 80), "5m")],
        step={"headers": A},
    )
    yield count("sorted-tools-count", tools=[tool("b", TIME), tool("a", TIME)], step={"headers": A})
    nonce = "x-anthropic-billing-header: cc_version=1; cch=abc12;"
    yield messages("kept-nonce", system=[block(nonce), block("Terse.")], step={"headers": A})


def _apart() -> Iterator[Step]:
    asked: dict[str, Any] = {
        "system": [block(text("shared text", 120), "1h")],
        "messages": [user("Whose?")],
        "top_k": 1,
    }
    for name, headers in {"a": A, "a-again": A, "b": B, "b-again": B}.items():
        control = {"cache-control": "no-cache"} if name == "b-again" else {}
        yield messages(
            f"apart-{name}",
            **asked,
            max_tokens=3 if "again" in name else 4,
            step={"headers": headers | control},
        )


def _batches() -> Iterator[Step]:
    yield get("batches-off", "/v1/messages/batches", A)
    yield Step("batches-off-post", "/v1/messages/batches", {"requests": []}, headers=A)


def _admin() -> Iterator[Step]:
    """What the disk holds, which is written behind the answers."""
    told: Mapping[str, tuple[Mapping[str, str], int]] = {
        "operator": (OPERATOR, 13),
        "a": (A, 11),
        "b": (B, 2),
    }
    for name, (headers, num_entries) in told.items():
        yield get(
            f"entries-{name}", "/admin/cache/entries", headers, until=("#entries", num_entries)
        )
        yield Step(f"pin-{name}", "/admin/cache/pin", {"key": "abcdef0123456789"}, headers=headers)
    yield get("entries-none", "/admin/cache/entries")
    yield Step("pin-none", "/admin/cache/pin", {"key": "abcdef0123456789"})
    yield get("entries-of-b", "/admin/cache/entries", B, keep={"key": "entries/0/key"})
    yield Step("pin", "/admin/cache/pin", {"key": "{{key}}"}, headers=OPERATOR)
    yield Step("unpin", "/admin/cache/unpin", {"key": "{{key}}"}, headers=OPERATOR)
    yield Step("flush-b-by-a", "/admin/cache/flush", {"tenant": "b"}, headers=A)
    yield Step("flush-a-by-a", "/admin/cache/flush", {"tenant": "a"}, headers=A)
    yield messages(
        "after-flush-a", system=[block(text("shared text", 120), "1h")], step={"headers": A}
    )
    yield messages(
        "after-flush-b", system=[block(text("shared text", 120), "1h")], step={"headers": B}
    )
    yield get("metrics", "/metrics")
