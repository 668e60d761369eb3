"""Reasoning told from the answer, however the two are cut, and which models reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.output.reasoning import ReasoningSplitter
from engine.prompt.reasoning import THINK, THINK_BRACKETS, Reasoning, reasoning_kind

BEGUN = replace(THINK, begun=True)


def split(kind: Reasoning | None, pieces: Iterable[str], *, cut: bool = False) -> tuple[str, str]:
    """Reasoning and answer of what comes in `pieces`; nothing of the reasoning comes after the
    answer began."""
    splitter = ReasoningSplitter(kind)
    said = [one for piece in pieces for one in splitter.push(piece)]
    said += splitter.end(cut=cut)
    assert all(one.text for one in said)
    assert [one.thinking for one in said] == sorted((one.thinking for one in said), reverse=True)
    thoughts, answer = (
        "".join(one.text for one in said if one.thinking is thinking) for thinking in (True, False)
    )
    return thoughts, answer


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (None, "<think>a</think>b", ("", "<think>a</think>b")),
        (THINK, "", ("", "")),
        (THINK, "b", ("", "b")),
        (THINK, " \n", ("", " \n")),
        (THINK, "<think>\na\n\nc\n</think>\n\nb\n", ("a\n\nc", "b\n")),
        (THINK, "\n<think>a</think>b", ("a", "b")),
        (THINK, "<think>\n\n</think>\n\nb", ("", "b")),
        (THINK, "<think>a", ("a", "")),
        (THINK, "<thinker> is <think>a</think>", ("", "<thinker> is <think>a</think>")),
        (THINK, "<think>a </th b</think>c</think>", ("a </th b", "c</think>")),
        (THINK, "<think>a</think>", ("a", "")),
        (BEGUN, "a\n</think>\n\nb", ("a", "b")),
        (BEGUN, "<think>\na</think>b", ("a", "b")),
        (BEGUN, "a", ("a", "")),
        (BEGUN, "<think><think>a", ("<think>a", "")),
        (THINK_BRACKETS, "[THINK]a[/THINK]b", ("a", "b")),
    ],
)
def test_reasoning_stands_in_front(
    kind: Reasoning | None, text: str, expected: tuple[str, str]
) -> None:
    """Without its tags and the newlines around it; later tags are text. Whole, in letters, and cut
    in two anywhere."""
    assert split(kind, [text]) == expected
    assert split(kind, text) == expected
    for i in range(1, len(text)):
        assert split(kind, [text[:i], text[i:]]) == expected


@given(
    st.sampled_from([THINK, BEGUN, None]),
    st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "<", "</", "a", "é"]), max_size=10),
    st.data(),
    st.booleans(),
)
def test_cuts_change_nothing(
    kind: Reasoning | None, fragments: list[str], data: st.DataObject, cut: bool
) -> None:
    """Any text, sense or not."""
    text = "".join(fragments)
    borders = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=4))})
    whole = split(kind, [text], cut=cut)
    assert (
        split(kind, [text[begin:end] for begin, end in itertools.pairwise(borders)], cut=cut)
        == whole
    )
    assert split(kind, text, cut=cut) == whole


@pytest.mark.parametrize("kind", [THINK, BEGUN], ids=["told", "begun"])
@pytest.mark.parametrize("text", ["<think>a</think>b", "<think>\na\n</think>\nb"])
def test_a_cut_never_shows_half_a_tag(kind: Reasoning, text: str) -> None:
    """An answer that breaks off inside a tag ends in front of it."""
    for i in range(len(text)):
        thoughts, answer = split(kind, text[:i], cut=True)
        assert (thoughts, answer) in [("", ""), ("a", ""), ("a", "b")]


@pytest.mark.parametrize(
    ("added", "source", "kind"),
    [
        ((), "{{ messages }}", None),
        (("<think>", "</think>"), "", THINK),
        ((), "{{ content.split('</think>')[-1] }}", THINK),
        (("[THINK]", "[/THINK]"), "", THINK_BRACKETS),
        (("<|im_start|>",), "<thinking>", None),
    ],
)
def test_which_models_reason(added: tuple[str, ...], source: str, kind: Reasoning | None) -> None:
    """Those whose vocabulary has the tags, or whose template takes reasoning out of earlier
    answers."""
    assert reasoning_kind(added, source) == kind
