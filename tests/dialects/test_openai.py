"""OpenAI's rules: breakpoints where writes are billed, any prefix in steps where they are not."""

from __future__ import annotations

from typing import Any

import pytest

from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart, ToolResultPart
from engine.types import Boundary, CachePlan, CacheReport, Hit, Sampling
from gateway.request import Directives, Request
from policies.pricing import Usage
from tests.fakes import dialects
from tests.fakes.rules import EARLIER_OPENAI, OPENAI, rules

HALF_HOUR, HALF_DAY = 1800.0, 43200.0


def text(ttl_s: float | None = None) -> TextPart:
    return TextPart("x", CacheMark(ttl_s) if ttl_s else None)


def user(*parts: TextPart) -> Message:
    return Message("user", parts or (text(),))


ASSISTANT = Message("assistant", (text(),))
TOOL = Message("tool", (ToolResultPart("c", "r"),))


def plan(*messages: Message, system: int = 0, base: Any = OPENAI, **parameters: Any) -> CachePlan:
    request = Request(
        id="r",
        wire="openai",
        model="gpt-test",
        sampling=Sampling(max_tokens=1),
        prompt=Prompt(messages=messages, system=(text(),) * system),
        parameters=parameters,
    )
    return dialects.plan(request, base)


def written(plan: CachePlan) -> list[tuple[str, float]]:
    return [(str(entry.position), entry.ttl_s) for entry in plan.writable]


def read(plan: CachePlan) -> list[str]:
    return [str(position) for position in plan.readable]


def test_implicit_breakpoint_is_the_latest_eligible_message() -> None:
    """The end of the last user message; assistant turns after it do not count."""
    assert written(plan(user(), ASSISTANT, user(text(), text()), ASSISTANT)) == [
        ("messages/2/1", HALF_HOUR)
    ]


def test_eligible_messages() -> None:
    """The initial developer messages, user messages, the last of a run of tool outputs; never a
    later system message."""
    found = plan(user(), ASSISTANT, TOOL, TOOL, Message("system", (text(),)), system=2)
    assert read(found) == ["messages/3/0", "messages/0/0", "system/1"]
    assert written(found) == [("messages/3/0", HALF_HOUR)]


def test_only_instructions() -> None:
    """A prompt that is nothing but developer messages is cached to their end."""
    assert written(plan(system=1)) == [("system/0", HALF_HOUR)]


def test_implicit_mode_adds_the_latest_three_marks() -> None:
    """One implicit and up to three explicit breakpoints are written, in wire order; all marks are
    looked up."""
    found = plan(*[user(text(HALF_DAY)) for _ in range(5)], user())
    assert written(found) == [
        ("messages/2/0", HALF_DAY),
        ("messages/3/0", HALF_DAY),
        ("messages/4/0", HALF_DAY),
        ("messages/5/0", HALF_HOUR),
    ]
    assert read(found) == [f"messages/{i}/0" for i in (5, 4, 3, 2, 1, 0)]


def test_a_mark_on_the_implicit_breakpoint_names_its_ttl() -> None:
    """They are one breakpoint, and three others remain."""
    found = plan(*[user(text(HALF_HOUR)) for _ in range(4)], user(text(HALF_DAY)))
    assert written(found) == [
        *((f"messages/{i}/0", HALF_HOUR) for i in (1, 2, 3)),
        ("messages/4/0", HALF_DAY),
    ]


def test_request_ttl_is_the_implicit_breakpoints() -> None:
    """`prompt_cache_options.ttl` reaches the breakpoint nobody marked."""
    assert written(plan(user(), cache_ttl_s=HALF_DAY)) == [("messages/0/0", HALF_DAY)]


def test_explicit_mode() -> None:
    """Only marks, the latest four written; what an implicit request left behind is not looked
    up."""
    marked = [user(text(HALF_HOUR)) for _ in range(5)]
    found = plan(*marked, ASSISTANT, user(), cache_mode="explicit", system=1)
    assert written(found) == [(f"messages/{i}/0", HALF_HOUR) for i in (1, 2, 3, 4)]
    assert read(found) == [f"messages/{i}/0" for i in (4, 3, 2, 1, 0)]


