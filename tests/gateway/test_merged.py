"""Several prompts' reports as one: counts add up,
and what one word says of all of them is true of all of them.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.prompt.types import Position
from engine.types import Boundary, CachePlan, CacheReport, Hit, Miss, PlannedEntry
from gateway.bill.headers import Bill
from gateway.bill.merged import merged
from policies.pricing import charge, sum_usage
from tests.fakes import dialects
from tests.fakes.rules import OPENAI
from tests.gateway.serving import make_policy

END = Position("messages", 0, 0)
PRICES = make_policy().prices_for("gpt-5.6")
PLAN = CachePlan(readable=(END,), writable=(PlannedEntry(END, 1800.0),))


def report(num_prompt: int, *, warm: bool) -> CacheReport:
    """Of a prompt whose tokens but the last are read, or written."""
    boundary = Boundary(END, num_prompt - 1, 1800.0, warm)
    if not warm:
        return CacheReport(num_prompt, boundaries=(boundary,), miss=Miss("cold"))
    hit = Hit(END, num_prompt - 1, 1800.0)
    return CacheReport(num_prompt, num_prompt - 1, hit, (boundary,), {"device": num_prompt - 1})


reports = st.lists(
    st.builds(report, st.integers(2, 500), warm=st.booleans()), min_size=1, max_size=6
)


@given(reports)
def test_counts_add_up(several: list[CacheReport]) -> None:
    """To the sums of the parts, and to the bill that the merged report gives."""
    one = merged(several)
    assert one.num_prompt == sum(each.num_prompt for each in several)
    assert one.skipped == sum(one.tiers.values()) == sum(each.skipped for each in several)
    usage = sum_usage([dialects.usage(each, OPENAI, PLAN, 0) for each in several])
    assert usage.num_prompt == one.num_prompt
    assert usage.cache_read <= one.skipped
    assert one.miss == next((each.miss for each in several if each.miss is not None), None)


@given(reports)
def test_one_word_for_all(several: list[CacheReport]) -> None:
    """All read is a hit, nothing read a miss, anything else partial."""
    usage = sum_usage([dialects.usage(each, OPENAI, PLAN, 0) for each in several])
    bill = Bill(PLAN, merged(several), OPENAI, usage, charge(usage, PRICES), "v", final=True)
    num_warm = sum(each.hit is not None for each in several)
    assert bill.word == {0: "miss", len(several): "hit"}.get(num_warm, "partial")
