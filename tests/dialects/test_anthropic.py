"""Anthropic's rules: what is looked up, what is written, what it comes to."""

from __future__ import annotations

from typing import Any

import pytest

from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart, Tool
from engine.types import Boundary, CachePlan, CacheReport, Hit, PlannedEntry, Sampling
from gateway.request import Directives, Request
from policies.pricing import Usage
from policies.sections import SingleFlightPolicy, TtlPolicy
from tests.fakes import dialects
from tests.fakes.rules import ANTHROPIC, OPENAI, rules

SHORT, LONG = 300.0, 3600.0


def block(ttl_s: float | None = None) -> TextPart:
    return TextPart("x", CacheMark(ttl_s) if ttl_s else None)


def a_request(*messages: Message, **fields: Any) -> Request:
    prompt = {name: fields.pop(name) for name in ("tools", "system") if name in fields}
    whole = Prompt(messages=messages, **prompt)
    return Request(
        id="r",
        wire="anthropic",
        model="claude-test",
        sampling=Sampling(max_tokens=1),
        prompt=whole,
        **fields,
    )


def conversation(num_blocks: int, *marked: int) -> Request:
    """`num_blocks` blocks in one message, marked where told, counted from 1."""
    parts = tuple(block(SHORT if i in marked else None) for i in range(1, num_blocks + 1))
    return a_request(Message("user", parts))


def numbers(plan: CachePlan) -> list[int]:
    """The readable positions of `conversation`, counted from 1."""
    return [position.part + 1 for position in plan.readable]


def report(
    num_prompt: int, *boundaries: tuple[int, float], hit: int = 0, skipped: int | None = None
) -> CacheReport:
    """Boundaries as (offset, ttl_s); `skipped` is the hit unless told."""
    return CacheReport(
        num_prompt=num_prompt,
        skipped=hit if skipped is None else skipped,
        hit=Hit(Position("messages", 0), hit, SHORT) if hit else None,
        boundaries=tuple(
            Boundary(Position("messages", 0, i), o, ttl_s, o <= hit)
            for i, (o, ttl_s) in enumerate(boundaries)
        ),
    )


def bill(found: CacheReport, **changes: Any) -> Usage:
    return dialects.usage(found, rules(ANTHROPIC, **changes), CachePlan(), 0)


# What is looked up and written --------------------------------------------------------------------


def test_the_operator_limits_what_a_plan_promises() -> None:
    """`caching.ttl` is in every entry of a plan, whatever the dialect; without it nothing is
    limited."""
    request = conversation(1, 1)
    for base in (ANTHROPIC, OPENAI):
        assert {(e.upgrade, e.max_age_s) for e in dialects.plan(request, base).writable} == {
            (True, None)
        }
        limited = rules(base, ttl=TtlPolicy(upgrade="never", max_age=900.0))
        assert {(e.upgrade, e.max_age_s) for e in dialects.plan(request, limited).writable} == {
            (False, 900.0)
        }


@pytest.mark.parametrize(
    ("flight", "planned"),
    [
        (SingleFlightPolicy(), ("read", 60.0)),
        (SingleFlightPolicy(bill="write", max_wait=5.0), ("write", 5.0)),
        (SingleFlightPolicy(enabled=False, bill="write"), ("off", 60.0)),
    ],
)
def test_a_plan_says_who_waits(flight: SingleFlightPolicy, planned: tuple[str, float]) -> None:
    """`caching.single_flight` is in every plan, whatever the dialect."""
    for base in (ANTHROPIC, OPENAI):
        plan = dialects.plan(conversation(1, 1), rules(base, single_flight=flight))
        assert (plan.single_flight, plan.max_wait_s) == planned


def test_no_mark_no_caching() -> None:
    """Caching is opt-in: without a mark nothing is looked up and nothing written."""
    plan = dialects.plan(conversation(5), ANTHROPIC)
    assert (plan.readable, plan.writable, plan.any_prefix) == ((), (), False)


@pytest.mark.parametrize(
    ("marked", "read"),
    [
        ((15,), [*range(15, 0, -1)]),
        ((35,), [*range(35, 15, -1)]),
        ((15, 35), [*range(35, 0, -1)]),
        ((10, 35), [*range(35, 15, -1), *range(10, 0, -1)]),
        ((34, 35), [*range(35, 14, -1)]),
    ],
)
def test_look_back_window(marked: tuple[int, ...], read: list[int]) -> None:
    """Twenty positions, the mark itself the first: an entry 19 back is found, 20 back is not; each
    mark has a window."""
    assert numbers(dialects.plan(conversation(35, *marked), ANTHROPIC)) == read


def test_tools_and_system_blocks_are_positions_of_the_window() -> None:
    """The walk goes on from the messages into system and tools, one position each."""
    tools = tuple(Tool(f"t{i}", "", {}) for i in range(2))
    request = a_request(Message("user", (block(SHORT),)), tools=tools, system=(block(),))
    assert [str(p) for p in dialects.plan(request, ANTHROPIC).readable] == [
        "messages/0/0",
        "system/0",
        "tools/1",
        "tools/0",
    ]
    assert [str(p) for p in dialects.plan(request, rules(ANTHROPIC, lookback=2)).readable] == [
        "messages/0/0",
        "system/0",
    ]


def test_writes_at_marks_only() -> None:
    """One entry per mark, in wire order, with the TTL it asks for."""
    tool = Tool("t", "", {}, CacheMark(LONG))
    request = a_request(
        Message("user", (block(), block(SHORT))), tools=(tool,), system=(block(LONG), block())
    )
    assert dialects.plan(request, ANTHROPIC).writable == (
        PlannedEntry(Position("tools", 0), LONG),
        PlannedEntry(Position("system", 0), LONG),
        PlannedEntry(Position("messages", 0, 1), SHORT),
    )