def test_explicit_mode_without_marks_neither_reads_nor_writes() -> None:
    """And no prefix counts as read either."""
    for base in (OPENAI, EARLIER_OPENAI):
        found = plan(user(), base=base, cache_mode="explicit")
        assert (found.readable, found.writable, found.any_prefix) == ((), (), False)


def test_automatic_caching_turned_off_by_policy() -> None:
    """Then only marks count, as in explicit mode."""
    found = plan(user(text(HALF_HOUR)), user(), base=rules(OPENAI, automatic=False))
    assert (read(found), written(found)) == (["messages/0/0"], [("messages/0/0", HALF_HOUR)])


def test_how_far_back_is_looked() -> None:
    """Twenty earlier message ends and the end of the instructions; the latest eighty marks, however
    far back."""
    assert read(plan(*[user() for _ in range(40)], system=1)) == [
        *(f"messages/{i}/0" for i in range(39, 18, -1)),
        "system/0",
    ]
    for base in (OPENAI, EARLIER_OPENAI):
        marked = plan(
            *[user(text(HALF_HOUR)) for _ in range(100)], base=base, cache_mode="explicit"
        )
        assert read(marked) == [f"messages/{i}/0" for i in range(99, 19, -1)]


def test_earlier_models_read_any_prefix() -> None:
    """No breakpoints of their own; a mark still keeps its prefix alive, for free."""
    found = plan(user(text(HALF_DAY)), ASSISTANT, user(), base=EARLIER_OPENAI)
    assert (found.any_prefix, written(found)) == (True, [("messages/0/0", HALF_DAY)])


@pytest.mark.parametrize(
    ("skipped", "billed"),
    [(0, 0), (1023, 0), (1024, 1024), (1151, 1024), (1152, 1152), (4095, 3968)],
)
def test_earlier_models_bill_in_steps(skipped: int, billed: int) -> None:
    """Steps of 128 from 1,024 on, and no writes though a boundary was made."""
    report = CacheReport(
        5000, skipped, boundaries=(Boundary(Position("messages", 0), 4900, HALF_HOUR, False),)
    )
    assert dialects.usage(report, EARLIER_OPENAI, CachePlan(any_prefix=True), 3) == Usage(
        5000 - billed, billed, output=3
    )


@pytest.mark.parametrize(
    ("directive", "hit", "billed"),
    [
        ({"directives": Directives(read=False)}, None, 0),
        ({"directives": Directives(max_age_s=60.0)}, None, 0),
        ({"directives": Directives(max_age_s=60.0)}, 1200, 1152),
        ({"directives": Directives(max_age_s=60.0)}, 1000, 0),
        ({}, None, 2048),
    ],
    ids=["no-cache", "max-age", "a young entry", "a young entry under the minimum", "no directive"],
)
@pytest.mark.parametrize(
    "base", [EARLIER_OPENAI, rules(EARLIER_OPENAI, preset="qwen")], ids=["openai", "qwen"]
)
def test_what_may_not_be_read_is_not_billed_as_read(
    base: Any, directive: dict[str, Any], hit: int | None, billed: int
) -> None:
    """Of a prefix without an entry nobody knows the age: skipped or not, `max-age` reads entries
    alone, in the same steps."""
    request = Request(
        id="r",
        wire="openai",
        model="m",
        prompt=Prompt(messages=(user(),)),
        sampling=Sampling(max_tokens=1),
        **directive,
    )
    found = None if hit is None else Hit(Position("messages", 0), hit, HALF_HOUR)
    usage = dialects.usage(CacheReport(5000, 2100, found), base, dialects.plan(request, base), 0)
    assert usage == Usage(5000 - billed, billed)


def test_measured_mode_knows_no_steps() -> None:
    """What was skipped is what is read."""
    report = CacheReport(5000, 1100)
    assert (
        dialects.usage(
            report, rules(EARLIER_OPENAI, usage_mode="measured"), CachePlan(any_prefix=True), 0
        ).cache_read
        == 1100
    )


