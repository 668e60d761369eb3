"""Usage of a stream: the events that report it, put together by their meaning."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.anthropic import reported as anthropic
from gateway.wire.collected import CollectedUsage, drop_older
from gateway.wire.openai import reported as openai
from gateway.wire.reported import ReportedUsage, UsageFormat

CLAUDE, CLAUDE_INCLUSIVE, GPT = anthropic.EXCLUSIVE, anthropic.INCLUSIVE, openai.USAGE


def split(short: int, hour: int = 0) -> dict[str, int]:
    return {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": hour}


def claude(input: int, read: int | None, written: int | None, **more: Any) -> dict[str, Any]:
    return {
        "input_tokens": input,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
    } | more


def gpt(prompt: int, output: int, cached: int | None = None, **details: Any) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached} | details
    return usage


def written_12h(tokens: int) -> dict[str, Any]:
    return {
        "cache_write_tokens": tokens,
        "cache_write_tokens_details": {"ttl_12h_tokens": tokens},
    }


CASES: dict[str, tuple[UsageFormat, list[dict[str, Any]], ReportedUsage]] = {
    "written at the start, read at the end (litellm#40736)": (
        CLAUDE,
        [
            claude(14, 0, 35_203, cache_creation=split(35_203)),
            claude(14, 35_203, 0, output_tokens=3),
        ],
        ReportedUsage(14, 35_203, {}, 0, 3),
    ),
    "the same, and the end says nothing of writes": (
        CLAUDE,
        [claude(14, 0, 35_203, cache_creation=split(35_203)), claude(14, 35_203, None)],
        ReportedUsage(14, 35_203, {}, 0, 0),
    ),
    "all input at the start, read at the end": (
        CLAUDE,
        [claude(35_217, None, None), claude(14, 35_203, 0)],
        ReportedUsage(14, 35_203, {}, 0, 0),
    ),
    "the end repeats the total, and its split stands": (
        CLAUDE,
        [claude(4, 50, 30, cache_creation=split(10, 20)), claude(4, 50, 30, output_tokens=9)],
        ReportedUsage(4, 50, {"5m": 10, "1h": 20}, 0, 9),
    ),
    "server tools make the prompt grow": (
        CLAUDE,
        [
            claude(2_679, 0, 100, cache_creation=split(0, 100)),
            claude(10_682, 0, 600, server_tool_use={"web_search_requests": 1}, output_tokens=510),
        ],
        ReportedUsage(10_682, 0, {}, 600, 510),
    ),
    "server tools make the written tokens grow, reported alone": (
        CLAUDE,
        [
            claude(2_679, 0, 0, cache_creation=split(0)),
            {"cache_creation_input_tokens": 600, "output_tokens": 5},
        ],
        ReportedUsage(2_679, 0, {}, 600, 5),
    ),
    "a total that is older than its split": (
        CLAUDE,
        [claude(4, 0, 9), {"cache_creation": split(5, 25)}],
        ReportedUsage(4, 0, {"5m": 5, "1h": 25}, 0, 0),
    ),
    "only the total at the end": (
        CLAUDE,
        [claude(4, 50, 30), {"input_tokens": 4, "output_tokens": 9}],
        ReportedUsage(4, 50, {}, 30, 9),
    ),
    "nothing but zeros at the end": (
        CLAUDE,
        [claude(14, 50, 30), claude(0, 0, 0, output_tokens=9)],
        ReportedUsage(14, 50, {}, 30, 9),
    ),
    "nothing but zeros at the start": (
        CLAUDE,
        [claude(0, 0, 0, cache_creation=split(0)), claude(14, 50, 30)],
        ReportedUsage(14, 50, {}, 30, 0),
    ),
    "an end that does not add up": (
        CLAUDE,
        [claude(14, 50, 30), claude(-1, 50, 30, output_tokens=9)],
        ReportedUsage(14, 50, {}, 30, 9),
    ),
    "a start that does not add up": (
        CLAUDE_INCLUSIVE,
        [claude(14, 5_000, 0), claude(5_014, 5_000, 0)],
        ReportedUsage(14, 5_000, {}, 0, 0),
    ),
    "neither adds up": (
        CLAUDE_INCLUSIVE,
        [claude(14, 5_000, 0), claude(15, 5_001, 0)],
        ReportedUsage(0, 5_001, {}, 0, 0, anomaly=True),
    ),
    "compactions at the end": (
        CLAUDE,
        [
            claude(4, 50, 0),
            {
                "output_tokens": 1,
                "iterations": [{"type": "compaction", "input_tokens": 9, "output_tokens": 2}],
            },
        ],
        ReportedUsage(13, 50, {}, 0, 3),
    ),
    "chat: written in one chunk, read in the last": (
        GPT,
        [
            gpt(100, 1, 0, **written_12h(90)),
            gpt(100, 5, 90),
        ],
        ReportedUsage(10, 90, {}, 0, 5),
    ),
    "chat: usage in every chunk": (
        GPT,
        [gpt(100, n, 64) | {"total_tokens": 100 + n} for n in range(5)],
        ReportedUsage(36, 64, {}, 0, 4),
    ),
    "chat: a last chunk without details": (
        GPT,
        [gpt(100, 1, 64), gpt(100, 5)],
        ReportedUsage(36, 64, {}, 0, 5),
    ),
    "chat: a last prompt too short for the older details": (
        GPT,
        [gpt(100, 1, 64), gpt(40, 5)],
        ReportedUsage(40, None, {}, 0, 5),
    ),
    "chat: a total that grew past its split": (
        GPT,
        [
            gpt(100, 1, 0, **written_12h(40)),
            {"prompt_tokens_details": {"cache_write_tokens": 60}},
        ],
        ReportedUsage(40, 0, {}, 60, 1),
    ),
}


@pytest.mark.parametrize(("format", "events", "expected"), CASES.values(), ids=CASES)
def test_the_last_prompt_that_adds_up_wins_whole(
    format: UsageFormat, events: list[dict[str, Any]], expected: ReportedUsage
) -> None:
    """No token of the prompt counts twice, and none that is known is lost."""
    usage = CollectedUsage(format)
    for event in events:
        usage.add(event)
    assert usage.read() == expected


def test_a_format_that_names_no_fields_of_its_prompt_merges() -> None:
    """Field by field, as it always did."""
    usage = CollectedUsage(UsageFormat(CLAUDE.usages, CLAUDE.failed, CLAUDE.read))
    usage.add(claude(14, 0, 90))
    usage.add(claude(14, 90, None))
    assert usage.read() == ReportedUsage(14, 90, {}, 90, 0)


def test_what_is_older_is_dropped_only_where_it_differs() -> None:
    """A split that still makes up its total stays."""
    known = {"total": 9, "parts": {"a": 4, "b": 5}, "in": {"total": 9, "parts": {"a": 9}}}
    drop_older(known, {"total": 9, "in": {"total": 10}}, {"total": "parts"})
    assert known == {"total": 9, "parts": {"a": 4, "b": 5}, "in": {"total": 9}}
