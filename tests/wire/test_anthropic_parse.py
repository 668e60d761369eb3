"""Anthropic bodies: what they mean, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from engine.prompt.types import (
    CacheMark,
    Message,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from engine.types import OutputFormat, ToolChoice
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.anthropic.settings import AnthropicOptions
from tests.fakes import dialects
from tests.fakes.rules import ANTHROPIC

WIRE = MESSAGES_WIRE
NEW = {"anthropic-version": "2026-10-21"}
CC = {"type": "ephemeral"}
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"name": "f", "input_schema": SCHEMA}


def body(**changes: Any) -> dict[str, Any]:
    """A minimal valid body; `...` removes a field."""
    fields: dict[str, Any] = {
        "model": "claude-test",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "hi"}],
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def parse(fields: Any, headers: Mapping[str, str] = {}) -> Request:
    return WIRE.parse(orjson.dumps(fields), headers, request_id="req_1")


def user(*blocks: Any) -> dict[str, Any]:
    return body(messages=[{"role": "user", "content": list(blocks)}])


def assistant(*blocks: Any) -> dict[str, Any]:
    return body(
        messages=[{"role": "user", "content": "q"}, {"role": "assistant", "content": list(blocks)}]
    )


def text(value: str = "x", **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def image(data: str = "aGk=", **more: Any) -> dict[str, Any]:
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
        **more,
    }


def result(*blocks: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": list(blocks)}


def refused(fields: Any, headers: Mapping[str, str] = {}) -> str:
    """The text of the 400."""
    with pytest.raises(InvalidRequest) as caught:
        dialects.normalize(parse(fields, headers), ANTHROPIC)
    reply = WIRE.encode_error(caught.value, request_id="req_1")
    assert reply.status == 400
    error = orjson.loads(reply.body)["error"]
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


BAD: list[tuple[Any, str]] = [
    ([], "Input should be an object"),
    (body(model=...), "model: Field required"),
    (body(model=3), "model: Input should be a valid string"),
    (body(model=""), "model: String should have at least 1 character"),
    (body(max_tokens=...), "max_tokens: Field required"),
    (body(max_tokens=None), "max_tokens: Input should be a valid integer"),
    (body(max_tokens="9"), "max_tokens: Input should be a valid integer"),
    (body(max_tokens=True), "max_tokens: Input should be a valid integer"),
    (body(max_tokens=-1), "max_tokens: Input should be greater than or equal to 0"),
    (body(stream="yes"), "stream: Input should be a valid boolean"),
    (body(messages=...), "messages: Field required"),
    (body(messages=[]), "messages: at least one message is required"),
    (body(messages={}), "messages: Input should be a valid list"),
    (body(messages=["hi"]), "messages.0: Input should be an object"),
    (body(messages=[{"content": "x"}]), "messages.0.role: Field required"),
    (
        body(messages=[{"role": "tool", "content": "x"}]),
        "messages.0.role: Input should be 'user', 'assistant' or 'system'",
    ),
    (body(messages=[{"role": "user"}]), "messages.0.content: Field required"),
    (
        body(messages=[{"role": "user", "content": 5}]),
        "messages.0.content: Input should be a valid list",
    ),
    (
        body(messages=[{"role": "user", "content": ""}]),
        "messages.0: all messages must have non-empty content except for the optional final "
        "assistant message",
    ),
    (
        body(messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]),
        "messages.0.role: the first message cannot have the role 'system'; use the `system` "
        "parameter",
    ),
    (user({"text": "x"}), "messages.0.content.0.type: Field required"),
    (user({"type": "text"}), "messages.0.content.0.text.text: Field required"),
    (
        user(text(), {"type": "text", "text": 7}),
        "messages.0.content.1.text.text: Input should be a valid string",
    ),
    (
        user({"type": "image", "source": {}}),
        "messages.0.content.0.image.source.type: Field required",
    ),
    (user({"type": "image"}), "messages.0.content.0.image.source: Field required"),
    (user(image("?")), "messages.0.content.0.image.source.base64.data: invalid base64 data"),
    (
        user(image(cache_control={"type": "x"})),
        "messages.0.content.0.image.cache_control: Input tag 'x' found using 'type' "
        "does not match any of the expected tags: 'ephemeral'",
    ),
    (user(image()), "messages.0.content.0: `image` blocks are not supported by this model"),
    (
        user(text(), {"type": "document", "source": {"type": "url", "url": "u"}}),
        "messages.0.content.1: `document` blocks are not supported by this model",
    ),
    (
        user(image(), text("", cache_control=CC)),
        "messages.0.content.1.text: cache_control cannot be set for empty text blocks",
    ),
    (
        assistant({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
        "messages.1.content.0: `server_tool_use` blocks are not supported by this model",
    ),
    (
        user({"type": "thinking", "thinking": "x"}),
        "messages.0: `thinking` blocks can only be in `assistant` messages",
    ),
    (
        assistant({"type": "tool_result", "tool_use_id": "t"}),
        "messages.1: `tool_result` blocks can only be in `user` messages",
    ),
    (
        assistant({"type": "tool_use", "id": "t", "name": "f", "input": "x"}, text()),
        "messages.1.content.0.tool_use.input: Input should be an object",
    ),
    (
        assistant({"type": "tool_use", "id": "t9", "name": "f", "input": {}}),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: "
        "t9. Each `tool_use` block must "
        "have a corresponding `tool_result` block in the next message.",
    ),
    (
        assistant({"type": "thinking", "thinking": "x", "signature": "s"}),
        "messages.1: The final block in an assistant message cannot be `thinking`.",
    ),
    (user({"type": "tool_result"}), "messages.0.content.0.tool_result.tool_use_id: Field required"),
    (
        user({"type": "tool_result", "tool_use_id": "t", "content": [image()]}),
        "messages.0.content.0.tool_result.content.0: `image` blocks are not supported by this "
        "model",
    ),
    (body(system=[{"text": "x"}]), "system.0.type: Field required"),
    (body(system=[{"type": "image"}]), "system.0.type: Input should be 'text'"),
    (body(system=4), "system: Input should be a valid list"),
    (body(tools=[{"name": "f"}]), "tools.0.custom.input_schema: Field required"),
    (
        body(tools=[{"name": "f", "input_schema": []}]),
        "tools.0.custom.input_schema: Input should be an object",
    ),
    (
        body(tools=[{"name": "a b", "input_schema": SCHEMA}]),
        "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
    ),
    (body(tools=[{"name": "f", "input_schema": SCHEMA}] * 2), "tools: Tool names must be unique."),
    (
        body(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        "tools.0: tools of type 'web_search_20250305' are not supported by this model",
    ),
    (
        body(tool_choice={"type": "any"}),
        "tool_choice: tool_choice may only be specified while providing tools",
    ),
    (
        body(tool_choice={"type": "tool", "name": "g"}, tools=[TOOL]),
        "tool_choice: Tool 'g' not found in provided tools",
    ),
    (
        body(
            tool_choice={"type": "any"},
            tools=[TOOL],
            max_tokens=4096,
            thinking={"type": "enabled", "budget_tokens": 1024},
        ),
        "Thinking may not be enabled when tool_choice forces tool use.",
    ),
    (body(tool_choice={"type": "tool"}), "tool_choice.name: Field required"),
    (body(tool_choice="auto"), "tool_choice: Input should be an object"),
    (
        body(output_config={"format": {"type": "regex"}}),
        "output_config.format: Input tag 'regex' found using 'type' does not match any of the "
        "expected tags: 'json_schema'",
    ),
    (
        body(output_config={"format": {"type": "json_schema"}}),
        "output_config.format.json_schema.schema: Field required",
    ),
    (body(mcp_servers=[{"type": "url"}]), "mcp_servers: not supported by this model"),
    (
        body(thinking={"type": "enabled"}, max_tokens=5000),
        "thinking.enabled.budget_tokens: Field required",
    ),
    (
        body(thinking={"type": "enabled", "budget_tokens": 1}, max_tokens=5000),
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    ),
    (
        body(thinking={"type": "enabled", "budget_tokens": 2048}, max_tokens=2048),
        "`max_tokens` must be greater than `thinking.budget_tokens`.",
    ),
    (body(temperature=1.5), "temperature: Input should be less than or equal to 1"),
    (body(top_k=-1), "top_k: Input should be greater than or equal to 0"),
    (body(stop_sequences=["a", 1]), "stop_sequences.1: Input should be a valid string"),
    (
        body(stop_sequences=["x"] * 1025),
        "stop_sequences: List should have at most 1024 items after validation",
    ),
    (body(stop_sequences=[" "]), "stop_sequences: each stop sequence must contain non-whitespace"),
    (
        user(text(cache_control={"type": "persistent"})),
        "messages.0.content.0.text.cache_control: Input tag 'persistent' found using 'type' does "
        "not match any of the expected "
        "tags: 'ephemeral'",
    ),
    (user(text(cache_control={})), "messages.0.content.0.text.cache_control.type: Field required"),
    (
        user(text(cache_control=True)),
        "messages.0.content.0.text.cache_control: Input should be an object",
    ),
    (
        body(system=[text(cache_control={"type": "ephemeral", "ttl": "2h"})]),
        "system.0.cache_control.ephemeral.ttl: Input should be '5m' or '1h'",
    ),
    (
        body(cache_control={"type": "ephemeral", "ttl": 5}),
        "cache_control.ephemeral.ttl: Input should be a valid string",
    ),
    (body(max_tokens=0, stream=True), "stream: not allowed when `max_tokens` is 0"),
    (
        body(max_tokens=0, thinking={"type": "enabled", "budget_tokens": 1024}),
        "thinking: not allowed when `max_tokens` is 0",
    ),
    (
        body(max_tokens=0, output_config={"format": {"type": "json_schema", "schema": {}}}),
        "output_config.format: not allowed when `max_tokens` is 0",
    ),
    (
        body(max_tokens=0, tool_choice={"type": "any"}),
        "tool_choice: not allowed when `max_tokens` is 0",
    ),
    (
        body(max_tokens=0, tool_choice={"type": "tool", "name": "f"}),
        "tool_choice: not allowed when `max_tokens` is 0",
    ),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[message[:60] for _, message in BAD])
def test_refused_bodies(fields: Any, message: str) -> None:
    """Each broken body gets the one message that names its field."""
    assert refused(fields) == message


def test_unknown_block_names_itself() -> None:
    """A block type nobody knows is named, with what is known."""
    message = refused(user({"type": "hologram"}))
    assert message.startswith(
        "messages.0.content.0: Input tag 'hologram' found using 'type' does not match"
    )


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'{"a": NaN}', b'{"model": "\\ud800"}'])
def test_malformed_json(raw: bytes) -> None:
    """Bytes that are no JSON are a 400, whatever is wrong with them."""
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        WIRE.parse(raw, {}, request_id="r")


def test_deep_json_is_refused() -> None:
    """Schemas nested beyond what later steps can walk are a 400, not a crash later."""
    schema: dict[str, Any] = {}
    for _ in range(80):
        schema = {"items": schema}
    assert refused(body(tools=[{"name": "f", "input_schema": schema}])).endswith(
        "nested more than 64 levels deep"
    )


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_sampling_fields_by_version(name: str) -> None:
    """2026-10-21 refuses sampling fields even at their default; 2023-06-01 takes them."""
    assert refused(body(**{name: 1}), NEW) == f"{name}: Extra inputs are not permitted"
    parse(body(**{name: 1}), {"anthropic-version": "2023-06-01"})
    parse(body(**{name: 1}))


def test_citations_in_user_text_by_version() -> None:
    """2026-10-21 refuses citations in a user's text."""
    cited = user(text(citations=[{"type": "char_location"}]))
    assert (
        refused(cited, NEW) == "messages.0.content.0.text.citations: Extra inputs are not permitted"
    )
    parse(cited)