def test_foreign_ttls_take_the_next_longer_class() -> None:
    """A mark of another provider's class is kept at least as long as it asks, or as long as can
    be."""
    request = a_request(Message("user", (block(1800.0), block(43200.0))))
    assert [entry.ttl_s for entry in dialects.plan(request, ANTHROPIC).writable] == [LONG, LONG]


@pytest.mark.parametrize(
    ("parameters", "levels"),
    [
        ({}, set()),
        ({"tool_choice": "none"}, {"messages"}),
        ({"parallel_tool_calls": False}, {"messages"}),
        ({"thinking": {"type": "adaptive"}}, {"messages"}),
        ({"effort": "low"}, {"messages"}),
        ({"speed": "fast"}, {"system", "messages"}),
        ({"citations": True}, {"system", "messages"}),
        ({"verbosity": "low", "prompt_cache_key": "k"}, set()),
    ],
)
def test_invalidation_table(parameters: dict[str, Any], levels: set[str]) -> None:
    """Which levels each parameter costs: those it salts."""
    request = a_request(Message("user", (block(),)), parameters=parameters)
    assert set(dialects.plan(request, ANTHROPIC).salts) == levels


def test_salts_tell_values_apart_and_not_their_order() -> None:
    """Another value is another salt; the same values in another order are the same."""

    def salt(**parameters: Any) -> str:
        return dialects.plan(
            a_request(Message("user", (block(),)), parameters=parameters), ANTHROPIC
        ).salts["messages"]

    assert salt(effort="low") != salt(effort="max")
    assert salt(effort="low", tool_choice="none") == salt(tool_choice="none", effort="low")
    assert salt(thinking={"type": "enabled", "budget_tokens": 1}) == salt(
        thinking={"budget_tokens": 1, "type": "enabled"}
    )


def test_client_directives_reach_the_plan() -> None:
    """`no-cache` and `no-store` are the plan's `read` and `store`."""
    request = a_request(Message("user", (block(),)), directives=Directives(read=False, store=False))
    plan = dialects.plan(request, ANTHROPIC)
    assert (plan.read, plan.store) == (False, False)


# What it comes to ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "usage"),
    [
        pytest.param(report(500), Usage(500), id="nothing planned"),
        pytest.param(report(500, (400, SHORT)), Usage(100, 0, ((SHORT, 400),)), id="cold"),
        pytest.param(report(500, (400, SHORT), hit=400), Usage(100, 400), id="warm"),
        pytest.param(
            report(500, (400, SHORT), hit=300), Usage(100, 300, ((SHORT, 100),)), id="grown"
        ),
        pytest.param(
            report(500, hit=300), Usage(200, 300), id="read without a boundary of its own"
        ),
        pytest.param(
            report(900, (200, LONG), (500, LONG), (800, SHORT)),
            Usage(100, 0, ((LONG, 500), (SHORT, 300))),
            id="A=0 B=500 C=800",
        ),
        pytest.param(
            report(900, (200, LONG), (500, LONG), (800, SHORT), hit=200),
            Usage(100, 200, ((LONG, 300), (SHORT, 300))),
            id="A=200 B=500 C=800",
        ),
        pytest.param(
            report(900, (200, LONG), (500, LONG), (800, SHORT), hit=500),
            Usage(100, 500, ((SHORT, 300),)),
            id="A=B=500 C=800",
        ),
        pytest.param(
            report(900, (200, LONG), (500, SHORT), hit=800), Usage(100, 800), id="A after C"
        ),
        pytest.param(
            report(900, (300, LONG), (300, SHORT)),
            Usage(600, 0, ((LONG, 300),)),
            id="both at one token",
        ),
    ],
)
def test_three_position_rule(found: CacheReport, usage: Usage) -> None:
    """A = hit, B = last 1h boundary after it, C = last boundary: read A, 1h B - A, 5m C - B, input
    the rest."""
    assert bill(found) == usage


def test_mixed_ttls_in_order() -> None:
    """Tools for an hour, then system for five minutes: each class is billed its own stretch."""
    tools, system, total = 120, 150, 300
    found = report(total, (tools, LONG), (tools + system, SHORT))
    assert bill(found) == Usage(total - tools - system, 0, ((LONG, tools), (SHORT, system)))


def test_skipping_more_than_the_entry_is_billed_by_the_entry() -> None:
    """KV shared beyond the entry costs nothing to reuse, but what is read is what the rule says."""
    assert bill(report(500, (400, SHORT), hit=300, skipped=384)) == Usage(100, 300, ((SHORT, 100),))


def test_measured_mode_bills_what_was_skipped() -> None:
    """Read is what was skipped, written what is new under a boundary."""
    assert bill(report(500, (400, SHORT), hit=300, skipped=384), usage_mode="measured") == Usage(
        100, 384, ((SHORT, 16),)
    )
    assert bill(report(500, skipped=384), usage_mode="measured") == Usage(116, 384)


def test_what_is_not_stored_is_not_billed_as_written() -> None:
    """`no-store`: the boundaries were planned, and nothing was kept."""
    plan = CachePlan(store=False)
    assert dialects.usage(report(500, (400, SHORT)), ANTHROPIC, plan, 7) == Usage(500, output=7)


def test_read_never_exceeds_what_was_skipped() -> None:
    """Whatever the report says of an entry, only skipped prefill is sold as read."""
    assert bill(report(500, hit=400, skipped=256)).cache_read == 256
