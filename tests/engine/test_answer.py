"""What of the sampled tokens a client reads: characters, stop strings, reasoning and calls,
and which tokens each carries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.output.parser import CallPiece, OutputParser, OutputPiece
from engine.output.stops import StopMatcher
from engine.prompt.call_format import HERMES, MISTRAL_ARGS, CallFormat
from engine.prompt.output_syntax import PLAIN, OutputSyntax
from engine.prompt.reasoning import THINK
from engine.types import OutputFormat, Sampling, TokenLogprob, TokenLogprobs, ToolChoice
from tests.fakes.call_formats import FORMATS
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
    """The text before the stop string that is complete first, whether it arrives whole or letter by
    letter."""
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
    assert [matcher.push(piece).text for piece in ("a", "\n", "b\n", "\nHum", "bug")] == [
        "a",
        "",
        "\nb",
        "",
        "\n\nHumbug",
    ]


def play(
    token_ids: list[int],
    *,
    at_limit: str = "length",
    syntax: OutputSyntax = PLAIN,
    tokenizer: ByteTokenizer = TOKENIZER,
    **sampling: object,
) -> list[OutputPiece]:
    """The pieces of an answer, up to the last; every token is in one of them."""
    options = {"max_tokens": 100, **sampling}
    answer = OutputParser(tokenizer, Sampling(**options), at_limit, syntax)  # type: ignore[arg-type]
    pieces: list[OutputPiece] = []
    for token_id in token_ids:
        pieces += answer.push(token_id)
        if pieces and pieces[-1].finish is not None:
            break
    assert sum(len(piece.token_ids) for piece in pieces) == answer.num_tokens
    return pieces


def test_the_end_of_turn_is_neither_text_nor_output() -> None:
    """The token that ends the answer is in no piece and is not counted."""
    assert play([*b"hi", STOP_ID]) == [
        OutputPiece("h", (104,)),
        OutputPiece("i", (105,)),
        OutputPiece("", (), "stop"),
    ]


def test_ignoring_the_end_of_turn_counts_it_but_never_shows_it() -> None:
    """With `ignore_eos` the token is output like any other, without text."""
    assert play([104, STOP_ID, 105], ignore_eos=True, max_tokens=3) == [
        OutputPiece("h", (104,)),
        OutputPiece("i", (STOP_ID, 105), "length"),
    ]


@pytest.mark.parametrize("at_limit", ["length", "context"])
def test_the_limit_ends_the_answer(at_limit: str) -> None:
    """The token that reaches `max_tokens` is still shown, with the reason that was given for the
    limit."""
    assert play([*b"abc"], max_tokens=2, at_limit=at_limit)[-1] == OutputPiece("b", (98,), at_limit)  # type: ignore[arg-type]


def test_a_stop_string_on_the_last_token_wins_over_the_limit() -> None:
    """A client that asked for a stop string learns that it was there."""
    assert play([*b"ab."], stop=(".",), max_tokens=3)[-1] == OutputPiece(
        "", (46,), "stop_sequence", "."
    )


def test_text_held_back_for_a_stop_string_is_shown_at_the_end() -> None:
    """What began a stop string and didn't become one is part of the answer."""
    assert [piece.text for piece in play([*b"abE", STOP_ID], stop=("END",))] == ["a", "b", "E"]


def test_characters_come_whole() -> None:
    """Korean and emoji, three and four tokens each: a piece per character, with all its tokens."""
    pieces = play([*"한🎉".encode(), STOP_ID])
    assert [(piece.text, len(piece.token_ids)) for piece in pieces] == [
        ("한", 3),
        ("🎉", 4),
        ("", 0),
    ]


def test_a_stop_string_may_end_inside_a_long_piece() -> None:
    """A Korean stop string across token borders: nothing of it is shown."""
    pieces = play([*"좋아요 그만 더".encode()], stop=("그만",))
    assert ("".join(piece.text for piece in pieces), pieces[-1].stop) == ("좋아요 ", "그만")


def test_an_unfinished_character_at_the_limit_is_left_out() -> None:
    """An answer cut inside a character ends before it; the token still counts."""
    assert play([*"é".encode()], max_tokens=1) == [OutputPiece("", (0xC3,), "length")]


# Calls, reasoning and who carries which token -----------------------------------------------------

HERMES_SPEECH = OutputSyntax(HERMES, frozenset({"f"}), THINK)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "END"}}\n</tool_call>'


