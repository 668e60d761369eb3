"""OpenAI's caching rules through its own SDK on the real engine, by both APIs: what is read,
written and told."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.conformance.openai.asking import BREAK, EXPLICIT, Asker, filler, said, text, tool, user

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

HALF_HOUR, HALF_DAY = 1800.0, 43200.0


def marked(num: int, *marks: int, ttl: str | None = None) -> list[dict[str, Any]]:
    """`num` parts long enough to be cached each, counted from 1, those in `marks` marked."""
    mark = BREAK | ({"ttl": ttl} if ttl else {})
    return [text(filler(7), mark if i in marks else None) for i in range(1, num + 1)]


def with_marks(parts: list[dict[str, Any]], *marks: int) -> list[dict[str, Any]]:
    """The same texts with other marks."""
    return [text(part["text"], BREAK if i in marks else None) for i, part in enumerate(parts, 1)]


# What is written and read without a marker --------------------------------------------------------


def test_a_conversation_caches_itself(ask: Asker) -> None:
    """The end of the last user message is written; the next turn reads exactly that, and writes
    what is new."""
    turns = [said("developer", "Be brief."), user(filler())]
    first = ask(*turns)
    assert (first.read, first.written > 64) == (0, True)
    again = ask(*turns)
    assert (again.read, again.written) == (first.written, 0)
    more = ask(*turns, said("assistant", "Yes."), user("And then?"))
    assert more.read == first.written
    assert more.written > 0


def test_boundaries_are_exact(ask: Asker) -> None:
    """Reads end where the message ends, at no multiple of anything."""
    sizes = []
    for num_lines in (7, 8, 9):
        turns = [user(filler(num_lines))]
        written = ask(*turns).written
        assert ask(*turns).read == written
        sizes.append(written)
    assert any(size % 16 for size in sizes)
    assert any(size % 128 for size in sizes)


def test_a_message_that_grows_is_not_read(ask: Asker) -> None:
    """Its end was cached; inside a longer message there is no boundary."""
    words = filler()
    assert ask(user(words)).written > 64
    grown = ask(user(words + "\nOne more line."))
    assert grown.read == 0
    assert grown.written > 64


def test_the_end_of_the_developer_messages_is_a_boundary(ask: Asker) -> None:
    """It is looked up, and written by a request that ends there."""
    developer = said("developer", filler())
    start = ask(developer).written
    assert start > 64
    assert ask(developer, user("Which?")).read == start


def test_short_prompts_are_not_cached(ask: Asker) -> None:
    """Under the minimum nothing is read or written, silently."""
    for _ in range(2):
        told = ask(user("Hello there."))
        assert (told.read, told.written) == (0, 0)


# Breakpoints --------------------------------------------------------------------------------------


def test_implicit_mode_writes_the_latest_three_marks_too(ask: Asker) -> None:
    """Of four marks before the implicit breakpoint the first is not written."""
    parts = marked(5, 1, 2, 3, 4)
    assert ask(user(*parts)).written > 300
    assert ask(user(*with_marks(parts, 1)[:1]), prompt_cache_options=EXPLICIT).read == 0
    assert ask(user(*with_marks(parts, 2)[:2]), prompt_cache_options=EXPLICIT).read > 128


def test_explicit_mode_writes_the_latest_four_marks(ask: Asker) -> None:
    """And nothing at the end of the message."""
    parts = marked(6, 1, 2, 3, 4, 5)
    told = ask(user(*parts), prompt_cache_options=EXPLICIT)
    assert told.prompt - told.written > 64
    assert ask(user(*with_marks(parts, 1)[:1]), prompt_cache_options=EXPLICIT).read == 0
    assert ask(user(*with_marks(parts, 2)[:2]), prompt_cache_options=EXPLICIT).read > 128


def test_explicit_mode_without_a_mark_neither_reads_nor_writes(ask: Asker) -> None:
    """Not even what is cached, and marked it is read."""
    parts = marked(2, 1)
    written = ask(user(*parts), prompt_cache_options=EXPLICIT).written
    unmarked = ask(user(*with_marks(parts)), prompt_cache_options=EXPLICIT)
    assert (unmarked.read, unmarked.written) == (0, 0)
    assert ask(user(*parts), prompt_cache_options=EXPLICIT).read == written


def test_explicit_mode_does_not_see_implicit_boundaries_unless_marked(ask: Asker) -> None:
    """The end of an earlier message is read where the request marks it."""
    words = filler()
    written = ask(user(words)).written
    turns = [said("assistant", "Yes."), user(text("Go on.", BREAK))]
    assert ask(user(words), *turns, prompt_cache_options=EXPLICIT).read == 0
    assert ask(user(text(words, BREAK)), *turns, prompt_cache_options=EXPLICIT).read >= written


# Lifetimes ----------------------------------------------------------------------------------------


def test_ttls_and_what_they_are_told_as(responses: Asker) -> None:
    """A mark's own TTL, the request's for the others; the Responses API tells the tokens of
    each."""
    told = responses(user(text(filler(), BREAK | {"ttl": "12h"}), filler()))
    assert told.by_ttl["12h"] > 64
    assert told.by_ttl["30m"] > 64
    told = responses(user(filler()), prompt_cache_options={"ttl": "12h"})
    assert told.by_ttl == {"30m": 0, "12h": told.written}


def test_an_entry_lives_its_time_and_reads_refresh_it(ask: Asker) -> None:
    """From the start of the request that wrote it or last read it; afterwards it is gone, and a 12h
    entry is not."""
    short, long = user(filler()), user(filler())
    kept = {"prompt_cache_options": {"ttl": "12h"}}
    written, written_long = ask(short).written, ask(long, **kept).written
    ask.served.advance(HALF_HOUR - 1)
    assert ask(short).read == written
    ask.served.advance(HALF_HOUR - 1)
    assert ask(short).read == written
    ask.served.advance(HALF_HOUR + 1)
    expired = ask(short)
    assert (expired.read, expired.written) == (0, written)
    assert expired.headers["pcg-miss-reason"].startswith("expired")
    assert ask(long, **kept).read == written_long
    ask.served.advance(HALF_DAY + 1)
    assert ask(long, **kept).read == 0


# What separates caches ----------------------------------------------------------------------------


def test_cache_keys_do_not_share_entries(ask: Asker) -> None:
    """Another key bills as if nothing were there, though the work is skipped; the first key still
    reads."""
    turn = user(filler())
    written = ask(turn, prompt_cache_key="a").written
    other = ask(turn, prompt_cache_key="b")
    assert (other.read, other.written) == (0, written)
    assert int(other.headers["pcg-prefill-skipped-tokens"]) > 0
    assert ask(turn, prompt_cache_key="a").read == written


def test_what_changes_the_prefix(ask: Asker) -> None:
    """Tools and their order, parallel calls; not tool_choice."""
    turn, tools = user(filler()), [tool("f"), tool("g")]
    written = ask(turn, tools=tools).written
    assert ask(turn, tools=tools, tool_choice="none").read == written
    assert ask(turn, tools=tools, parallel_tool_calls=False).read == 0
    assert ask(turn, tools=tools[::-1]).read == 0
    assert ask(turn, tools=tools[:1]).read == 0
    assert ask(turn, tools=tools).read == written


def test_case_17_reasoning_effort_changed_and_changed_back(ask: Asker) -> None:
    """The default said or left out is one cache; another effort has its own; going back reads
    again."""
    turn = user(filler())
    written = ask(turn).written
    assert ask(turn, reasoning_effort="medium").read == written
    assert ask(turn, reasoning_effort="low").read == 0
    assert ask(turn, reasoning_effort="low").read == written
    assert ask(turn).read == written


def test_tenants_do_not_share(ask: Asker) -> None:
    """Neither entries nor work, but for the template's first few tokens, which every prompt of a
    tenant begins with."""
    turn = user(filler())
    written = ask(turn).written
    other = ask(turn, key="key-two")
    assert (other.read, other.written) == (0, written)
    assert int(other.headers["pcg-prefill-skipped-tokens"]) < 16


# Classes of models --------------------------------------------------------------------------------


def test_earlier_models_read_in_steps_and_write_for_free(chat: Asker) -> None:
    """gpt-4o: multiples of 128 from 1,024 tokens on, any prefix, nothing is ever told as
    written."""
    words = filler(90)
    cold = chat(user(words), model="gpt-4o")
    assert (cold.read, cold.written) == (0, 0)
    assert cold.prompt > 1024
    warm = chat(user(words + "\nAnd now?"), model="gpt-4o")
    assert warm.read >= 1024
    assert (warm.read % 128, warm.written) == (0, 0)
    assert warm.read > cold.prompt - 256
    short = user(filler(60))
    assert [chat(short, model="gpt-4o").read for _ in range(2)] == [0, 0]


def test_an_age_keeps_earlier_models_from_reading_what_has_none(ask: Asker) -> None:
    """gpt-4o with `Cache-Control: max-age`: a prefix is skipped and not read, as nobody knows how
    old it is."""
    turn = user(filler(90))
    ask(turn, model="gpt-4o")
    told = ask(turn, model="gpt-4o", extra_headers={"Cache-Control": "max-age=3600"})
    assert (told.read, told.written) == (0, 0)
    assert int(told.headers["pcg-prefill-skipped-tokens"]) > 1024
    assert ask(turn, model="gpt-4o").read >= 1024


def test_newer_models_have_a_minimum_of_1024_tokens(chat: Asker) -> None:
    """gpt-5.6: exact boundaries from there on."""
    short = chat(user(filler(60)), model="gpt-5.6")
    assert short.prompt < 1024
    assert (short.read, short.written) == (0, 0)
    turn = user(filler(90))
    written = chat(turn, model="gpt-5.6").written
    assert written >= 1024
    assert chat(turn, model="gpt-5.6").read == written


# The Responses API's own --------------------------------------------------------------------------


def test_prewarming(responses: Asker) -> None:
    """Nothing is generated; the next request reads what it wrote."""
    turn = user(filler())
    warmed = responses(turn, prompt_cache_options={"prewarm": True})
    assert (warmed.answer.status, warmed.answer.output, warmed.answer.usage.output_tokens) == (
        "completed",
        [],
        0,
    )
    assert responses(turn).read == warmed.written > 64


def test_a_conversation_by_reference_reads_its_prefix(responses: Asker) -> None:
    """`previous_response_id`: the second turn reads the first's prefix, as if its items had been
    sent again."""
    first = responses(user(filler()))
    second = responses(user("And then?"), previous_response_id=first.answer.id)
    assert second.read == first.written
    assert second.prompt > first.prompt


def test_diagnostics(responses: Asker) -> None:
    """A hit, and what changed where there is none."""
    turn = user(filler())
    first = responses(turn)

    def told(*messages: dict[str, Any], **more: Any) -> Any:
        options = {"comparison_response_id": first.answer.id}
        return responses(
            *messages, prompt_cache_options=options, **more
        ).answer.prompt_cache_diagnostics

    assert told(turn).type == "cache_hit"
    assert told(turn, tools=[tool("f")]).reason == "tools_changed"
    changed = told(user(filler()))
    assert (changed.type, changed.reason) == ("cache_miss", "input_changed")
    assert changed.cache_missed_tokens > 64


def test_counting_is_what_is_billed(responses: Asker, gpt: openai.OpenAI) -> None:
    """`input_tokens.count` of a body, and the bill of the same body."""
    words = filler()
    counted = gpt.responses.input_tokens.count(
        model="smollm2-135m-instruct", input=words, instructions="Be kind."
    )
    assert responses(user(words), instructions="Be kind.").prompt == counted.input_tokens
