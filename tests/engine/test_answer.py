"""Stop strings, end-of-turn tokens and half characters: what of the sampled tokens a client reads."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.answer import Answer, Piece, StopMatcher
from engine.types import Sampling
from tests.fakes.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
STOP_ID = min(TOKENIZER.stop_ids)


def shown(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """What a matcher shows of text that arrives in pieces, and the stop string it ended with."""
    matcher = StopMatcher(stops)
    text = ""
    for piece in pieces:
        matched = matcher.push(piece)
        text += matched.text
        if matched.stop is not None:
            return text, matched.stop
    return text + matcher.flush(), None


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        ([], "abc", ("abc", None)),
        ([""], "abc", ("abc", None)),
        (["b"], "abc", ("a", "b")),
        (["abc"], "abc", ("", "abc")),
        (["\n\n"], "one\n\ntwo\n\n", ("one", "\n\n")),
        (["END"], "the EN is not the END.", ("the EN is not the ", "END")),
        (["aab"], "aaab", ("a", "aab")),
        (["b", "abc"], "xabc", ("xa", "b")),
        (["bc", "abc"], "xabc", ("x", "abc")),
        (["abcd", "bc"], "xabcd", ("xa", "bc")),
        (["그만"], "이제 그만하자", ("이제 ", "그만")),
        (["그만"], "그 만", ("그 만", None)),
        (["👩‍👩"], "a👩‍👧b", ("a👩‍👧b", None)),
        (["ab"], "a", ("a", None)),
    ],
)
def test_stop_strings(stops: list[str], text: str, expected: tuple[str, str | None]) -> None:
    """The text before the stop string that is complete first, whether it arrives whole or letter by letter."""
    assert shown(stops, [text]) == expected
    assert shown(stops, list(text)) == expected


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.text("ab", max_size=12),
    st.lists(st.integers(0, 12), max_size=4),
)
def test_cuts_change_nothing(stops: list[str], text: str, cuts: list[int]) -> None:
    """However the text is cut, the outcome is the same, and it holds no stop string."""
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in itertools.pairwise(borders)]
    result, stop = shown(stops, pieces)
    assert (result, stop) == shown(stops, [text])
    assert text.startswith(result + (stop or ""))
    assert all(other not in result for other in stops)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    """Text is shown as soon as it can't be part of a stop string any more, and not earlier."""
    matcher = StopMatcher(["\n\nHuman:"])
    assert [matcher.push(piece).text for piece in ("a", "\n", "b\n", "\nHum", "bug")] == ["a", "", "\nb", "", "\n\nHumbug"]


def play(token_ids: list[int], *, at_limit: str = "length", **sampling: object) -> list[Piece]:
    """The pieces of an answer, up to the last."""
    options = {"max_tokens": 100, **sampling}
    answer = Answer(TOKENIZER, Sampling(**options), at_limit)  # type: ignore[arg-type]
    pieces = []
    for token_id in token_ids:
        piece = answer.push(token_id)
        if piece is not None:
            pieces.append(piece)
            if piece.finish is not None:
                break
    assert sum(len(piece.token_ids) for piece in pieces) == answer.num_tokens
    return pieces


def test_the_end_of_turn_is_neither_text_nor_output() -> None:
    """The token that ends the answer is in no piece and is not counted."""
    assert play([*b"hi", STOP_ID]) == [Piece("h", (104,)), Piece("i", (105,)), Piece("", (), "stop")]


def test_ignoring_the_end_of_turn_counts_it_but_never_shows_it() -> None:
    """With `ignore_eos` the token is output like any other, without text."""
    assert play([104, STOP_ID, 105], ignore_eos=True, max_tokens=3) == [
        Piece("h", (104,)),
        Piece("i", (STOP_ID, 105), "length"),
    ]


@pytest.mark.parametrize("at_limit", ["length", "context"])
def test_the_limit_ends_the_answer(at_limit: str) -> None:
    """The token that reaches `max_tokens` is still shown, with the reason that was given for the limit."""
    assert play([*b"abc"], max_tokens=2, at_limit=at_limit)[-1] == Piece("b", (98,), at_limit)  # type: ignore[arg-type]


def test_a_stop_string_on_the_last_token_wins_over_the_limit() -> None:
    """A client that asked for a stop string learns that it was there."""
    assert play([*b"ab."], stop=(".",), max_tokens=3)[-1] == Piece("", (46,), "stop_sequence", ".")


def test_text_held_back_for_a_stop_string_is_shown_at_the_end() -> None:
    """What began a stop string and didn't become one is part of the answer."""
    assert [piece.text for piece in play([*b"abE", STOP_ID], stop=("END",))] == ["a", "b", "E"]


def test_characters_come_whole() -> None:
    """Korean and emoji, three and four tokens each: a piece per character, with all its tokens."""
    pieces = play([*"한🎉".encode(), STOP_ID])
    assert [(piece.text, len(piece.token_ids)) for piece in pieces] == [("한", 3), ("🎉", 4), ("", 0)]


def test_a_stop_string_may_end_inside_a_long_piece() -> None:
    """A Korean stop string across token borders: nothing of it is shown."""
    pieces = play([*"좋아요 그만 더".encode()], stop=("그만",))
    assert ("".join(piece.text for piece in pieces), pieces[-1].stop) == ("좋아요 ", "그만")


def test_an_unfinished_character_at_the_limit_is_left_out() -> None:
    """An answer cut inside a character ends before it; the token still counts."""
    assert play([*"é".encode()], max_tokens=1) == [Piece("", (0xC3,), "length")]