def test_exact_boundaries_and_billed_writes() -> None:
    """Reads end at the entry, not at what was skipped beyond it; writes are billed by class, the
    longer first."""
    report = CacheReport(
        5000,
        skipped=2100,
        hit=Hit(Position("messages", 0), 2001, HALF_HOUR),
        boundaries=(
            Boundary(Position("messages", 0), 2001, HALF_HOUR, True),
            Boundary(Position("messages", 1), 3000, HALF_DAY, False),
            Boundary(Position("messages", 2), 4000, HALF_HOUR, False),
        ),
    )
    usage = dialects.usage(report, OPENAI, CachePlan(), 0)
    assert usage == Usage(1000, 2001, ((HALF_DAY, 999), (HALF_HOUR, 1000)))


def test_a_short_class_before_a_long_one_is_paid_once() -> None:
    """The long class covers the prefix too: 30m at 1,000 and 12h at 3,000 write 3,000 tokens for
    half a day."""
    report = CacheReport(
        5000,
        boundaries=(
            Boundary(Position("messages", 0), 1000, HALF_HOUR, False),
            Boundary(Position("messages", 1), 3000, HALF_DAY, False),
        ),
    )
    assert dialects.usage(report, OPENAI, CachePlan(), 0) == Usage(2000, 0, ((HALF_DAY, 3000),))


def test_geminis_implicit_caching_is_the_earlier_class() -> None:
    """Any prefix, free writes."""
    gemini = rules(EARLIER_OPENAI, preset="gemini", read_step=1, min_tokens=2048)
    assert plan(user(), base=gemini).any_prefix
    assert dialects.usage(CacheReport(5000, 2049), gemini, CachePlan(any_prefix=True), 0) == Usage(
        2951, 2049
    )


# What separates caches, and what keeps them longer ------------------------------------------------


@pytest.mark.parametrize(
    "parameter",
    [
        {"effort": "low"},
        {"verbosity": "low"},
        {"context_management": "digest"},
        {"prompt_cache_key": "k"},
        {"output_format": ["json_object", ""]},
        {"parallel_tool_calls": False},
    ],
)
def test_settings_with_a_cache_of_their_own(parameter: dict[str, Any]) -> None:
    """Each salts every level alike; the same setting gives the same salt again."""
    salted = plan(user(), **parameter).salts
    assert set(salted) == {"tools", "system", "messages"}
    assert len(set(salted.values())) == 1
    assert salted == plan(user(), **parameter).salts != plan(user()).salts


@pytest.mark.parametrize("choice", ["none", "any", {"tool": "f"}])
def test_tool_choice_changes_no_cache(choice: Any) -> None:
    """Documented: it does not change the prefix."""
    assert plan(user(), tool_choice=choice).salts == {}


def test_retention_keeps_prefixes_of_earlier_models() -> None:
    """24 hours where prefixes are kept without an entry; newer models have TTLs instead, and 0
    stays 0."""
    assert plan(user(), base=EARLIER_OPENAI, retention_s=86400.0).unmarked_ttl_s == 86400.0
    assert plan(user(), base=EARLIER_OPENAI).unmarked_ttl_s == EARLIER_OPENAI.caching.unmarked_ttl
    assert plan(user(), retention_s=86400.0).unmarked_ttl_s == OPENAI.caching.unmarked_ttl
    assert (
        plan(
            user(), base=rules(EARLIER_OPENAI, unmarked_ttl=0.0), retention_s=86400.0
        ).unmarked_ttl_s
        == 0
    )


@pytest.mark.parametrize(("message_ends", "first"), [(0, 9), (3, 6), (20, 0)])
def test_how_many_message_ends_are_looked_up(message_ends: int, first: int) -> None:
    """The policy's number of ends before the automatic breakpoint, and that one."""
    found = plan(*[user() for _ in range(10)], base=rules(OPENAI, message_ends=message_ends))
    assert read(found) == [f"messages/{i}/0" for i in range(9, first - 1, -1)]
