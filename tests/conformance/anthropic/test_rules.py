"""Anthropic's caching rules through its own SDK on the real engine: where marks may stand,
what is read, written and billed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import pytest

from tests.conformance.anthropic.asking import (
    CC,
    CC1H,
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


def blocks(words: str, num: int, *marked: int) -> list[dict[str, Any]]:
    """One turn of `num` blocks, counted from 1, those in `marked` marked; the first is long enough
    to be cached."""
    return [
        user(
            *(
                text(words if i == 1 else f"Line {i}.", CC if i in marked else None)
                for i in range(1, num + 1)
            )
        )
    ]


# Where marks may stand ----------------------------------------------------------------------------


def test_four_marks_and_no_fifth(ask: Asker) -> None:
    """Counted over tools, system and messages; the automatic one is a fifth."""
    four: dict[str, Any] = {
        "tools": [tool("a", CC)],
        "system": [text(filler(), CC)],
        "messages": [user(text("x", CC), text("y", CC), "z")],
    }
    assert ask(**four).written > 0
    five = four | {"messages": [user(text("x", CC), text("y", CC), text("z", CC))]}
    message = "A maximum of 4 blocks with cache_control may be provided. Found 5."
    assert ask.refused(**five) == message
    assert ask.refused(**four, cache_control=CC) == message


def test_an_automatic_mark_and_the_block_it_stands_on(ask: Asker) -> None:
    """The same TTL is one mark; another TTL is a 400; a block that cannot bear it is passed
    over."""
    turns = [user(filler(), text("x", CC))]
    told = ask(messages=turns, cache_control=CC)
    assert told.written > 64
    assert "different `ttl`" in ask.refused(messages=turns, cache_control=CC1H)
    empty = [user(filler(), text(""))]
    assert ask(messages=empty, cache_control=CC).written > 64


def test_automatic_caching_follows_the_conversation(ask: Asker) -> None:
    """Each turn reads up to the last block of the turn before."""
    turns = [user(filler())]
    first = ask(messages=turns, cache_control=CC)
    turns += [assistant("Yes."), user("And then?")]
    second = ask(messages=turns, cache_control=CC)
    assert second.read == first.written > 64
    assert second.written > 0


def test_ttls_may_not_grow(ask: Asker) -> None:
    """An hour after five minutes names the block that comes too late, in the order tools, system,
    messages."""
    message = (
        "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note "
        "that blocks are processed in "
        "the following order: `tools`, `system`, `messages`."
    )
    told = ask.refused(tools=[tool("a", CC)], system=[text("s", CC1H)], messages=[user("x")])
    assert told == f"system.0.cache_control.ttl: {message}"
    told = ask.refused(messages=[user(text("a", CC), text("b", CC1H))])
    assert told == f"messages.0.content.1.cache_control.ttl: {message}"


def test_marks_on_empty_text_and_on_thinking(ask: Asker) -> None:
    """Neither can bear one, and each says so under its own path."""
    told = ask.refused(messages=[user("x", text("", CC))])
    assert told == "messages.0.content.1.text: cache_control cannot be set for empty text blocks"
    thought = {"type": "thinking", "thinking": "hm", "signature": "s", "cache_control": CC}
    told = ask.refused(messages=[user("x"), assistant(thought, "y"), user("z")])
    assert told == "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted"


def test_marks_are_accepted_wherever_the_api_has_them(ask_whole: Asker) -> None:
    """Tools, system, text, calls, results, blocks inside results, documents, search results and
    late system text."""
    call = {"type": "tool_use", "id": "t1", "name": "a", "input": {}, "cache_control": CC}
    inner = {"type": "tool_result", "tool_use_id": "t1", "content": [text("r", CC)]}
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "d"},
        "cache_control": CC,
    }
    found = {
        "type": "search_result",
        "title": "t",
        "source": "s",
        "content": [text("c")],
        "cache_control": CC,
    }
    turns = [
        user(filler()),
        assistant(call),
        user(inner),
        {"role": "system", "content": [text("late", CC)]},
    ]
    ask_whole(tools=[tool("a", CC)], messages=turns)
    ask_whole(messages=[user(filler(), document, found)])
    nulls = [user({"type": "text", "text": filler(), "cache_control": None})]
    assert ask_whole(messages=nulls).written == 0


# What is read -------------------------------------------------------------------------------------


def test_look_back_of_twenty_positions(ask: Asker) -> None:
    """An entry nineteen blocks before the mark is found, twenty before is not."""
    words = filler()
    written = ask(messages=blocks(words, 5, 5)).written
    assert ask(messages=blocks(words, 25, 25)).read == 0
    assert written > 64
    words = filler()
    written = ask(messages=blocks(words, 5, 5)).written
    assert ask(messages=blocks(words, 24, 24)).read == written > 64


@pytest.mark.long
def test_two_marks_open_two_windows(ask: Asker) -> None:
    """Where the last mark's window ends before the entry, the mark before it is tried."""
    words = filler()
    written = ask(messages=blocks(words, 10, 10)).written
    told = ask(messages=blocks(words, 35, 15, 35))
    assert told.read == written > 64
    assert told.written > 0


