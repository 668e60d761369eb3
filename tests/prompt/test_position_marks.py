"""Finding marks in what a template made of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.prompt.position_marks import (
    Located,
    MarkedDict,
    Mismatch,
    PrivateMarks,
    locate,
    to_json_marked,
)
from engine.prompt.types import Position

A, B = Position("messages", 0), Position("messages", 1)
MARKS = PrivateMarks([A, B], "\U000f0000\U000f0001\U000f0002\U000f0003")


@pytest.mark.parametrize(
    ("a", "b", "template", "text", "ends"),
    [
        ("one", "two", "<{a}> <{b}>", "<one> <two>", {A: 4, B: 10}),
        (" one\n", "two ", "<{a}>\n<{b}>", "<one>\n<two>", {A: 4, B: 10}),
        (" one\n", "two ", "<{a}>\n<{b}>", "< one\n>\n<two >", {A: 6, B: 13}),
        ("one\n", "two", "{a}\n{b}", "one\ntwo", {A: 3, B: 7}),
        ("one", "two", "{b}{a}", "twoone", {A: 6, B: 3}),
        ("one", "two", "{a}{b}{a}", "onetwoone", {A: 9, B: 6}),
        ("one", "two", "{a}", "one", {A: 3}),
        ("one", " ", "{a}.{b}", "one. ", {A: 3}),
        ("", "two", "{a}.{b}", ".two", {B: 4}),
    ],
)
def test_ends_are_found(
    a: str, b: str, template: str, text: str, ends: dict[Position, int]
) -> None:
    """Content is found where it went: trimmed or whole, moved, repeated or dropped; blank content
    is not marked."""
    found = locate(text, template.format(a=MARKS.text(A, a), b=MARKS.text(B, b)), MARKS)
    assert isinstance(found, Located)
    assert found.ends == ends
    assert found.complete


@pytest.mark.parametrize(
    ("template", "text"), [("{a}{b}!", "onetwo"), ("{a}{b}", "onetwo!"), ("5{a}{b}", "3onetwo")]
)
def test_another_text_is_no_match(template: str, text: str) -> None:
    """A template that looked into the content is caught, and the content next to the difference is
    named."""
    found = locate(text, template.format(a=MARKS.text(A, "one"), b=MARKS.text(B, "two")), MARKS)
    assert isinstance(found, Mismatch)
    assert found.owners


def test_an_end_without_a_beginning_is_not_complete() -> None:
    """Where the first content begins is then unknown."""
    found = locate("one", MARKS.text(A, "one")[1:], MARKS)
    assert found == Located(set(), {A: 3}, False)


@pytest.mark.parametrize(
    "options", [{}, {"sort_keys": True}, {"ensure_ascii": False}, {"separators": (",", ":")}]
)
@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: [1, d, d], lambda d: {"z": 1, "a": d}])
def test_marked_json_is_json_with_marks(wrap: Any, options: dict[str, Any]) -> None:
    """Without the marks it is what `json.dumps` writes, with them around each marked dict."""
    data = {"b": "ü", "a": [1, {"c": None}]}
    marked = to_json_marked(wrap(MarkedDict(data, "\U000f0000", "\U000f0001")), **options)
    plain = json.dumps(data, **options)
    assert f"\U000f0000{plain}\U000f0001" in marked
    assert marked.replace("\U000f0000", "").replace("\U000f0001", "") == json.dumps(
        wrap(data), **options
    )
