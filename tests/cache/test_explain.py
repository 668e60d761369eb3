"""Why a prompt missed: one row per story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from engine.prompt.types import Position
from engine.types import CachePlan, Miss
from tests.fakes.rig import SYSTEM, TOOLS, Rig, marked, turn

PREAMBLE = [1, 2]
TOOL, RULES, QUESTION = list(range(10, 18)), list(range(20, 30)), list(range(40, 46))
SALTED = {"salts": {"messages": "tool_choice=any"}}
NOTHING_STAYS = {"unmarked_ttl_s": 0.0}
ANY = CachePlan(any_prefix=True)
ALL = marked(TOOLS, SYSTEM, turn(0))


def prompt(
    tool: list[int] = TOOL, rules: list[int] = RULES, *turns: list[int]
) -> tuple[list[int], dict[Position, int]]:
    """Two tokens of preamble, a tool up to 10, rules up to 20, then the turns; three tokens follow
    that belong to none."""
    tokens = [*PREAMBLE, *tool]
    offsets = {TOOLS: len(tokens)}
    tokens += rules
    offsets[SYSTEM] = len(tokens)
    for i, text in enumerate(turns or (QUESTION,)):
        tokens += text
        offsets[turn(i)] = len(tokens)
    return [*tokens, 7, 8, 9], offsets


def say(rig: Rig, plan: CachePlan, *parts: list[int]) -> Miss | None:
    """Run one request and return why it missed."""
    tokens, offsets = prompt(*parts)
    return rig.run(tokens, plan, offsets, preamble=len(PREAMBLE)).miss


@dataclass
class Story:
    """What happens first, and then the request to explain."""

    before: Callable[[Rig], object]
    plan: CachePlan
    parts: tuple[list[int], ...] = ()
    miss: Miss | None = None
    num_pages: int = 64


def once(plan: CachePlan = ALL, *parts: list[int], wait_s: float = 0.0) -> Callable[[Rig], object]:
    """One request, then time passes."""

    def happens(rig: Rig) -> None:
        say(rig, plan, *parts)
        rig.advance(wait_s)

    return happens


def then_others(rig: Rig) -> None:
    """One request, then enough others to push it out."""
    say(rig, ALL)
    rig.run(list(range(100, 136)), CachePlan(store=False))


def nothing(rig: Rig) -> None:
    """A new cache."""


STORIES = {
    "the same again": Story(once(), ALL),
    "only the hit there is": Story(once(marked(SYSTEM)), marked(SYSTEM), (TOOL, RULES, [50, 51])),
    "a conversation that goes on": Story(
        once(),
        marked(turn(2), readable=(turn(2), turn(1), turn(0))),
        (TOOL, RULES, QUESTION, [7, 8, 9, 60], [61, 62]),
    ),
    "the first request": Story(nothing, ALL, miss=Miss("cold")),
    "only the preamble in common": Story(once(ALL, [5] * 8), ALL, miss=Miss("cold")),
    "another tenant's request only": Story(
        lambda rig: rig.run(*_of(prompt()), tenant="other"), ALL, miss=Miss("cold")
    ),
    "another tool": Story(
        once(), ALL, ([10, 11, 12, 13, 99, 15, 16, 17],), Miss("tools_changed", TOOLS, 6)
    ),
    "another first token of the rules": Story(
        once(), marked(SYSTEM), (TOOL, [99, *RULES[1:]]), Miss("system_changed", SYSTEM, 10)
    ),
    "another question behind a hit": Story(
        once(), ALL, (TOOL, RULES, [40, 99]), Miss("messages_changed", turn(0), 21)
    ),
    "an earlier turn edited": Story(
        once(ALL, TOOL, RULES, QUESTION),
        marked(turn(1)),
        (TOOL, RULES, [40, 99], [60]),
        Miss("messages_changed", turn(0), 21),
    ),
    "a change behind what is wanted": Story(
        once(CachePlan(), TOOL, RULES, QUESTION), marked(SYSTEM), (TOOL, RULES, [99]), Miss("cold")
    ),
    "too late": Story(once(wait_s=300.0), marked(turn(0)), (), Miss("expired", turn(0), 26)),
    "too late, KV gone too": Story(
        once(wait_s=1000.0), marked(turn(0)), (), Miss("expired", turn(0), 26)
    ),
    "an hour too late": Story(once(wait_s=300.0 + 3600.0), marked(turn(0)), (), Miss("cold")),
    "too late and other rules": Story(
        once(marked(TOOLS, SYSTEM), wait_s=1000.0),
        marked(SYSTEM),
        (TOOL, [99, *RULES[1:]]),
        Miss("system_changed", SYSTEM, 10),
    ),
    "the last mark too late, the first still there": Story(
        once(marked((TOOLS, 3600.0), SYSTEM, **NOTHING_STAYS), wait_s=400.0),
        marked(TOOLS, SYSTEM),
        (),
        Miss("expired", SYSTEM, 20),
    ),
    "another tool choice": Story(
        once(marked(turn(0))),
        marked(turn(0), **SALTED),
        (),
        Miss("parameters_changed", turn(0), 26),
    ),
    "another tool choice behind a hit": Story(
        once(), marked(SYSTEM, turn(0), **SALTED), (), Miss("parameters_changed", turn(0), 26)
    ),
    "pushed out": Story(
        then_others, marked(turn(0)), (), Miss("evicted", turn(0), 26), num_pages=10
    ),
    "nothing marked": Story(once(), CachePlan(), (), Miss("not_marked")),
    "marks too short": Story(once(), marked(TOOLS, SYSTEM, min_tokens=21), (), Miss("below_min")),
    "told not to read": Story(once(), marked(SYSTEM, read=False), (), Miss("no_cache")),
    "told neither to read nor to store": Story(
        once(), marked(SYSTEM, read=False, store=False), (), Miss("no_store")
    ),
    "automatic, the same again": Story(once(ANY), ANY),
    "automatic, going on": Story(once(ANY), ANY, (TOOL, RULES, QUESTION, [7, 8, 9, 60])),
    "automatic, first": Story(nothing, ANY, miss=Miss("cold")),
    "automatic, too short": Story(
        once(ANY), CachePlan(any_prefix=True, min_tokens=29), (), Miss("below_min")
    ),
    "automatic, other rules": Story(
        once(ANY), ANY, (TOOL, [*RULES[:4], 99]), Miss("system_changed", SYSTEM, 14)
    ),
    "automatic, shared less than the minimum": Story(
        once(ANY),
        CachePlan(any_prefix=True, min_tokens=20),
        (TOOL, [*RULES[:4], *range(70, 80)]),
        Miss("system_changed", SYSTEM, 14),
    ),
}


def _of(
    rendered: tuple[list[int], dict[Position, int]],
) -> tuple[list[int], CachePlan, dict[Position, int]]:
    return rendered[0], ALL, rendered[1]


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_each_story_has_its_cause(story: Story) -> None:
    """Cause, position and token are named, or nothing is where nothing better could have been
    read."""
    rig = Rig(num_pages=story.num_pages)
    story.before(rig)
    assert say(rig, story.plan, *story.parts) == story.miss


def test_automatic_kv_too_late_is_named_while_its_blocks_are_known() -> None:
    """Expired blocks that were not freed yet still tell how far the prompt was known."""
    rig = Rig()
    say(rig, ANY)
    rig.now_s += 300
    assert say(rig, ANY) == Miss("expired", TOOLS, 0)
