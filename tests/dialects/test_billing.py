"""Promise 2: counts are true and add up,
for any report the engine may give; and worked numbers from public reports.
"""

from __future__ import annotations

from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.prompt.types import Position
from engine.types import Boundary, CachePlan, CacheReport, Hit, PlannedEntry, Sampling
from gateway.request import Request
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Answer
from gateway.wire.openai import CHAT_WIRE
from policies.pricing import Prices, Usage, charge
from policies.rules import DialectRules
from tests.fakes import dialects
from tests.fakes.rules import ANTHROPIC, EARLIER_OPENAI, OPENAI, rules

PRICES = Prices(
    version="test",
    input_usd_per_mtok=Decimal("3.00"),
    output_usd_per_mtok=Decimal("15.00"),
    read_multiplier=Decimal("0.1"),
    write_multipliers={300.0: Decimal("1.25"), 3600.0: Decimal("2.0")},
)


@st.composite
def reports(draw: st.DrawFn) -> CacheReport:
    """Any report that keeps the contract of `CacheReport`."""
    num_prompt = draw(st.integers(1, 6000))
    offsets = sorted(draw(st.lists(st.integers(0, num_prompt - 1), max_size=5)))
    skipped = draw(st.integers(0, num_prompt - 1))
    hit = draw(
        st.none()
        | st.builds(
            Hit, st.just(Position("messages", 0)), st.integers(0, skipped), st.floats(0, 3600)
        )
    )
    ttls_s = st.sampled_from([300.0, 1800.0, 3600.0, 43200.0])
    boundaries = tuple(
        Boundary(Position("messages", i), offset, draw(ttls_s), draw(st.booleans()))
        for i, offset in enumerate(offsets)
    )
    return CacheReport(num_prompt, skipped, hit, boundaries)


@st.composite
def plans(draw: st.DrawFn) -> CachePlan:
    return CachePlan(
        writable=(PlannedEntry(Position("messages", 0), 300.0),) if draw(st.booleans()) else (),
        any_prefix=draw(st.booleans()),
        store=draw(st.booleans()),
    )


ALL_RULES = st.builds(
    lambda base, mode, bills: rules(base, usage_mode=mode, bills_writes=bills),
    st.sampled_from([ANTHROPIC, OPENAI, EARLIER_OPENAI]),
    st.sampled_from(["provider", "measured"]),
    st.booleans(),
)


@given(reports(), plans(), ALL_RULES, st.integers(0, 100))
def test_parts_add_up(
    report: CacheReport, plan: CachePlan, base: DialectRules, num_output: int
) -> None:
    """read + writes + input is the prompt, no part is negative, no zero is listed, and no more is
    read than was skipped."""
    usage = dialects.usage(report, base, plan, num_output)
    assert usage.num_prompt == report.num_prompt
    assert usage.input >= 0
    assert 0 <= usage.cache_read <= report.skipped
    assert all(tokens > 0 for _, tokens in usage.cache_write)
    assert list(usage.cache_write) == sorted(usage.cache_write, reverse=True)
    assert usage.output == num_output
    if not (base.bills_writes and plan.store):
        assert usage.cache_write == ()


@given(reports(), ALL_RULES)
def test_writes_end_at_a_boundary(report: CacheReport, base: DialectRules) -> None:
    """Read and written tokens together end at the last boundary, or where the read ended."""
    usage = dialects.usage(report, base, CachePlan(), 0)
    last = max([boundary.offset for boundary in report.boundaries], default=0)
    if usage.cache_write:
        assert usage.cache_read + usage.num_written == last


def test_one_record_two_views() -> None:
    """Read 2,455, input 4, output 23: Anthropic excludes the read, OpenAI includes it; the price is
    the same."""
    report = CacheReport(2459, 2455, Hit(Position("system", 0), 2455, 300.0))
    usage = dialects.usage(report, ANTHROPIC, CachePlan(), 23)
    assert usage == Usage(4, 2455, (), 23)
    answer = Answer("x", "stop", None, usage)
    request = Request(
        id="r", wire="anthropic", model="m", prompt=_prompt(), sampling=Sampling(max_tokens=1)
    )
    anthropic = orjson.loads(MESSAGES_WIRE.encode_answer(request, answer, created_at_s=0))["usage"]
    openai = orjson.loads(CHAT_WIRE.encode_answer(request, answer, created_at_s=0))["usage"]
    assert (
        anthropic["input_tokens"],
        anthropic["cache_read_input_tokens"],
        anthropic["output_tokens"],
    ) == (4, 2455, 23)
    assert (
        openai["prompt_tokens"],
        openai["prompt_tokens_details"]["cached_tokens"],
        openai["total_tokens"],
    ) == (
        2459,
        2455,
        2482,
    )
    assert charge(usage, PRICES).total == Decimal("0.0010935")


@pytest.mark.parametrize(
    ("offset", "usage"),
    [(63, Usage(100)), (64, Usage(36, 0, ((300.0, 64),)))],
    ids=["one short", "exactly the minimum"],
)
def test_minimum(offset: int, usage: Usage) -> None:
    """The engine drops boundaries below the plan's minimum; the bill follows what is left."""
    plan = dialects.plan(
        Request(
            id="r", wire="anthropic", model="m", prompt=_prompt(), sampling=Sampling(max_tokens=1)
        ),
        ANTHROPIC,
    )
    boundary = Boundary(Position("messages", 0), offset, 300.0, False)
    kept = (boundary,) if offset >= plan.min_tokens else ()
    assert dialects.usage(CacheReport(100, boundaries=kept), ANTHROPIC, plan, 0) == usage


def _prompt() -> object:
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "q"}]}
    return MESSAGES_WIRE.parse(orjson.dumps(body), {}, request_id="r").prompt
