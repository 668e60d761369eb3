"""Usage as upstreams report it: field by field, in every format,
in whatever pieces a stream comes.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.anthropic import reported as anthropic
from gateway.wire.openai import reported as openai
from gateway.wire.reported import ReportedUsage, UsageFormat, merge
from gateway.wire.sse import MAX_EVENT_NBYTES, EventReader

EXCLUSIVE, INCLUSIVE, USAGE = anthropic.EXCLUSIVE, anthropic.INCLUSIVE, openai.USAGE


def usage_of(
    input: int,
    read: int | None,
    writes: dict[str, int] | None = None,
    unclassed: int = 0,
    output: int = 0,
    anomaly: bool = False,
) -> ReportedUsage:
    return ReportedUsage(input, read, writes or {}, unclassed, output, anomaly)


CASES: dict[str, tuple[UsageFormat, dict[str, Any], ReportedUsage | None]] = {
    "anthropic": (
        EXCLUSIVE,
        {
            "input_tokens": 4,
            "cache_read_input_tokens": 2455,
            "cache_creation_input_tokens": 30,
            "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
            "output_tokens": 23,
        },
        usage_of(4, 2455, {"1h": 20, "5m": 10}, output=23),
    ),
    "compactions are beside the sums": (
        EXCLUSIVE,
        {
            "input_tokens": 23_000,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 40,
            "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 1_000,
            "iterations": [
                {
                    "type": "compaction",
                    "input_tokens": 180_000,
                    "cache_read_input_tokens": 700,
                    "cache_creation_input_tokens": 60,
                    "cache_creation": {
                        "ephemeral_5m_input_tokens": 0,
                        "ephemeral_1h_input_tokens": 60,
                    },
                    "output_tokens": 3_500,
                },
                {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
                {"type": "compaction", "input_tokens": 5, "output_tokens": 1},
                "not an entry",
            ],
        },
        usage_of(203_005, 700, {"1h": 60, "5m": 40}, output=4_501),
    ),
    "iterations that are none": (
        EXCLUSIVE,
        {"input_tokens": 4, "iterations": {"type": "compaction"}},
        usage_of(4, None),
    ),
    "no word of a cache": (
        EXCLUSIVE,
        {"input_tokens": 4, "output_tokens": 1},
        usage_of(4, None, output=1),
    ),
    "no word of the prompt": (EXCLUSIVE, {"output_tokens": 1}, None),
    "a total without a split": (
        EXCLUSIVE,
        {"input_tokens": 4, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 9},
        usage_of(4, 0, unclassed=9),
    ),
    "a split without a total": (
        EXCLUSIVE,
        {
            "input_tokens": 4,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 9},
        },
        usage_of(4, 0, {"5m": 9}),
    ),
    "a split that is less than its total": (
        EXCLUSIVE,
        {
            "input_tokens": 4,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 9,
            "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 0},
        },
        usage_of(4, 0, {"5m": 5}, unclassed=4, anomaly=True),
    ),
    "a split that is more than its total": (
        EXCLUSIVE,
        {
            "input_tokens": 4,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 3,
            "cache_creation": {"ephemeral_5m_input_tokens": 5},
        },
        usage_of(4, 0, {"5m": 5}, anomaly=True),
    ),
    "inclusive": (
        INCLUSIVE,
        {"input_tokens": 100, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30},
        usage_of(10, 60, unclassed=30),
    ),
    "inclusive and too little": (
        INCLUSIVE,
        {"input_tokens": 100, "cache_read_input_tokens": 160},
        usage_of(0, 160, anomaly=True),
    ),
    "numbers that are none": (
        EXCLUSIVE,
        {"input_tokens": "4", "cache_read_input_tokens": True, "output_tokens": 1.5},
        None,
    ),
    "numbers as JavaScript writes them": (
        EXCLUSIVE,
        {"input_tokens": 4.0, "output_tokens": 1.0},
        usage_of(4, None, output=1),
    ),
    "chat": (
        USAGE,
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        },
        usage_of(10, 60, unclassed=30, output=5),
    ),
    "responses": (
        USAGE,
        {
            "input_tokens": 100,
            "output_tokens": 5,
            "input_tokens_details": {
                "cached_tokens": 10,
                "cache_write_tokens": 30,
                "cache_write_tokens_details": {"ttl_30m_tokens": 20, "ttl_12h_tokens": 10},
            },
        },
        usage_of(60, 10, {"12h": 10, "30m": 20}, output=5),
    ),
    "embeddings": (USAGE, {"prompt_tokens": 7, "total_tokens": 7}, usage_of(7, None)),
    "reasoning beside the completion": (
        USAGE,
        {
            "prompt_tokens": 10_120,
            "completion_tokens": 1_499,
            "total_tokens": 14_428,
            "prompt_tokens_details": {"cached_tokens": 128},
            "completion_tokens_details": {"reasoning_tokens": 2_809},
        },
        usage_of(9_992, 128, output=4_308),
    ),
    "reasoning within the completion": (
        USAGE,
        {
            "prompt_tokens": 10,
            "completion_tokens": 300,
            "total_tokens": 310,
            "completion_tokens_details": {"reasoning_tokens": 200},
        },
        usage_of(10, None, output=300),
    ),
    "a total of which some is told nowhere": (
        USAGE,
        {"prompt_tokens": 66, "completion_tokens": 6, "total_tokens": 100},
        usage_of(66, None, output=6, anomaly=True),
    ),
    "deepseek": (
        USAGE,
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "prompt_cache_hit_tokens": 64,
            "prompt_cache_miss_tokens": 36,
        },
        usage_of(36, 64, output=5),
    ),
    "kimi": (
        USAGE,
        {"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 40},
        usage_of(60, 40, output=5),
    ),
    "vLLM 0.32, chat": (
        USAGE,
        {
            "prompt_tokens": 2679,
            "total_tokens": 2687,
            "completion_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 2560},
        },
        usage_of(2679, 0, output=8),
    ),
    "qwen": (
        USAGE,
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "prompt_tokens_details": {
                "cached_tokens": 0,
                "cache_creation_input_tokens": 90,
                "cache_creation": {"ephemeral_5m_input_tokens": 90},
            },
        },
        usage_of(10, 0, {"5m": 90}, output=5),
    ),
    "more read than there is": (
        USAGE,
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 128},
        },
        usage_of(0, 128, output=5, anomaly=True),
    ),
    "details that are null": (
        USAGE,
        {"prompt_tokens": 100, "prompt_tokens_details": None},
        usage_of(100, None),
    ),
    "nothing at all": (USAGE, {}, None),
}


@pytest.mark.parametrize(("format", "fields", "expected"), CASES.values(), ids=CASES)
def test_usage_is_read(
    format: UsageFormat, fields: dict[str, Any], expected: ReportedUsage | None
) -> None:
    """Disjoint parts, none negative; unknown is None; what did not add up is marked."""
    assert format.read(fields) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {"a": None}, {"a": 1}),
        ({"a": 1}, {"a": 0}, {"a": 0}),
        ({"a": 1}, {}, {"a": 1}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 3, "y": None}}, {"a": {"x": 3, "y": 2}}),
        ({"a": 5}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({"a": {"x": 1}}, {"a": 5}, {"a": 5}),
    ],
)
def test_the_last_value_that_is_present_wins(
    old: dict[str, Any], new: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Per field, in nested objects too; null is absent."""
    known = deepcopy(old)
    merge(known, new)
    assert known == expected


