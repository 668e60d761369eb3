"""`/v1/messages`: answers, streams, tools, forms, reasoning, the cache and its TTLs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tools.corpus.cases.bodies import (
    MISSING,
    TIME,
    V2,
    WEATHER,
    assistant,
    block,
    count,
    mark,
    messages,
    streamed,
    text,
    tool,
    user,
)
from tools.corpus.steps import Step

LONG: Final = text("the long handbook", 1500)
THINK: Final = {"type": "enabled", "budget_tokens": 1024}
OPUS: Final = "claude-opus-4-1"


def steps() -> Iterator[Step]:
    yield from _answers()
    yield from _tools()
    yield from _forms()
    yield from _thinking()
    yield from _conversation("small", 120)
    yield from _conversation("claude-sonnet-5-5", 800)
    yield from _markers()
    yield from _time()
    yield from _directives()
    yield from _counts()


def _answers() -> Iterator[Step]:
    yield from streamed(messages("hi"))
    yield messages("hi-alias", model="claude-haiku-4-5-20251001")
    yield messages("hi-newest-version", model="thinker", temperature=MISSING, step={"headers": V2})
    yield messages(
        "hi-newest-version-stream",
        model="thinker",
        temperature=MISSING,
        stream=True,
        step={"headers": V2},
    )
    yield messages("no-version", step={"headers": {"anthropic-version": None}})
    yield messages("own-words", model="thinker", max_tokens=50)
    yield messages("own-words-stream", model="thinker", max_tokens=50, stream=True)
    yield from streamed(
        messages("stopped", model="thinker", max_tokens=50, stop_sequences=["it is", "zzz"])
    )
    yield messages(
        "system", system="You are terse.", messages=[user("Hi"), assistant("Yes?"), user("Go on")]
    )
    yield messages("system-blocks", system=[block("You are terse."), block("And kind.")])
    yield messages("blocks", messages=[user([block("Hi"), block("there, Zoë 👋")])])
    yield messages("system-turn", messages=[user("Hi"), {"role": "system", "content": "Be brief."}])
    yield messages("prefill", messages=[user("Count"), assistant("1, 2,")])
    yield messages(
        "prefill-refused", model="claude-opus-4-7", messages=[user("Count"), assistant("1, 2,")]
    )
    yield messages(
        "sampled",
        temperature=0.9,
        top_k=1,
        top_p=0.5,
        metadata={"user_id": "u1"},
        service_tier="auto",
    )
    yield messages("context-full", messages=[user(text("too long", 9000))])
    yield messages(
        "clamped", model="small", max_tokens=100_000, stop_sequences=["e", "a", "i", "o", "t"]
    )
    yield messages(
        "billing-nonce",
        system=[block("x-anthropic-billing-header: cc_version=1; cch=abc12;"), block("Terse.")],
    )
    yield messages(
        "billing-nonce-other",
        system=[block("x-anthropic-billing-header: cc_version=1; cch=fff99;"), block("Terse.")],
    )
    yield messages(
        "beta",
        step={
            "headers": {"anthropic-beta": "prompt-caching-2024-07-31,extended-cache-ttl-2025-04-11"}
        },
    )
    found = {"type": "search_result", "source": "s", "title": "t", "content": [block("Found it.")]}
    yield messages("search-result", messages=[user([found, block("Hi")])])
    plain = {"type": "text", "media_type": "text/plain", "data": "A document."}
    yield messages(
        "document", messages=[user([{"type": "document", "source": plain}, block("Hi")])]
    )
    yield messages(
        "diagnosed",
        system=text("diagnosed", 90),
        diagnostics={"previous_message_id": None},
        step={"keep": {"message": "id"}},
    )
    yield messages(
        "diagnosed-other",
        system=text("diagnosed", 91),
        diagnostics={"previous_message_id": "{{message}}"},
    )
    yield messages(
        "diagnosed-unknown", diagnostics={"previous_message_id": "msg_none"}, stream=True
    )


def _tools() -> Iterator[Step]:
    tools = [tool(), tool("get_time", TIME)]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "12 degrees"}
    call = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "get_weather",
        "input": {"city": "Oslo", "days": 2},
    }
    for name, choice in {
        "any": {"type": "any", "disable_parallel_tool_use": True},
        "several": {"type": "any"},
        "named": {"type": "tool", "name": "get_time"},
        "auto": {"type": "auto"},
        "none": {"type": "none"},
    }.items():
        yield from streamed(
            messages(f"tool-{name}", tools=tools, tool_choice=choice, max_tokens=60)
        )
    yield messages("tool-cut", tools=tools, tool_choice={"type": "any"}, max_tokens=12)
    yield messages("tool-missing", tools=tools, tool_choice={"type": "tool", "name": "nope"})
    yield messages(
        "tool-result", tools=tools, messages=[user("Hi"), assistant([call]), user([result])]
    )
    blocks = result | {"content": [block("12"), block("degrees")], "is_error": True}
    yield messages(
        "tool-result-blocks",
        tools=tools,
        messages=[user("Hi"), assistant([block("So"), call]), user([blocks, block("?")])],
    )
    many = [tool(f"tool_{i}", TIME) for i in range(6)]
    yield messages(
        "tools-cached", tools=[*many, tool("last", TIME, cache_control=mark("1h"))], system="A"
    )
    yield messages(
        "tools-cached-again",
        tools=[*many, tool("last", TIME, cache_control=mark("1h"))],
        system="B",
    )
    yield messages(
        "tools-changed", tools=[*many[1:], tool("last", TIME, cache_control=mark("1h"))], system="B"
    )
    later = {"type": "tool_reference", "tool_name": "later"}
    yield messages(
        "tool-deferred",
        tools=[tool(), tool("later", TIME, defer_loading=True)],
        messages=[user("Hi"), assistant([call]), user([result | {"content": [later]}])],
    )
    yield messages("tool-hosted", tools=[{"type": "web_search_20250305", "name": "web_search"}])


def _forms() -> Iterator[Step]:
    form = {"type": "json_schema", "schema": WEATHER}
    yield from streamed(messages("form", output_config={"format": form}, max_tokens=40))
    yield messages("form-cut", output_config={"format": form}, max_tokens=4)
    yield messages(
        "form-beta", output_format={"type": "json_schema", "schema": TIME}, max_tokens=40
    )
    yield messages(
        "form-impossible",
        output_config={"format": {"type": "json_schema", "schema": {"not": {"type": "string"}}}},
    )
    yield messages("effort", output_config={"effort": "low"})
    yield messages("effort-refused", model="claude-opus-4-6", output_config={"effort": "xhigh"})
    yield messages("fast", speed="fast")


def _thinking() -> Iterator[Step]:
    asked: dict[str, Any] = {
        "model": "thinker",
        "max_tokens": 2000,
        "thinking": THINK,
        "temperature": MISSING,
    }
    yield messages("thinking", **asked, step={"keep": {"signature": "content/0/signature"}})
    yield messages("thinking-stream", **asked, stream=True)
    yield messages(
        "thinking-omitted", **asked | {"thinking": {"type": "adaptive", "display": "omitted"}}
    )
    yield messages(
        "thinking-omitted-stream",
        **asked | {"thinking": {"type": "adaptive", "display": "omitted"}},
        stream=True,
    )
    yield messages("thinking-disabled", **asked | {"thinking": {"type": "disabled"}})
    thought = {"type": "thinking", "thinking": "Let me see", "signature": "{{signature}}"}
    yield messages(
        "thinking-again",
        **asked,
        messages=[user("Hi"), assistant([thought, block("Yes")]), user("And?")],
    )
    wrong = thought | {"signature": "AAAA"}
    yield messages(
        "thinking-forged",
        **asked,
        messages=[user("Hi"), assistant([wrong, block("Yes")]), user("And?")],
    )
    redacted = {"type": "redacted_thinking", "data": "abc"}
    yield messages(
        "thinking-redacted",
        **asked,
        messages=[user("Hi"), assistant([redacted, block("Yes")]), user("And?")],
    )
    yield messages("thinking-budget", **asked | {"max_tokens": 100})
    yield messages("thinking-forced", **asked, tools=[tool()], tool_choice={"type": "any"})


def _conversation(model: str, num_words: int) -> Iterator[Step]:
    """Turn after turn with a marker at the end, whole and streamed in turns; the prefix is read
    each time."""
    said: list[dict[str, Any]] = []
    system = [block(text(f"talk with {model}", num_words), "5m")]
    for i in range(5):
        said = [*said, user([block(text(f"question {i}", 80), "5m")])]
        yield messages(
            f"turn-{model}-{i}", model=model, system=system, messages=said, stream=i % 2 == 1
        )
        said = [*said[:-1], user([block(text(f"question {i}", 80))]), assistant(f"Answer {i}.")]
    edited = [user("Something else"), *said[1:], user([block("And now?", "5m")])]
    yield messages(f"turn-{model}-edited", model=model, system=system, messages=edited)
    yield messages(
        f"turn-{model}-other-system",
        model=model,
        system=[block("New", "5m")],
        messages=[*said, user("?")],
    )


def _markers() -> Iterator[Step]:
    yield messages(
        "automatic", cache_control={"type": "ephemeral"}, messages=[user(text("automatic", 120))]
    )
    yield messages(
        "automatic-again",
        cache_control={"type": "ephemeral"},
        messages=[user(text("automatic", 120))],
        stream=True,
    )
    yield messages("unmarked", messages=[user(text("unmarked", 120))])
    yield messages("unmarked-again", messages=[user(text("unmarked", 120))])
    yield messages("below-minimum", model=OPUS, system=[block("short", "5m")])
    yield messages("prewarm", max_tokens=0, system=[block(text("warmed", 150), "1h")])
    yield messages("prewarm-read", system=[block(text("warmed", 150), "1h")])
    yield messages("prewarm-stream", max_tokens=0, stream=True)
    two = [block(text("mixed", 100), "1h"), block(text("mixed tail", 90), "5m")]
    yield messages("two-ttls", system=two)
    yield messages("two-ttls-again", system=two, messages=[user([block("Hi", "5m")])])
    yield messages("ttls-in-wrong-order", system=[block("a", "5m"), block("b", "1h")])
    yield messages("five-markers", system=[block(f"part {i}", "5m") for i in range(5)])
    yield messages("empty-marked", messages=[user([block("", "5m")])])
    yield messages("unknown-ttl", system=[block("a", "7m")])
    yield messages("unknown-kind", system=[block("a") | {"cache_control": {"type": "forever"}}])
    thought = {"type": "thinking", "thinking": "x", "signature": "y", "cache_control": mark("5m")}
    told = [user("Hi"), assistant([thought, block("z")]), user("?")]
    yield messages("marked-thinking", model="thinker", messages=told)
    for name, effort in {"first": "low", "again": "low", "other": "high"}.items():
        marked = [user([block(text("salted", 120), "5m")])]
        yield messages(f"salted-{name}", output_config={"effort": effort}, messages=marked)


def _time() -> Iterator[Step]:
    five, hour = (
        [block(text("for five minutes", 110), "5m")],
        [block(text("for an hour", 110), "1h")],
    )
    yield messages("five", system=five)
    yield messages("hour", system=hour)
    yield messages("five-after-4m", system=five, step={"after_s": 240})
    yield messages("five-after-8m", system=five, step={"after_s": 240})
    yield messages("five-expired", system=five, step={"after_s": 301}, stream=True)
    yield messages("hour-after-13m", system=hour)
    yield messages("upgraded", system=[block(text("for five minutes", 110), "1h")])
    yield messages("upgraded-after-10m", system=five, step={"after_s": 600})
    yield messages("forgotten", system=five, step={"after_s": 7300})


def _directives() -> Iterator[Step]:
    asked: dict[str, Any] = {"system": [block(text("directed", 110), "5m")]}
    for i, control in enumerate(
        (
            "",
            "no-cache",
            "no-store",
            "max-age=10",
            "max-age=0",
            "only-if-cached",
            "nonsense, max-age=x",
        )
    ):
        yield messages(f"directive-{i}", **asked, step={"headers": {"cache-control": control}})


def refused_as_cold() -> Iterator[Step]:
    """How far an engine gets with these before it is told to stop is a matter of time, and shows in
    its counters."""
    only: dict[str, Any] = {"headers": {"cache-control": "only-if-cached"}}
    yield messages("only-if-cached", messages=[user(text("never seen", 99))], step=only)
    yield messages(
        "only-if-cached-stream", stream=True, messages=[user(text("never", 99))], step=only
    )


def _counts() -> Iterator[Step]:
    yield count("count")
    yield count(
        "count-all",
        system="S",
        tools=[tool()],
        messages=[user("Hi"), assistant("x"), user([block("y", "5m")])],
    )
    yield count("count-thinking", model="thinker", thinking=THINK)
    yield count("count-alias", model="claude-sonnet-4-5")
    yield count("count-unknown", model="nope")
    yield count("count-empty", messages=[])
