"""The Messages API as a wire format, through its own SDK: headers, versions, errors, streams,
turns, counting, models."""

from __future__ import annotations

import gzip
import json
import urllib.request
from typing import Any
from urllib.error import HTTPError

import anthropic
import pytest

from tests.conformance.anthropic.asking import (
    ALIASES,
    CC,
    MODEL,
    Asker,
    assistant,
    error_of,
    filler,
    text,
    tool,
    user,
)
from tests.fakes.clocked import Clocked

pytestmark = [pytest.mark.engine, pytest.mark.slow]

VERSIONS = ("2023-06-01", "2026-10-21")


def raw(
    served: Clocked,
    path: str = "/v1/messages",
    body: bytes | None = None,
    *,
    method: str | None = None,
    **headers: str,
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of a request without any SDK; `_` in header names are dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(served.url + path, body, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read(), {k.lower(): v for k, v in answer.headers.items()}
    except HTTPError as error:
        return error.code, error.read(), {k.lower(): v for k, v in error.headers.items()}


def body(**changes: Any) -> bytes:
    """A minimal request."""
    fields = {
        "model": MODEL,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "hi"}],
    } | changes
    return json.dumps(fields).encode()


# Headers and versions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_api_key": "key-one"}, 200),
        ({"authorization": "Bearer key-one"}, 200),
        ({"x_api_key": "key-one", "authorization": "Bearer nonsense"}, 200),
        ({"x_api_key": "nonsense", "authorization": "Bearer key-one"}, 401),
        ({"x_api_key": "nonsense"}, 401),
        ({}, 401),
    ],
)
def test_both_key_headers(served: Clocked, headers: dict[str, str], status: int) -> None:
    """Either will do, and `x-api-key` decides where both are sent."""
    got, answer, _ = raw(served, body=body(), anthropic_version="2023-06-01", **headers)
    assert got == status
    if status == 401:
        told = json.loads(answer)
        assert (told["type"], told["error"]["type"]) == ("error", "authentication_error")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("field", ["temperature", "top_p", "top_k"])
def test_sampling_fields_by_version(ask_whole: Asker, version: str, field: str) -> None:
    """The first version takes them, the second refuses them at any value."""
    status, answer, _ = raw(
        ask_whole.served,
        body=body(**{field: 1}),
        x_api_key="key-one",
        anthropic_version=version,
        content_type="application/json",
    )
    assert status == (200 if version == VERSIONS[0] else 400)
    if status == 400:
        assert json.loads(answer)["error"]["message"] == f"{field}: Extra inputs are not permitted"


def test_unknown_versions_and_betas(served: Clocked) -> None:
    """A version nobody published is refused; a beta nobody knows is not."""
    assert raw(served, body=body(), x_api_key="key-one", anthropic_version="2031-01-01")[0] == 400
    betas = (
        "prompt-caching-2024-07-31,extended-cache-ttl-2025-04-11,"
        "cache-diagnosis-2026-04-07,made-up-2031-01-01"
    )
    status, _, headers = raw(
        served, "/v1/messages?beta=true", body(), x_api_key="key-one", anthropic_beta=betas
    )
    assert (status, headers["content-type"], headers["request-id"][:4]) == (
        200,
        "application/json",
        "req_",
    )


def test_the_root_answers_head(served: Clocked) -> None:
    """Some clients look whether anyone is there."""
    assert raw(served, "/", method="HEAD")[0] == 200


def test_compressed_bodies(served: Clocked) -> None:
    """gzip is read, what claims to be gzip and is not is a 400."""
    headers = {
        "x_api_key": "key-one",
        "content_encoding": "gzip",
        "content_type": "application/json",
    }
    assert raw(served, body=gzip.compress(body()), **headers)[0] == 200
    status, answer, _ = raw(served, body=body(), **headers)
    assert (status, json.loads(answer)["error"]["type"]) == (400, "invalid_request_error")


# Errors -------------------------------------------------------------------------------------------


