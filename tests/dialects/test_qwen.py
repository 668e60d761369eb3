"""Qwen's rules: explicit with a marker, implicit without, never both."""

from __future__ import annotations

import msgspec

from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart
from engine.types import Boundary, CacheReport, Hit, Sampling
from gateway.request import Request
from policies.pricing import Usage
from tests.fakes import dialects
from tests.fakes.rules import ANTHROPIC, rules

QWEN = rules(ANTHROPIC, preset="qwen", automatic=True)
PLACE = Position("messages", 0, 0)


def request(mark: CacheMark | None) -> Request:
    prompt = Prompt(
        messages=(Message("user", (TextPart("x", mark),)), Message("user", (TextPart("y"),)))
    )
    return Request(
        id="r", wire="openai", model="qwen-test", prompt=prompt, sampling=Sampling(max_tokens=1)
    )


def test_a_marker_is_explicit() -> None:
    """Only the mark is written and looked up; the write is billed."""
    plan = dialects.plan(request(CacheMark(300.0)), QWEN)
    assert (plan.any_prefix, plan.readable, [p.position for p in plan.writable]) == (
        False,
        (PLACE,),
        [PLACE],
    )
    cold = CacheReport(num_prompt=100, boundaries=(Boundary(PLACE, 80, 300.0, False),))
    assert dialects.usage(cold, QWEN, plan, 0) == Usage(input=20, cache_write=((300.0, 80),))
    warm = CacheReport(
        num_prompt=100,
        skipped=90,
        hit=Hit(PLACE, 80, 300.0),
        boundaries=(Boundary(PLACE, 80, 300.0, True),),
    )
    assert dialects.usage(warm, QWEN, plan, 0) == Usage(input=20, cache_read=80)


def test_of_many_markers_the_latest_count() -> None:
    """No more than `max_breakpoints` are written and looked up from, as nobody has refused the
    others."""
    parts = tuple(TextPart("x", CacheMark(300.0)) for _ in range(6))
    many = msgspec.structs.replace(request(None), prompt=Prompt(messages=(Message("user", parts),)))
    plan = dialects.plan(dialects.normalize(many, QWEN), rules(QWEN, lookback=1))
    assert [entry.position.part for entry in plan.writable] == [2, 3, 4, 5]
    assert [position.part for position in plan.readable] == [5, 4, 3, 2]


def test_no_marker_is_implicit() -> None:
    """Any prefix is read, nothing is billed as written."""
    plan = dialects.plan(request(None), QWEN)
    assert (plan.any_prefix, plan.writable) == (True, ())
    assert dialects.usage(CacheReport(num_prompt=100), QWEN, plan, 0) == Usage(input=100)
    assert dialects.usage(CacheReport(num_prompt=100, skipped=96), QWEN, plan, 0) == Usage(
        input=4, cache_read=96
    )