def told(pieces: Iterable[OutputPiece]) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, text, and calls as name and arguments. A call's name comes once, with its first
    piece."""
    thoughts, text, calls = "", "", []
    for piece in pieces:
        if piece.call is None:
            thoughts, text = (
                (thoughts + piece.text, text) if piece.thinking else (thoughts, text + piece.text)
            )
            continue
        assert piece.text == ""
        if piece.call.name is not None:
            assert piece.call.index == len(calls)
            calls.append((piece.call.name, ""))
        name, arguments = calls[piece.call.index]
        calls[piece.call.index] = (name, arguments + piece.call.arguments)
    return thoughts, text, calls


def test_a_whole_answer() -> None:
    """Reasoning, text and calls are told apart; the reason stays `stop`, as calls do not end an
    answer."""
    pieces = play(
        [*f"<think>\nhm\n</think>\n\nI look.\n{CALL}\n{CALL}".encode(), STOP_ID],
        syntax=HERMES_SPEECH,
        max_tokens=999,
    )
    assert told(pieces) == ("hm", "I look.", [("f", '{"a": "END"}'), ("f", '{"a": "END"}')])
    assert pieces[-1].finish == "stop"


@pytest.mark.parametrize(
    ("syntax", "choice"),
    [(OutputSyntax(), ToolChoice()), (OutputSyntax(HERMES, frozenset({"f"})), ToolChoice("none"))],
)
def test_what_looks_like_a_call_is_text_where_none_is_wanted(
    syntax: OutputSyntax, choice: ToolChoice
) -> None:
    """Without tools, and with `tool_choice: none`."""
    pieces = play([*CALL.encode(), STOP_ID], syntax=syntax, tool_choice=choice)
    assert told(pieces) == ("", CALL, [])


def test_a_call_of_a_tool_that_was_not_chosen_is_text() -> None:
    """Of two tools offered only the one that may be called is; its own calls go on being calls."""
    syntax = OutputSyntax(HERMES, frozenset({"f", "g"}))
    others = CALL.replace('"f"', '"g"')
    played = f"{CALL}\n{others}"
    pieces = play(
        [*played.encode(), STOP_ID],
        syntax=syntax,
        tool_choice=ToolChoice(names=("f",)),
        max_tokens=999,
    )
    _, text, calls = told(pieces)
    assert calls == [("f", '{"a": "END"}')]
    assert '{"name": "g", "arguments": {"a": "END"}}' in text


def test_stop_strings_are_sought_in_visible_text_alone() -> None:
    """One that stands in reasoning or in a call ends nothing; what may be its beginning is shown
    before a call."""
    text = f"<think>END</think>a E{CALL}b END c"
    pieces = play([*text.encode()], syntax=HERMES_SPEECH, stop=("END",), max_tokens=999)
    assert told(pieces) == ("END", "a Eb ", [("f", '{"a": "END"}')])
    assert (pieces[-1].finish, pieces[-1].stop) == ("stop_sequence", "END")


def test_a_second_call_ends_an_answer_that_may_have_one() -> None:
    """What leads to it is counted and not shown."""
    pieces = play(
        [*f"{CALL}\n{CALL}".encode()],
        syntax=HERMES_SPEECH,
        tool_choice=ToolChoice(parallel=False),
        max_tokens=999,
    )
    assert told(pieces) == ("", "", [("f", '{"a": "END"}')])
    assert pieces[-1].finish == "stop"


@pytest.mark.parametrize("cut", range(1, len(CALL)))
def test_a_call_cut_by_the_limit(cut: int) -> None:
    """Nothing of its syntax is shown; arguments that were begun stay a beginning; every token is in
    a piece (see `play`)."""
    pieces = play([*CALL.encode()], syntax=HERMES_SPEECH, max_tokens=cut)
    _, text, calls = told(pieces)
    assert text == ""
    assert all('{"a": "END"}'.startswith(arguments) for _, arguments in calls)
    assert pieces[-1].finish == "length"


def test_what_ends_in_the_middle_of_nothing_is_text() -> None:
    """A model that ends its turn inside a tag meant the characters."""
    assert told(play([*b"a <tool", STOP_ID], syntax=HERMES_SPEECH)) == ("", "a <tool", [])


def test_tokens_left_over_at_the_end_belong_to_what_was_last() -> None:
    """The syntax behind a call is the call's, so that no empty text follows it."""
    pieces = play([*CALL.encode(), STOP_ID], syntax=HERMES_SPEECH, max_tokens=999)
    assert pieces[-1].call == CallPiece(0, None, "")
    assert bytes(pieces[-1].token_ids).decode() == "}\n</tool_call>"