def test_a_block_no_longer_marked_is_still_read(ask: Asker) -> None:
    """And read again by it, refreshed: the mark moved on, the entry stayed."""
    words = filler()
    written = ask(messages=blocks(words, 2, 2)).written
    told = ask(messages=blocks(words, 3, 3))
    assert told.read == written
    assert ask(messages=blocks(words, 2, 2)).counts[:3] == (written, 0, 0)


def test_without_marks_nothing_is_read_or_written(ask: Asker) -> None:
    """Caching is opt-in, also where another request has marked the same text."""
    words = filler()
    assert ask(system=[text(words, CC)], messages=[user("x")]).written > 64
    told = ask(system=words, messages=[user("x")])
    assert told.counts[:3] == (0, 0, 0)
    assert told.headers["pcg-cache"] == "bypass"


def test_below_the_minimum_nothing_happens(ask: Asker, served: Clocked) -> None:
    """A mark on too short a prefix is no error; a minimum depends on the model."""
    short = ask(system=[text("Be brief.", CC)], messages=[user("x")])
    assert (short.counts[:3], short.headers["pcg-cache"]) == ((0, 0, 0), "below-min")
    words = filler(60)
    assert ask(system=[text(words, CC)], messages=[user("x")]).written > 64
    assert ask(model="claude-opus-5", system=[text(words, CC)], messages=[user("x")]).written == 0


def test_parts_add_up_to_the_prompt(ask: Asker) -> None:
    """Read, written and uncached are the counted prompt, cold and warm."""
    body: dict[str, Any] = {"system": [text(filler(), CC)], "messages": [user("What is this?")]}
    counted = ask.count(**body)
    for _ in range(2):
        assert sum(ask(**body).counts) == counted


# What is billed -----------------------------------------------------------------------------------


def test_mixed_ttls_are_billed_by_three_positions(ask: Asker) -> None:
    """A = what was read, B = the last hour mark after it, C = the last mark: read A, an hour B - A,
    five minutes C - B."""
    head, middle, tail = filler(40), "middle " * 10, "tail " * 10
    body: dict[str, Any] = {
        "tools": [tool("a", CC1H, head)],
        "system": [text(middle, CC1H)],
        "messages": [user(text(tail, CC), "and a question")],
    }
    cold = ask(**body)
    assert cold.read == 0
    assert min(cold.counts) >= 0
    _, five, hour, rest = cold.counts
    assert five > 0
    assert hour > 64
    assert ask(**body).counts == (five + hour, 0, 0, rest)
    other_tail = body | {"messages": [user(text("other " * 10, CC), "and a question")]}
    told = ask(**other_tail)
    assert (told.read, told.counts[2]) == (hour, 0)
    assert told.counts[1] > 0
    more = body | {"system": [text(middle, CC1H), text("more " * 20, CC1H)]}
    told = ask(**more)
    assert told.read == hour
    assert min(told.counts[1:3]) > 0


def test_an_hour_mark_on_a_five_minute_entry_is_a_read(ask: Asker, served: Clocked) -> None:
    """The upgrade is free, and holds: half an hour later the entry is there."""
    words = filler()
    written = ask(system=[text(words, CC)], messages=[user("x")]).written
    assert ask(system=[text(words, CC1H)], messages=[user("x")]).counts[:3] == (written, 0, 0)
    served.advance(1800)
    assert ask(system=[text(words, CC1H)], messages=[user("x")]).read == written


# Time ---------------------------------------------------------------------------------------------


def test_reading_refreshes(ask: Asker, served: Clocked) -> None:
    """Read within its time an entry lives on for its own time; unread it ends."""
    body: dict[str, Any] = {"system": [text(filler(), CC)], "messages": [user("x")]}
    written = ask(**body).written
    for _ in range(2):
        served.advance(299)
        assert ask(**body).counts[:3] == (written, 0, 0)
    served.advance(300)
    told = ask(**body)
    assert told.counts[:3] == (0, written, 0)
    assert told.headers["pcg-cache"] == "expired"


def test_an_hour_is_an_hour(ask: Asker, served: Clocked) -> None:
    """And five minutes beside it are five minutes."""
    body: dict[str, Any] = {
        "system": [text(filler(), CC1H), text(filler(20), CC)],
        "messages": [user("x")],
    }
    _, five, hour, _ = ask(**body).counts
    served.advance(3599)
    assert ask(**body).counts[:3] == (hour, five, 0)
    served.advance(3600)
    assert ask(**body).read == 0