def test_unknown_version() -> None:
    """A version nobody published is a 400."""
    assert refused(body(), {"anthropic-version": "2031-01-01"}).startswith(
        "anthropic-version: '2031-01-01'"
    )


def test_every_part_of_a_conversation() -> None:
    """Blocks become parts one to one, with marks, in the client's key order."""
    request = parse(
        body(
            system=[text("a"), text("b", cache_control={"type": "ephemeral", "ttl": "1h"})],
            tools=[
                {
                    "name": "f",
                    "description": "d",
                    "input_schema": {"b": 1, "a": 2},
                    "cache_control": CC,
                }
            ],
            messages=[
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "sig"},
                        {"type": "redacted_thinking", "data": "zzz"},
                        text("ok"),
                        {
                            "type": "tool_use",
                            "id": "t1",
                            "name": "f",
                            "input": {"z": 1, "a": 2},
                            "cache_control": CC,
                        },
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": "r",
                            "is_error": True,
                            "cache_control": CC,
                        },
                    ],
                },
                {"role": "system", "content": "late"},
            ],
        )
    )
    prompt = request.prompt
    assert prompt.system == (TextPart("a"), TextPart("b", CacheMark(3600.0)))
    assert prompt.tools == (Tool("f", "d", {"b": 1, "a": 2}, CacheMark(300.0)),)
    assert list(prompt.tools[0].parameters) == ["b", "a"]
    assert prompt.messages[0] == Message("user", (TextPart("q"),))
    call = ToolCallPart("t1", "f", {"z": 1, "a": 2}, CacheMark(300.0))
    assert prompt.messages[1].parts == (
        ThinkingPart("hm", "sig"),
        ThinkingPart(""),
        TextPart("ok"),
        call,
    )
    assert prompt.messages[2].parts == (ToolResultPart("t1", "r", True, CacheMark(300.0)),)
    assert prompt.messages[3] == Message("system", (TextPart("late"),))
    assert not prompt.continue_final


