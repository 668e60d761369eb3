"""Calls in streamed answers, for every format: what is found,
and that neither cuts nor ends change it.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.output.calls.events import CallArguments, CallBegin, CallEvent, Text
from engine.output.calls.parser import CallParser
from engine.prompt.call_format import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, CallFormat
from tests.fakes.call_formats import FORMATS

TOOLS = ("f", "g")
Found = list[str | tuple[str, str]]
"""Texts, and calls as name and arguments."""


def joined(events: Iterable[CallEvent]) -> Found:
    """Texts and calls in their order. Arguments may only come in a call."""
    found: Found = []
    for event in events:
        match event:
            case Text():
                assert event.text
                if found and isinstance(found[-1], str):
                    found[-1] += event.text
                else:
                    found.append(event.text)
            case CallBegin():
                found.append((event.name, ""))
            case CallArguments():
                assert event.text
                name, arguments = found[-1]
                found[-1] = (name, arguments + event.text)
    return found


def parse(form: CallFormat, pieces: Iterable[str], *, cut: bool = False) -> Found:
    """What an answer that comes in `pieces` says."""
    parser = CallParser(form, TOOLS)
    events = [event for piece in pieces for event in parser.push(piece)]
    return joined([*events, *parser.end(cut=cut)])


GOOD: list[tuple[CallFormat, str, Found]] = [
    (HERMES, "no call", ["no call"]),
    (HERMES, "", []),
    (HERMES, " \n", [" \n"]),
    (
        HERMES,
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        [("f", '{"a": 1}')],
    ),
    (
        HERMES,
        'I look.\n<tool_call>{"name":"f","arguments":{}}</tool_call>',
        ["I look.", ("f", "{}")],
    ),
    (HERMES, '\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n', [("f", "{}")]),
    (
        HERMES,
        'a\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n\nb',
        ["a\n", ("f", "{}"), "b"],
    ),
    (
        HERMES,
        '<tool_call>{"name":"f","arguments":{"a":"}</tool_call>\\""}}</tool_call>\n<tool_call>{"name":"g"}</tool_call>',
        [("f", '{"a":"}</tool_call>\\""}'), ("g", "{}")],
    ),
    (
        HERMES,
        '<tool_call>{"arguments": {"a": [1, {}]}, "name": "f"}</tool_call>',
        [("f", '{"a": [1, {}]}')],
    ),
    (HERMES, '<tool_call>{"id": "1", "name": "f", "arguments": null}</tool_call>', [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": ""}</tool_call>', [("f", "{}")]),
    (HERMES, '<tool_call>{"arguments": " \\n", "name": "f"}</tool_call>', [("f", "{}")]),
    (LLAMA3, '{"name": "f", "parameters": ""}', [("f", "{}")]),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": ""}]', [("f", "{}")]),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        [("f", '{"a": 1}')],
    ),
    (HERMES, '<tool_call>{"name": "\\u0066", "arguments": {}}</tool_call>', [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "nosuch", "arguments": {}}</tool_call>', [("nosuch", "{}")]),
    (HERMES, '{"name": "f", "arguments": {}}', ['{"name": "f", "arguments": {}}']),
    (LLAMA3, '{"name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')]),
    (LLAMA3, '\n\n {"name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')]),
    (LLAMA3, '{"type": "function", "name": "f", "parameters": {}}', [("f", "{}")]),
    (
        LLAMA3,
        '{"name": "f", "parameters": {}}; {"name": "g", "arguments": {"b": 2}}',
        [("f", "{}"), ("g", '{"b": 2}')],
    ),
    (
        LLAMA3,
        'Sure.\n{"name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}',
        ["Sure.", ("f", "{}"), ("g", "{}")],
    ),
    (LLAMA3, '<|python_tag|>{"name": "nosuch", "parameters": {}}', [("nosuch", "{}")]),
    (LLAMA3, 'Say {"name": "f", "parameters": {}}', ['Say {"name": "f", "parameters": {}}']),
    (LLAMA3, '{"title": "f", "name": "f"}', ['{"title": "f", "name": "f"}']),
    (LLAMA3, '{"name": "John", "parameters": {}}', ['{"name": "John", "parameters": {}}']),
    (LLAMA3, "a\n\n{b}\n", ["a\n\n{b}\n"]),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}}, {"name": "g", "arguments": {}, '
        '"id": "call00002"}]',
        [("f", '{"a": [1]}'), ("g", "{}")],
    ),
    (MISTRAL, 'Well.[TOOL_CALLS][{"name": "f", "arguments": {}}]', ["Well.", ("f", "{}")]),
    (MISTRAL, '[TOOL_CALLS]{"name": "f", "arguments": {}}', [("f", "{}")]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {}}]\n\nWait.', [("f", "{}"), "Wait."]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {}}][TOOL', [("f", "{}"), "[TOOL"]),
    (MISTRAL, "[INST] [1, 2]", ["[INST] [1, 2]"]),
    (
        MISTRAL_ARGS,
        '[TOOL_CALLS]f[ARGS]{"a": "x"}[TOOL_CALLS]g[ARGS]{}',
        [("f", '{"a": "x"}'), ("g", "{}")],
    ),
    (
        MISTRAL_ARGS,
        'Hm.\n[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}',
        ["Hm.", ("f", '{"a": 1}')],
    ),
    (MISTRAL_ARGS, '[TOOL_CALLS]f{"a": 1}', [("f", '{"a": 1}')]),
    (MISTRAL_ARGS, '[TOOL_CALLS] [{"name": "f", "arguments": {}}]', [("f", "{}")]),
]

BAD: list[tuple[CallFormat, str, Found]] = [
    (HERMES, "a <b> <tool> c<", ["a <b> <tool> c<"]),
    (HERMES, "<tool_call>nothing</tool_call> x", ["<tool_call>nothing</tool_call> x"]),
    (
        HERMES,
        '<tool_call>{"arguments": {}}</tool_call>',
        ['<tool_call>{"arguments": {}}</tool_call>'],
    ),
    (
        HERMES,
        '<tool_call>{"name": 7, "arguments": {}}',
        ['<tool_call>{"name": 7, "arguments": {}}'],
    ),
    (
        HERMES,
        '<tool_call>{"name": "\\ud83d", "arguments": {}}',
        ['<tool_call>{"name": "\\ud83d", "arguments": {}}'],
    ),
    (HERMES, '<tool_call>{"name": "f", "arguments": "\\ud83d"}', [("f", '"\\ud83d"')]),
    (HERMES, 'x\n<tool_call>[[{"name": "f"}]]', ['x\n<tool_call>[[{"name": "f"}]]']),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": </tool_call>b', [("f", '{"a": '), "b"]),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>b',
        [("f", '{"a": 1}'), "b"],
    ),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}}}\n</tool_call>', [("f", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}}, then', [("f", "{}"), ", then"]),
    (HERMES, '<tool_call>{"name": "f", "argu', [("f", "")]),
    (LLAMA3, "<|python_tag|>f.call(a=1)", ["<|python_tag|>f.call(a=1)"]),
    (LLAMA3, '{"name": f}', ['{"name": f}']),
    (MISTRAL, "[TOOL_CALLS] f(1)", ["[TOOL_CALLS] f(1)"]),
    (MISTRAL_ARGS, "[TOOL_CALLS]f or g", ["[TOOL_CALLS]f or g"]),
    (MISTRAL_ARGS, '[TOOL_CALLS]f[ARGS]{"a": "', [("f", '{"a": "')]),
]


@pytest.mark.parametrize(
    ("form", "text", "found"), [*GOOD, *BAD], ids=lambda value: getattr(value, "name", None)
)
def test_what_is_found(form: CallFormat, text: str, found: Found) -> None:
    """Well formed and not: what leads to no name is text as it was, what follows a name is
    arguments. Whole, in letters, and cut in two anywhere."""
    assert parse(form, [text]) == found
    assert parse(form, text) == found
    for i in range(1, len(text)):
        assert parse(form, [text[:i], text[i:]]) == found


@pytest.mark.parametrize(
    ("form", "text", "found"), GOOD, ids=lambda value: getattr(value, "name", None)
)
def test_an_answer_that_breaks_off_anywhere(form: CallFormat, text: str, found: Found) -> None:
    """What is told of the beginning is a beginning of what is told of the whole, never a part of a
    tag; but for space."""
    for i in range(len(text)):
        begun = [
            one
            for one in parse(form, text[:i], cut=True)
            if not (isinstance(one, str) and one.isspace())
        ]
        for one, whole in itertools.zip_longest(begun, found[: len(begun)]):
            assert isinstance(one, str) == isinstance(whole, str)
            if isinstance(one, str):
                assert str(whole).startswith(one.rstrip()), (text[:i], begun)
            else:
                assert one[0] == whole[0]
                assert whole[1].startswith(one[1])


FRAGMENTS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "f",
        "nosuch",
        "é",
    ),
    *(
        '{"name": "f", "arguments": ',
        '{"name": "f", "parameters": ',
        '{"a": "',
        '"',
        "{",
        "}",
        "[",
        "]",
        ", ",
        "\n",
        " ",
        "<",
        "\\",
    ),
)


@given(
    st.sampled_from(list(FORMATS.values())),
    st.lists(st.sampled_from(FRAGMENTS), max_size=12),
    st.data(),
    st.booleans(),
)
def test_cuts_change_nothing(
    form: CallFormat, fragments: list[str], data: st.DataObject, cut: bool
) -> None:
    """Any text, sense or not, says the same however it is cut; text that is found stands in the
    answer."""
    text = "".join(fragments)
    borders = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=5))})
    found = parse(form, [text], cut=cut)
    assert (
        parse(form, [text[begin:end] for begin, end in itertools.pairwise(borders)], cut=cut)
        == found
    )
    assert parse(form, text, cut=cut) == found
    at = 0
    for one in found:
        if isinstance(one, str):
            at = text.index(one, at) + len(one)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.floats(allow_nan=False, width=16)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(TOOLS), st.dictionaries(st.text(max_size=5), JSON, max_size=3)),
    min_size=1,
    max_size=3,
)


@given(st.sampled_from(list(FORMATS.values())), CALLS, st.booleans(), st.sampled_from([None, 1]))
def test_what_a_format_writes_is_read_back(
    form: CallFormat, calls: list[tuple[str, dict[str, Any]]], ascii_only: bool, indent: int | None
) -> None:
    """Any calls with any arguments, written in any JSON style, in every format, come back to the
    letter."""
    written = [
        (name, json.dumps(arguments, ensure_ascii=ascii_only, indent=indent))
        for name, arguments in calls
    ]
    text = form.text(written)
    assert parse(form, [text]) == written
    assert parse(form, text) == written


@pytest.mark.parametrize("key", ["name", "arguments"])
def test_a_member_nested_beyond_reason_is_read_to_its_end(key: str) -> None:
    """A name that is a list in lists is no name, however deep it is; as arguments it goes on as it
    was written."""
    nested = "[" * 5000 + "]" * 5000
    others = '"name": "f", ' if key == "arguments" else ""
    text = f'<tool_call>{{{others}"{key}": {nested}}}</tool_call>'
    assert parse(HERMES, [text]) == ([("f", nested)] if key == "arguments" else [text])


def test_blanks_behind_a_name_cost_no_more_than_their_number() -> None:
    """A model that goes on with blanks where its arguments should begin holds nobody up: each is
    looked at once a piece."""
    text = "[TOOL_CALLS]f" + " " * 50_000
    parser = CallParser(MISTRAL_ARGS, TOOLS)
    begin_s = time.process_time()
    assert joined([*parser.push(text), *parser.end(cut=False)]) == [text]
    assert time.process_time() - begin_s < 2.0


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_call_of_a_barred_tool_is_text(form: CallFormat) -> None:
    """Character for character, however it is cut; calls of other tools, offered or not, are calls
    as before."""
    barred, fine = form.text([("g", '{"a": 1}')]), form.text([("f", '{"a": 1}')])
    for pieces in ([barred], list(barred)):
        parser = CallParser(form, TOOLS, {"g"})
        events = [event for piece in pieces for event in parser.push(piece)]
        assert (
            "".join(str(part) for part in joined([*events, *parser.end(cut=False)])).strip()
            == barred.strip()
        )
    parser = CallParser(form, TOOLS, {"g"})
    assert joined([*parser.push(fine), *parser.end(cut=False)]) == [("f", '{"a": 1}')]


def test_text_and_arguments_are_shown_as_soon_as_they_are_certain() -> None:
    """No more is held back than what may be a tag, or the newline in front of one."""
    parser = CallParser(HERMES, TOOLS)
    assert parser.push("a<b") == [Text("a<b")]
    assert parser.push("c <tool") == [Text("c ")]
    assert parser.push("s\n") == [Text("<tools")]
    assert parser.push("<tool_call>") == []
    assert parser.push('{"name": "f') == []
    assert parser.push('"') == [CallBegin("f")]
    assert parser.push(', "arguments": {"x') == [CallArguments('{"x')]
    assert parser.push('": 1}') == [CallArguments('": 1}')]
    assert parser.push("}") == []
    assert parser.push("\n</tool_call>\nNow.") == [Text("Now.")]


def test_a_json_answer_is_not_held_back() -> None:
    """Where calls have no tag, an object is text from its first key on that calls do not have."""
    parser = CallParser(LLAMA3, TOOLS)
    assert parser.push('{"title') == []
    assert joined(parser.push('": ')) == ['{"title": ']
    assert parser.push("1}") == [Text("1}")]