@pytest.mark.long
def test_the_clock_starts_with_the_request(served: Clocked) -> None:
    """Time spent answering is time of the entry: it ends five minutes after the request began, not
    after it ended."""
    for after_s, found in ((99, True), (101, False)):
        body: dict[str, Any] = {"system": [text(filler(), CC)], "messages": [user("Tell a story.")]}
        with (
            Asker(served, True).client() as client,
            client.messages.stream(model=MODEL, max_tokens=24, **body) as events,
        ):
            for i, _ in enumerate(events):
                if i == 2:
                    served.advance(200)
        served.advance(after_s)
        assert (Asker(served, True)(**body).read > 0) is found


# Who and what else --------------------------------------------------------------------------------


def test_workspaces_share_nothing(ask: Asker) -> None:
    """Another key's tenant writes what this one has written."""
    body: dict[str, Any] = {"system": [text(filler(), CC)], "messages": [user("x")]}
    written = ask(**body).written
    other = Asker(ask.served, ask.stream, "key-two")
    assert other(**body).counts[:3] == (0, written, 0)
    assert ask(**body).read == other(**body).read == written


@pytest.mark.long
def test_identical_requests_at_once(served: Clocked) -> None:
    """All are answered, every count adds up, and the prompt is written at least once and at most by
    each."""
    body: dict[str, Any] = {"system": [text(filler(200), CC)], "messages": [user("x")]}
    counted = Asker(served, False).count(**body)
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda i: Asker(served, i % 2 == 0)(**body), range(4)))
    assert {sum(answer.counts) for answer in told} == {counted}
    assert any(answer.written for answer in told)
    assert Asker(served, False)(**body).read == max(answer.written for answer in told)


INVALIDATES: list[tuple[str, dict[str, Any], tuple[bool, bool, bool]]] = [
    ("nothing", {}, (True, True, True)),
    (
        "a tool's text",
        {"tools": [tool("b"), tool("a", CC, filler(40, "other"))]},
        (False, False, False),
    ),
    (
        "the order of tools",
        {"tools": [tool("a", None, filler(40, "same")), tool("b", CC)]},
        (False, False, False),
    ),
    ("no tools", {"tools": []}, (False, False, False)),
    ("system text", {"system": [text(filler(40, "other"), CC)]}, (True, False, False)),
    ("speed", {"speed": "fast"}, (True, False, False)),
    ("tool choice", {"tool_choice": {"type": "none"}}, (True, True, False)),
    (
        "parallel calls",
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        (True, True, False),
    ),
    (
        "thinking",
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1025},
        (True, True, False),
    ),
    ("effort", {"output_config": {"effort": "low"}}, (True, True, False)),
    ("effort at its default", {"output_config": {"effort": "high"}}, (True, True, True)),
    ("another user", {"metadata": {"user_id": "someone"}}, (True, True, True)),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "keeps"), [row[1:] for row in INVALIDATES], ids=[row[0] for row in INVALIDATES]
)
def test_invalidation_table(
    ask_whole: Asker, change: dict[str, Any], keeps: tuple[bool, bool, bool]
) -> None:
    """Which levels stay readable when one thing changes, and that going back reads everything
    again."""
    ids = filler(1)
    body: dict[str, Any] = {
        "tools": [tool("b", None, ids), tool("a", CC, filler(40, "same"))],
        "system": [text(filler(40, "same"), CC)],
        "messages": [user(text(filler(20, "same"), CC), "x")],
        "stop_sequences": ["w", "e", "a", "i", "o", "t", "n", "s"],
    }
    if "tools" in change:
        change = {"tools": [*change["tools"][:-1], *change["tools"][-1:]]}
        for changed in change["tools"]:
            if changed["name"] == "b":
                changed["description"] = ids
    ends = [0]
    for level in ("tools", "system"):
        prefix = {name: body[name] for name in ("tools", "system")[: 1 + (level == "system")]}
        ends.append(
            ask_whole(**prefix, messages=[user(text("unrelated", None))]).written + ends[-1]
        )
    tools_end, system_end = ends[1], ends[2]
    whole = sum(ask_whole(**body).counts[:3])
    assert 64 < tools_end < system_end < whole
    expected = next(
        (
            end
            for end, kept in zip((whole, system_end, tools_end), reversed(keeps), strict=True)
            if kept
        ),
        0,
    )
    assert ask_whole(**(body | change)).read == expected
    assert ask_whole(**body).read == whole


def test_images_name_their_block(ask_whole: Asker) -> None:
    """A model that sees no images says which block it is, after the marks were checked."""
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
        "cache_control": CC,
    }
    assert (
        ask_whole.refused(messages=[user(image)])
        == "messages.0.content.0: `image` blocks are not supported by this model"
    )
    assert "Found 5" in ask_whole.refused(messages=[user(image, *[text("x", CC)] * 4)])