def test_mark_inside_a_tool_result_ends_the_result() -> None:
    """Nested marks are one mark at the end of the result, with the longest TTL; nested text joins
    with line breaks."""
    inner = [
        text("a", cache_control=CC),
        text("b", cache_control={"type": "ephemeral", "ttl": "1h"}),
        text("c"),
    ]
    request = parse(user({"type": "tool_result", "tool_use_id": "t", "content": inner}))
    assert request.prompt.messages[0].parts == (
        ToolResultPart("t", "a\nb\nc", False, CacheMark(3600.0)),
    )


def test_last_assistant_turn_is_continued() -> None:
    """Prefill, as string or as blocks; an empty one is left out."""
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is"}]
    assert parse(body(messages=turns)).prompt.continue_final
    assert parse(assistant(text("Well"))).prompt.continue_final
    empty = parse(body(messages=[turns[0], {"role": "assistant", "content": ""}])).prompt
    assert (len(empty.messages), empty.continue_final) == (1, False)


def test_marks_on_thinking_are_problems_not_marks() -> None:
    """The dialect decides what to do about them; the prompt is already without."""
    thinking = {"type": "thinking", "thinking": "x", "signature": "s", "cache_control": CC}
    request = parse(assistant(thinking, text("y")))
    assert [(p.path, p.message) for p in request.marker_problems] == [
        ("messages.1.content.0.thinking.cache_control", "Extra inputs are not permitted")
    ]
    assert request.prompt.messages[1].parts[0] == ThinkingPart("x", "s")