def test_reasoning_that_the_prompt_opened() -> None:
    """The first token is reasoning already, also in front of a form, unless the answer has to be a
    call."""
    syntax = OutputSyntax(HERMES, frozenset({"f"}), replace(THINK, begun=True))
    assert told(play([*b"hm</think>a", STOP_ID], syntax=syntax)) == ("hm", "a", [])
    forced = play([*CALL.encode(), STOP_ID], syntax=syntax, tool_choice=ToolChoice("required"))
    assert told(forced) == ("", "", [("f", '{"a": "END"}')])
    schema = play(
        [*b"hm</think>{}", STOP_ID], syntax=syntax, output_format=OutputFormat("json_object")
    )
    assert told(schema) == ("hm", "{}", [])


def test_control_tokens_open_calls_and_never_show() -> None:
    """`[TOOL_CALLS]` is one token that shows as nothing, and means a call all the same; also where
    no call follows."""
    tokenizer = ByteTokenizer(("</s>", "[TOOL_CALLS]", "[ARGS]"), stops=("</s>",))
    syntax = OutputSyntax(MISTRAL_ARGS, frozenset({"f"}))
    ids = tokenizer.encode('a[TOOL_CALLS]f[ARGS]{"x": 1}</s>')
    assert told(play([*ids], syntax=syntax, tokenizer=tokenizer)) == ("", "a", [("f", '{"x": 1}')])
    ids = tokenizer.encode("a[TOOL_CALLS] b</s>")
    assert told(play([*ids], syntax=syntax, tokenizer=tokenizer)) == ("", "a b", [])
    assert told(play([*ids], tokenizer=tokenizer)) == ("", "a b", [])


def test_probabilities_stay_with_their_tokens() -> None:
    """One per token, in order, in the piece that has the token, with the bytes that the token
    stands for."""
    answer = OutputParser(
        TOKENIZER, Sampling(max_tokens=99), "length", OutputSyntax(HERMES, frozenset({"f"}))
    )
    pieces: list[OutputPiece] = []
    ids = [*f"é\n{CALL}".encode()]
    for token_id in ids:
        rival = TokenLogprob(STOP_ID, -2.0)
        pieces += answer.push(token_id, TokenLogprobs(TokenLogprob(token_id, -0.5), (rival,)))
    pieces += answer.push(STOP_ID, TokenLogprobs(TokenLogprob(STOP_ID, -0.1)))
    assert [token_id for piece in pieces for token_id in piece.token_ids] == ids
    for piece in pieces:
        assert tuple(one.chosen.token_id for one in piece.logprobs) == piece.token_ids
        assert b"".join(one.chosen.text for one in piece.logprobs) == bytes(piece.token_ids)
        assert all(one.top[0].text == b"<|im_end|>" for one in piece.logprobs)


@given(st.data(), st.sampled_from(list(FORMATS.values())), st.booleans())
def test_tokens_of_any_size(data: st.DataObject, form: CallFormat, cut: bool) -> None:
    """However the model's vocabulary divides the answer, it says the same, and every token is in
    exactly one piece."""
    text = "Well.\n" + form.text([("f", '{"a": "é</tool_call>"}'), ("f", "{}")])
    borders = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=8))})
    parts = [text[begin:end] for begin, end in itertools.pairwise(borders)]
    tokenizer = ByteTokenizer(("</s>",), dict.fromkeys(parts), stops=("</s>",))
    ids = [tokenizer.added_tokens[part] for part in parts]
    num = data.draw(st.integers(1, len(ids))) if cut else len(ids)
    pieces = play(
        [*ids[:num], *([] if cut else [256])],
        syntax=OutputSyntax(form, frozenset({"f"})),
        tokenizer=tokenizer,
        max_tokens=num + (not cut),
    )
    assert [token_id for piece in pieces for token_id in piece.token_ids] == ids[:num]
    _, said, calls = told(pieces)
    assert "Well.".startswith(said.rstrip("\n")) if cut else said == "Well."
    expected = [("f", '{"a": "é</tool_call>"}'), ("f", "{}")]
    assert all(
        name == "f" and whole[1].startswith(arguments)
        for (name, arguments), whole in zip(calls, expected, strict=False)
    )
    assert cut or calls == expected
