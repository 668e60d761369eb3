"""`/v1/responses`: answers, streams, what is stored, what is made in the background, compaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tools.corpus.cases.bodies import (
    TIME,
    WEATHER,
    assistant,
    flat,
    get,
    respond,
    streamed,
    text,
    user,
)
from tools.corpus.steps import Step

SEALED: Final = "pcg1.eJzLyAUAAT8A1w=="
"""A reasoning of one word, sealed by a gateway."""


def steps() -> Iterator[Step]:
    yield from _answers()
    yield from _tools()
    yield from _stored()
    yield from _compact()
    yield from _caching()


def _answers() -> Iterator[Step]:
    yield from streamed(respond("respond"))
    yield from streamed(
        respond("respond-own-words", model="thinker", max_output_tokens=50, temperature=1)
    )
    reasoning: dict[str, Any] = {
        "reasoning": {"effort": "high"},
        "include": ["reasoning.encrypted_content"],
    }
    yield from streamed(
        respond("respond-reasoned", model="thinker", max_output_tokens=50, **reasoning)
    )
    yield from streamed(
        respond("respond-logprobs", include=["message.output_text.logprobs"], top_logprobs=2)
    )
    yield respond(
        "respond-all",
        instructions="Be brief.",
        metadata={"a": "b"},
        text={"verbosity": "low"},
        user="u",
        truncation="auto",
        service_tier="flex",
        parallel_tool_calls=False,
        safety_identifier="s",
    )
    schema = {"format": {"type": "json_schema", "name": "w", "schema": WEATHER}}
    yield from streamed(respond("respond-form", text=schema, max_output_tokens=40))
    yield respond("respond-object", text={"format": {"type": "json_object"}}, max_output_tokens=12)
    yield respond("respond-turns", input=[
        {"role": "developer", "content": "d"}, user([{"type": "input_text", "text": "q"}]),
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SEALED},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "a", "annotations": []}]},
        user("And?")])  # fmt: skip
    yield Step(
        "input-tokens",
        "/v1/responses/input_tokens",
        {"model": "small", "input": "Hi", "instructions": "Be brief."},
    )
    yield Step(
        "input-tokens-tools",
        "/v1/responses/input_tokens",
        {"model": "small", "input": "Hi", "tools": [flat()]},
    )
    yield Step("input-tokens-none", "/v1/responses/input_tokens", {"model": "small"})


def _tools() -> Iterator[Step]:
    tools = [
        flat(),
        flat("get_time", TIME),
        {"type": "custom", "name": "shout", "description": "Shouts."},
    ]
    for name, choice in {
        "required": "required",
        "named": {"type": "function", "name": "get_time"},
        "custom": {"type": "custom", "name": "shout"},
        "none": "none",
    }.items():
        asked: dict[str, Any] = {"tools": tools, "tool_choice": choice, "max_output_tokens": 50}
        yield from streamed(
            respond(f"respond-tool-{name}", **asked, parallel_tool_calls=name == "named")
        )
    yield respond("respond-hosted", tools=[{"type": "web_search"}, flat()])
    yield respond("respond-tool-results", tools=tools, input=[
        user("q"),
        {"type": "function_call", "call_id": "c", "name": "get_time",
         "arguments": '{"zone": "UTC"}'},
        {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "noon"}]},
        {"type": "custom_tool_call", "call_id": "e", "name": "shout", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "e", "output": "y"}])  # fmt: skip


def _stored() -> Iterator[Step]:
    """A conversation that the gateway remembers."""
    yield respond(
        "first",
        input=text("stored", 150),
        instructions="Be brief.",
        step={"keep": {"first": "id", "item": "output/0/id"}},
    )
    yield respond(
        "second", previous_response_id="{{first}}", input="And?", step={"keep": {"second": "id"}}
    )
    yield respond("second-stream", previous_response_id="{{first}}", input="And?", stream=True)
    yield respond(
        "third",
        previous_response_id="{{second}}",
        input=[user("Go on"), assistant("Yes"), user("More")],
        instructions="Now long.",
        step={"keep": {"third": "id"}},
    )
    yield respond(
        "referring", input=[user("Hi"), {"type": "item_reference", "id": "{{item}}"}, user("What?")]
    )
    yield respond(
        "compared",
        input=text("stored", 149),
        prompt_cache_options={"comparison_response_id": "{{first}}"},
    )
    yield respond(
        "compared-stream",
        input=text("stored", 148),
        prompt_cache_options={"comparison_response_id": "{{first}}"},
        stream=True,
    )
    yield respond("unstored", store=False, step={"keep": {"unstored": "id"}})
    yield get("show-first", "/v1/responses/{{first}}")
    yield get("show-third", "/v1/responses/{{third}}")
    yield get("show-unstored", "/v1/responses/{{unstored}}")
    yield get("show-none", "/v1/responses/resp_none")
    yield get("show-stream", "/v1/responses/{{first}}?stream=true")
    for name, query in {
        "all": "",
        "oldest": "?order=asc",
        "one": "?limit=1",
        "bad": "?limit=0",
        "odd": "?order=x",
        "after": "?after=nope",
    }.items():
        yield get(f"items-{name}", "/v1/responses/{{third}}/input_items" + query)
    yield get("items-none", "/v1/responses/resp_none/input_items")
    yield Step("cancel-first", "/v1/responses/{{first}}/cancel")
    yield Step("delete-second", "/v1/responses/{{second}}", method="DELETE")
    yield Step("delete-second-again", "/v1/responses/{{second}}", method="DELETE")
    yield get("show-deleted", "/v1/responses/{{second}}")
    yield respond("after-deleted", previous_response_id="{{second}}", input="And?")


def background() -> Iterator[Step]:
    yield respond(
        "later",
        background=True,
        model="thinker",
        max_output_tokens=50,
        step={"keep": {"later": "id"}},
    )
    yield get("later-shown", "/v1/responses/{{later}}", until=("status", "completed"))
    yield get("later-events", "/v1/responses/{{later}}?stream=true")
    yield get("later-events-from", "/v1/responses/{{later}}?stream=true&starting_after=3")
    yield get("later-events-bad", "/v1/responses/{{later}}?stream=true&starting_after=x")
    yield get("later-items", "/v1/responses/{{later}}/input_items")
    yield Step("later-cancel", "/v1/responses/{{later}}/cancel")
    yield Step("later-delete", "/v1/responses/{{later}}", method="DELETE")
    yield respond(
        "later-stream", background=True, stream=True, model="thinker", max_output_tokens=50
    )


def _compact() -> Iterator[Step]:
    said = [user("Hi"), assistant("Hello"), user("Where is Oslo?"), assistant("In Norway")]
    yield Step(
        "compact",
        "/v1/responses/compact",
        {"model": "thinker", "input": said, "max_output_tokens": 50},
        keep={"sealed": "output/2/encrypted_content"},
    )
    compaction = {"type": "compaction", "encrypted_content": "{{sealed}}"}
    yield respond("compacted", input=[user("Hi"), compaction, user("And?")])
    yield respond("compacted-first", input=[compaction, user("And?")])
    yield Step(
        "compact-text",
        "/v1/responses/compact",
        {"model": "thinker", "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 50},
    )
    yield Step(
        "compact-previous",
        "/v1/responses/compact",
        {"model": "thinker", "previous_response_id": "{{first}}", "max_output_tokens": 50},
    )
    yield Step("compact-none", "/v1/responses/compact", {"model": "thinker"})


def _caching() -> Iterator[Step]:
    warm: dict[str, Any] = {
        "input": text("warmed response", 150),
        "prompt_cache_options": {"prewarm": True},
    }
    yield respond("prewarmed", **warm)
    yield respond("prewarmed-stream", **warm, stream=True)
    part = {
        "type": "input_text",
        "text": text("explicit response", 150),
        "prompt_cache_breakpoint": {"mode": "explicit"},
    }
    marked = [user([part, {"type": "input_text", "text": "?"}])]
    options: dict[str, Any] = {
        "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
        "prompt_cache_key": "k",
    }
    yield respond("respond-explicit", input=marked, **options)
    yield respond("respond-explicit-again", input=marked, **options, stream=True)
    yield respond("respond-gpt", model="gpt-5.6", input=text("billed response", 1100))
    yield respond(
        "respond-gpt-again",
        model="gpt-5.6",
        input=text("billed response", 1100),
        prompt_cache_retention="24h",
    )