def test_prewarm_and_automatic_and_directives() -> None:
    """`max_tokens: 0` warms; the request-level mark and the request's Cache-Control are kept apart
    from the prompt."""
    request = parse(body(max_tokens=0, cache_control=CC), {"cache-control": "no-store"})
    assert (request.prewarm, request.automatic) == (True, 300.0)
    assert (request.directives.read, request.directives.store) == (False, False)
    assert parse(body(), {"cache-control": "max-age=0, no-cache"}).directives.store
    assert not parse(body(), {"cache-control": "max-age=0, no-cache"}).directives.read


def test_defaults_in_words_are_no_parameters() -> None:
    """A default that is spelled out is the same request as one left out."""
    spelled = body(
        tool_choice={"type": "auto", "disable_parallel_tool_use": False},
        thinking={"type": "disabled"},
        output_config={"effort": "high"},
        speed="standard",
        cache_control=None,
    )
    assert parse(spelled).parameters == parse(body()).parameters == {}


def test_parameters_that_cost_a_level() -> None:
    """What is not rendered but invalidates is kept in the dialects' words."""
    request = parse(
        body(
            max_tokens=4096,
            tool_choice={"type": "none"},
            thinking={"type": "enabled", "budget_tokens": 2048, "display": "omitted"},
            output_config={"effort": "low"},
            speed="fast",
        )
    )
    assert request.parameters == {
        "tool_choice": "none",
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "effort": "low",
        "speed": "fast",
    }


def test_unknown_fields_and_betas_are_ignored() -> None:
    """What a newer client adds and what changes no answer does not fail a request."""
    headers = {"anthropic-beta": "prompt-caching-2024-07-31,what-is-this-2031"}
    fields = body(
        metadata={"user_id": "u"},
        service_tier="auto",
        new_field=1,
        context_management={"edits": []},
    )
    parse(fields, headers)
    parse(user(text(cache_control={"type": "ephemeral", "scope": "global"})), headers)