@pytest.mark.parametrize(
    ("find", "message", "expected"),
    [
        (EXCLUSIVE.usages, {"type": "message_start", "message": {"usage": {"a": 1}}}, [{"a": 1}]),
        (EXCLUSIVE.usages, {"type": "message_delta", "usage": {"a": 2}}, [{"a": 2}]),
        (EXCLUSIVE.usages, {"message": "a text", "usage": None}, []),
        (USAGE.usages, {"choices": [], "usage": {"a": 1}}, [{"a": 1}]),
        (USAGE.usages, {"type": "response.completed", "response": {"usage": {"a": 1}}}, [{"a": 1}]),
        (USAGE.usages, {"response": 5, "usage": [1]}, []),
    ],
)
def test_where_usage_stands(
    find: Callable[[dict[str, Any]], Any], message: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    """In answers, chunks and events; never anything that is no object."""
    assert list(find(message)) == expected


EVENT = st.tuples(
    st.sampled_from([b"", b"event: x\n", b": comment\n", b"id: 1\r\n"]),
    st.binary(max_size=20).map(lambda text: text.hex().encode()),
)


@given(
    events=st.lists(EVENT, max_size=8), end=st.sampled_from([b"\n", b"\r\n", b"\r"]), data=st.data()
)
def test_events_are_found_however_they_are_cut(
    events: list[tuple[bytes, bytes]], end: bytes, data: st.DataObject
) -> None:
    """Every way to cut a stream gives the same events, and the same bytes in the same order."""
    raw = b"".join(
        (before.replace(b"\r\n", b"\n") + b"data: " + text + b"\n\n").replace(b"\n", end)
        for before, text in events
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    reader, passed, found = EventReader(), b"", []
    for begin, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        out, texts = reader.feed(raw[begin:stop])
        passed += out
        found += texts
        assert reader.between
    assert found == [text for _, text in events if text]
    assert passed + reader.rest() == raw


def test_lines_of_one_event_are_joined() -> None:
    """As the standard says: one optional space goes, several `data` lines are one text; other
    fields are none of ours."""
    assert EventReader().feed(b"data:a\ndata:  b\nevent: x\ndata\n\n").data == [b"a\n b\n"]


def test_a_stream_may_begin_with_a_byte_order_mark() -> None:
    """It is no part of the first event's first field (WHATWG HTML, section 9.2.5), and passes."""
    assert EventReader().feed(b"\xef\xbb\xbfdata: a\n\n") == (b"\xef\xbb\xbfdata: a\n\n", [b"a"])


def test_an_event_without_end_passes_unread() -> None:
    """Nothing is held beyond the limit; the next event is read again."""
    reader = EventReader()
    out, found = reader.feed(b"data: " + b"x" * MAX_EVENT_NBYTES)
    assert (len(out) > MAX_EVENT_NBYTES, found, reader.between) == (True, [], False)
    rest, found = reader.feed(b"x\n\ndata: y\n\n")
    assert (found, reader.between) == ([b"y"], True)
    assert (
        out + rest + reader.rest() == b"data: " + b"x" * (MAX_EVENT_NBYTES + 1) + b"\n\ndata: y\n\n"
    )