# Pre-warming --------------------------------------------------------------------------------------


def test_warming_without_an_answer(ask_whole: Asker) -> None:
    """`max_tokens: 0` writes, answers nothing, and the next request reads; it refreshes like any
    read."""
    body: dict[str, Any] = {"system": [text(filler(), CC)]}
    warm = ask_whole(**body, messages=[user("warmup")], max_tokens=0)
    assert (warm.message.content, warm.message.stop_reason, warm.message.usage.output_tokens) == (
        [],
        "max_tokens",
        0,
    )
    assert warm.written > 64
    assert ask_whole(**body, messages=[user("A question.")]).read == warm.written
    for _ in range(2):
        ask_whole.served.advance(200)
        assert ask_whole(**body, messages=[user("warmup")], max_tokens=0).read == warm.written


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("stream", {"stream": True}),
        ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (
            "output_config.format",
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        ),
        ("tool_choice", {"tools": [tool("a")], "tool_choice": {"type": "any"}}),
        ("tool_choice", {"tools": [tool("a")], "tool_choice": {"type": "tool", "name": "a"}}),
    ],
)
def test_what_warming_refuses(ask_whole: Asker, field: str, more: dict[str, Any]) -> None:
    """What asks for an answer contradicts wanting none."""
    told = ask_whole.refused(messages=[user("x")], max_tokens=0, **more)
    assert told == f"{field}: not allowed when `max_tokens` is 0"


# Diagnostics --------------------------------------------------------------------------------------


def why(ask: Asker, before: str | None, **body: Any) -> tuple[str, dict[str, Any] | None]:
    """The id of the answer and the reason it gives, where there is one."""
    message = ask(**body, diagnostics={"previous_message_id": before}).message
    diagnostics = message.model_dump().get("diagnostics")
    if ask.stream:
        start = next(event for event in ask.events if event.type == "message_start")
        assert start.message.model_dump().get("diagnostics") == diagnostics
    return message.id, None if diagnostics is None else diagnostics["cache_miss_reason"]


def test_diagnostics(ask: Asker) -> None:
    """Each way in which a request differs from the one it names, the earliest level first; none
    where it only goes on."""
    body: dict[str, Any] = {
        "tools": [tool("a")],
        "system": [text(filler(), CC)],
        "messages": [user("q"), assistant("a"), user("r")],
    }
    assert ask(**body).message.model_dump().get("diagnostics") is None
    first, reason = why(ask, None, **body)
    assert reason is None
    longer = body | {"messages": [*body["messages"], assistant("s"), user(text("t", CC))]}
    assert why(ask, first, **longer)[1] is None
    assert why(ask, first, **body)[1] is None
    changes: dict[str, dict[str, Any]] = {
        "model_changed": {"model": "claude-opus-5"},
        "system_changed": {"system": [text("other")], "tools": [tool("b")]},
        "tools_changed": {"tools": [tool("b")], "messages": [user("z")]},
        "messages_changed": {"messages": [user("q"), assistant("changed"), user("r")]},
    }
    for kind, change in changes.items():
        found = why(ask, first, **(body | change))[1]
        assert found is not None
        assert found["type"] == kind
        assert found["cache_missed_input_tokens"] >= 0
    assert why(ask, first, **(body | {"tool_choice": {"type": "none"}}))[1] == {
        "type": "unavailable"
    }
    assert why(ask, "msg_unknown", **body)[1] == {"type": "previous_message_not_found"}
    other = Asker(ask.served, ask.stream, "key-two")
    assert why(other, first, **body)[1] == {"type": "previous_message_not_found"}


# The request's own Cache-Control ------------------------------------------------------------------


def test_cache_directives(ask: Asker, served: Clocked) -> None:
    """no-store keeps nothing, no-cache reads nothing, max-age reads what is new enough,
    only-if-cached fails over paying."""
    body: dict[str, Any] = {"system": [text(filler(), CC1H)], "messages": [user("x")]}

    def counts(directive: str) -> tuple[int, int, int, int]:
        return ask(**body, headers={"Cache-Control": directive}).counts

    with pytest.raises(anthropic.APIStatusError) as caught:
        counts("only-if-cached")
    assert caught.value.status_code == 504
    assert error_of(caught.value)["type"] == "timeout_error"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert counts("no-store")[:3] == (0, 0, 0)
    written = counts("no-cache")[2]
    assert written > 64
    assert counts("only-if-cached")[0] == written
    assert counts("no-cache")[:3] == (0, 0, written)
    served.advance(61)
    assert counts("max-age=3600")[0] == written
    assert counts("max-age=60")[:3] == (0, 0, written)
    assert counts("max-age=60")[0] == written