def test_counting_needs_no_max_tokens_and_takes_any_choice() -> None:
    """What only concerns the answer does not matter where nothing is generated."""
    fields = body(max_tokens=..., tool_choice={"type": "any"})
    request = WIRE.parse_count(orjson.dumps(fields), NEW, request_id="r")
    assert request.prompt == parse(body()).prompt
    assert not request.prewarm


def test_tool_choices() -> None:
    """The client's words in the engine's: who may call, and whether more than once."""

    def choice(kind: str, **more: Any) -> ToolChoice:
        return parse(body(tools=[TOOL], tool_choice={"type": kind, **more})).sampling.tool_choice

    assert parse(body()).sampling.tool_choice == choice("auto") == ToolChoice()
    assert choice("none") == ToolChoice("none")
    assert choice("any") == ToolChoice("required")
    assert choice("any", disable_parallel_tool_use=True) == ToolChoice("required", parallel=False)
    assert choice("tool", name="f") == ToolChoice("required", ("f",))


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_structured_output(place: str) -> None:
    """A schema is text with its keys in the client's order; it costs the messages like any other
    parameter of the answer."""
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"é": {}, "a": {}}}}
    request = parse(
        body(**({place: {"format": form}} if place == "output_config" else {place: form}))
    )
    assert request.sampling.output_format == OutputFormat(
        "json_schema", '{"type": "object", "properties": {"é": {}, "a": {}}}'
    )
    assert "messages" in dialects.plan(request, ANTHROPIC).salts


def test_an_image_is_its_bytes() -> None:
    """Line breaks in base64 and a data: prefix change nothing; other bytes or another media type
    are another image."""

    def name(block: Any) -> Any:
        return parse(user(block)).prompt.messages[0].parts[0]

    assert (
        name(image("aGVsbG8h"))
        == name(image("aGVs\nbG8h"))
        == name(image("data:image/png;base64,aGVsbG8h"))
    )
    jpeg = image("aGVsbG8h")
    jpeg["source"] = jpeg["source"] | {"media_type": "image/jpeg"}
    assert len({name(image("aGVsbG8h")).text, name(image("aGVsbG8i")).text, name(jpeg).text}) == 3
    assert name(image(cache_control=CC)).cache == CacheMark(300.0)


def test_documents_that_are_text_are_read() -> None:
    """Plain text, text blocks and search results are the model's language, in messages and in
    results."""
    plain = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "D"},
    }
    blocks = {
        "type": "document",
        "source": {"type": "content", "content": [text("a"), text("b")]},
        "cache_control": CC,
    }
    found = {
        "type": "search_result",
        "title": "T",
        "source": "S",
        "content": [text("x"), text("y")],
    }
    request = parse(user(plain, blocks, found, result(found)))
    assert request.unseen == ()
    assert request.prompt.messages[0].parts == (
        TextPart("T\nD"),
        TextPart("a\nb", CacheMark(300.0)),
        TextPart("T\nS\nx\ny"),
        ToolResultPart("t", "T\nS\nx\ny"),
    )


def test_documents_of_an_assistant_by_version() -> None:
    """2026-10-21 takes documents from users only."""
    plain = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "D"},
    }
    fields = assistant(plain)
    parse(fields)
    assert refused(fields, NEW) == "messages.1: `document` blocks can only be in `user` messages"


def test_a_deferred_tool_stands_where_it_was_found() -> None:
    """It is not part of the head, and a reference to it brings its definition into the messages."""
    deferred = {"name": "late", "description": "é", "input_schema": SCHEMA, "defer_loading": True}
    request = parse(
        user(result({"type": "tool_reference", "tool_name": "late"})) | {"tools": [TOOL, deferred]}
    )
    assert [tool.name for tool in request.prompt.tools] == ["f"]
    definition = (
        '{"name": "late", "description": "é", "parameters": {"type": "object", "properties": {}}}'
    )
    assert request.prompt.messages[0].parts == (ToolResultPart("t", definition),)


def test_reasoning_is_asked_for_by_name() -> None:
    """Templates are told whether to reason; what a client hides is an option of the answer."""
    assert parse(body()).prompt.template_options == {"enable_thinking": False}
    request = parse(body(thinking={"type": "adaptive", "display": "omitted"}))
    assert request.prompt.template_options == {"enable_thinking": True}
    assert request.options == AnthropicOptions(thinking_display="omitted")