def test_errors_of_the_routes(served: Clocked) -> None:
    """Unknown paths, methods and models, and bodies that are too large, in the API's own
    envelope."""
    headers = {"x_api_key": "key-one", "anthropic_version": "2023-06-01"}
    for status, kind, path, sent, method in [
        (404, "not_found_error", "/v1/nonsense", body(), None),
        (405, "invalid_request_error", "/v1/messages", None, "GET"),
        (404, "not_found_error", "/v1/messages", body(model="llama-9"), None),
        (404, "not_found_error", "/v1/models/nonsense", None, "GET"),
        (413, "request_too_large", "/v1/messages", b'"' + b"x" * (33 * 1024**2) + b'"', None),
        (400, "invalid_request_error", "/v1/messages", b"{", None),
        (400, "invalid_request_error", "/v1/messages", b"[]", None),
    ]:
        got, answer, told = raw(served, path, sent, method=method, **headers)
        error = json.loads(answer)
        assert (got, error["type"], error["error"]["type"]) == (status, "error", kind), path
        assert error["request_id"] == told["request-id"]


def test_an_unknown_model_names_itself(ask: Asker) -> None:
    """In the API's words."""
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(model="llama-9", messages=[user("x")])
    error = error_of(caught.value)
    assert error["type"] == "not_found_error"
    assert error["message"].startswith("model: llama-9. Served here: ")


def test_a_prompt_that_is_too_long(ask: Asker) -> None:
    """By how much is said."""
    assert ask.refused(messages=[user("word " * 9000)]).startswith("prompt is too long: ")


def test_field_errors_name_their_path(ask_whole: Asker) -> None:
    """Dotted, from the body's root."""
    assert ask_whole.refused(messages=[]) == "messages: at least one message is required"
    told = ask_whole.refused(messages=[{"role": "user", "content": [{"type": "text"}]}])
    assert told == "messages.0.content.0.text.text: Field required"


# Answers ------------------------------------------------------------------------------------------


def test_the_message(ask: Asker) -> None:
    """Every field a Message has, and the reason it ended."""
    told = ask(messages=[user("Count to ten.")], max_tokens=3)
    message = told.message
    assert (message.type, message.role, message.model, message.stop_reason) == (
        "message",
        "assistant",
        MODEL,
        "max_tokens",
    )
    assert message.id.startswith("msg_")
    assert message.usage.output_tokens == 3
    assert [block.type for block in message.content] == ["text"]
    assert told.headers["request-id"].startswith("req_")


def test_the_order_of_events(served: Clocked) -> None:
    """message_start with all counts, one block, message_delta with cumulative counts, message_stop;
    nothing after it."""
    sent = body(stream=True, max_tokens=4, system=[text(filler(), CC)])
    status, answer, headers = raw(served, body=sent, x_api_key="key-one")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    events = []
    for block in answer.decode().strip().split("\n\n"):
        name, data = (line.split(": ", 1)[1] for line in block.split("\n"))
        events.append(json.loads(data))
        assert events[-1]["type"] == name
    names = [event["type"] for event in events if event["type"] != "ping"]
    assert names[:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start, delta = events[0]["message"]["usage"], events[-2]["usage"]
    assert (
        start["cache_creation"]["ephemeral_5m_input_tokens"]
        == start["cache_creation_input_tokens"]
        > 64
    )
    assert "cache_creation" not in delta
    for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
        assert start[name] == delta[name]
    assert delta["output_tokens"] == 4


def test_stop_sequences(ask: Asker) -> None:
    """The one that ended the answer is named and not shown."""
    letters = list("aeiouAEIOUtsn")
    message = ask(
        messages=[user("Say hello to everyone.")], max_tokens=40, stop_sequences=letters
    ).message
    assert (message.stop_reason, message.stop_sequence in letters) == ("stop_sequence", True)
    shown = "".join(block.text for block in message.content if block.type == "text")
    assert not set(letters) & set(shown)


# Turns --------------------------------------------------------------------------------------------


def test_every_kind_of_turn(ask: Asker) -> None:
    """Calls, results with and without blocks, errors, thinking that is sent back, late system text,
    a last turn to go on."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {"city": "서울"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "EqQBCg=="}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "12", "is_error": True}
    turns = [
        user("Weather?"),
        assistant(thought, "Let me see.", call),
        user(result, "and?"),
        {"role": "system", "content": "Be brief."},
        assistant("It is"),
    ]
    counted = ask.count(messages=turns, tools=[tool("a")])
    assert sum(ask(messages=turns, tools=[tool("a")]).counts) == counted


def test_turns_that_are_refused(ask_whole: Asker) -> None:
    """A system turn first or after an assistant's, a call without its result at the end, an empty
    turn."""
    late = {"role": "system", "content": "Be brief."}
    call = {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {}}
    assert ask_whole.refused(messages=[late, user("x")]).startswith("messages.0.role: ")
    assert ask_whole.refused(messages=[user("x"), assistant("y"), late]).startswith(
        "messages.2.role: "
    )
    assert "`tool_use` ids were found without" in ask_whole.refused(
        messages=[user("x"), assistant(call)], tools=[tool("a")]
    )
    assert ask_whole.refused(messages=[{"role": "user", "content": ""}, user("x")]).startswith(
        "messages.0: "
    )


def test_late_system_text_stays_in_place(ask: Asker) -> None:
    """It costs nothing of what came before it."""
    turns = [user(text(filler(), CC))]
    written = ask(messages=turns).written
    turns += [
        assistant("Yes."),
        user("go on"),
        {"role": "system", "content": [text("Remember this.", CC)]},
    ]
    told = ask(messages=turns)
    assert told.read == written > 64
    assert told.written > 0


# Counting and models ------------------------------------------------------------------------------


def test_counting_takes_all_that_a_prompt_may_hold(ask_whole: Asker) -> None:
    """No `max_tokens`; tools, choices, thinking, marks and speed change nothing but the prompt's
    own length."""
    turns = [user(filler())]
    plain = ask_whole.count(messages=turns)
    marked = [user(text(turns[0]["content"][0]["text"], CC))]
    more: dict[str, Any] = {"cache_control": CC, "speed": "fast", "thinking": {"type": "adaptive"}}
    assert ask_whole.count(messages=marked, **more) == plain
    assert ask_whole.count(messages=turns, tools=[tool("a")], tool_choice={"type": "any"}) > plain


def test_models(served: Clocked) -> None:
    """The list and one model, also by a name that only an alias covers."""
    with Asker(served, False).client() as client:
        listed = client.models.list()
        assert MODEL in [model.id for model in listed.data]
        one = client.models.retrieve("claude-opus-5")
        assert (one.type, one.id) == ("model", "claude-opus-5")
        with pytest.raises(anthropic.NotFoundError):
            client.models.retrieve("llama-9")


def test_the_model_list_comes_in_pages(served: Clocked) -> None:
    """The SDK's pager meets every model once, forwards and backwards; a page nobody can make is the
    API's own 400."""
    with Asker(served, False).client() as client:
        whole = client.models.list()
        names = [model.id for model in whole.data]
        assert (whole.has_more, whole.first_id, whole.last_id) == (False, names[0], names[-1])
        assert {MODEL, *ALIASES} <= set(names), "more than one page of 2"
        assert [model.id for model in client.models.list(limit=2)] == names
        first = client.models.list(limit=2)
        assert ([model.id for model in first.data], first.has_more, first.last_id) == (
            names[:2],
            True,
            names[1],
        )
        rest = client.models.list(limit=1000, after_id=names[1])
        assert ([model.id for model in rest.data], rest.has_more) == (names[2:], False)
        before = client.models.list(limit=1, before_id=names[-1])
        assert ([model.id for model in before.data], before.has_more) == ([names[-2]], True)
        assert client.models.list(before_id=names[0]).data == []
        stages = {"extra_query": {"lifecycle": ["deprecated", "active"]}}
        assert [model.id for model in client.models.list(**stages)] == names
        assert client.models.list(extra_query={"lifecycle": ["retired", "deprecated"]}).data == []
    for query in (
        "limit=0",
        "limit=1001",
        "limit=x",
        "after_id=llama-9",
        "lifecycle[]=dead",
        f"after_id={MODEL}&before_id={MODEL}",
    ):
        status, answer, _ = raw(
            served, f"/v1/models?{query}", x_api_key="key-one", anthropic_version=VERSIONS[0]
        )
        error = json.loads(answer)["error"]
        assert (status, error["type"]) == (400, "invalid_request_error"), query
        assert error["message"].startswith(query.partition("=")[0].removesuffix("[]")), query
