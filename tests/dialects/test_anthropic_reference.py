"""Random conversations through dialect and cache, against the rules written down a second time:
the bills are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart, Tool
from engine.types import Sampling
from gateway.request import Request
from policies.pricing import Usage
from tests.fakes import dialects
from tests.fakes.anthropic_rules import LOOKBACK, SECONDS, Asked, Billed, Rules, Said
from tests.fakes.rig import Rig
from tests.fakes.rules import ANTHROPIC, rules

MINIMUM = 9
GAPS_S = (0, 1, 150, 299, 300, 301, 1800, 3599, 3600, 3601)
LEVELS = ("tools", "system", "messages")


@dataclass(frozen=True)
class Step:
    """How the next request differs from the one before; `at`, `cut` and `places` are fractions of
    what is there."""

    gap_s: int
    grow: int
    edit: float | None
    cut: float | None
    places: tuple[float, ...]
    num_hours: int
    automatic: str | None
    speed: str
    tool_choice: str
    end: int


fractions = st.floats(0, 0.999)
steps = st.builds(
    Step,
    gap_s=st.sampled_from(GAPS_S),
    grow=st.sampled_from([0, 1, 2, 5, 18, 19, 20, 21]),
    edit=st.none() | st.none() | fractions,
    cut=st.none() | st.none() | fractions,
    places=st.lists(fractions | st.just(0.999), max_size=4).map(tuple),
    num_hours=st.integers(0, 4),
    automatic=st.sampled_from([None, None, "5m", "1h"]),
    speed=st.sampled_from(["standard", "standard", "standard", "fast"]),
    tool_choice=st.sampled_from(["auto", "auto", "auto", "none"]),
    end=st.sampled_from([0, 3]),
)


@dataclass
class Talk:
    """A conversation as a list of blocks; every block ever made has tokens of its own."""

    blocks: list[Said] = field(default_factory=list)
    num_made: int = 0

    def __post_init__(self) -> None:
        for level, num in zip(LEVELS, (2, 2, 1), strict=True):
            self.blocks += [self._new(level) for _ in range(num)]

    def _new(self, level: str) -> Said:
        self.num_made += 1
        return Said(level, tuple(self.num_made * 10 + i for i in range(1 + self.num_made % 5)))

    def take(self, step: Step) -> Asked:
        """The next request."""
        if step.cut is not None:
            self.blocks = self.blocks[: max(5, int(step.cut * len(self.blocks)))]
        if step.edit is not None:
            i = int(step.edit * len(self.blocks))
            self.blocks[i] = self._new(self.blocks[i].level)
        self.blocks += [self._new("messages") for _ in range(step.grow)]
        places = sorted({int(place * len(self.blocks)) for place in step.places})
        marks = {place: "1h" if i < step.num_hours else "5m" for i, place in enumerate(places)}
        last = len(self.blocks) - 1
        automatic = step.automatic
        if (
            len(marks) == 4
            or (automatic == "1h" and "5m" in marks.values())
            or marks.get(last, automatic) != automatic
        ):
            automatic = None
        blocks = tuple(replace(block, mark=marks.get(i)) for i, block in enumerate(self.blocks))
        return Asked(blocks, tuple(range(step.end)), automatic, step.speed, step.tool_choice)


def positions(asked: Asked) -> Iterator[tuple[Position, Said]]:
    """Wire coordinates: one message holds all message blocks."""
    counts = dict.fromkeys(LEVELS, 0)
    for block in asked.blocks:
        i, counts[block.level] = counts[block.level], counts[block.level] + 1
        yield (
            (Position("messages", 0, i) if block.level == "messages" else Position(block.level, i)),
            block,
        )  # type: ignore[arg-type]


def request(asked: Asked) -> Request:
    """What the parser would make of it; a block's text is its first token."""

    def part(block: Said) -> TextPart:
        return TextPart(
            str(block.tokens[0]), None if block.mark is None else CacheMark(SECONDS[block.mark])
        )

    at = {level: [block for block in asked.blocks if block.level == level] for level in LEVELS}
    parameters = {"speed": asked.speed, "tool_choice": asked.tool_choice}
    return Request(
        id="r",
        wire="anthropic",
        model="m",
        prompt=Prompt(
            messages=(Message("user", tuple(map(part, at["messages"]))),),
            system=tuple(map(part, at["system"])),
            tools=tuple(
                Tool(f"t{block.tokens[0]}", "", {}, part(block).cache) for block in at["tools"]
            ),
        ),
        sampling=Sampling(max_tokens=1),
        automatic=None if asked.automatic is None else SECONDS[asked.automatic],
        parameters={
            name: value for name, value in parameters.items() if value not in ("standard", "auto")
        },
    )


def rendered(asked: Asked) -> RenderedPrompt:
    offsets, total = {}, 0
    for position, block in positions(asked):
        total += len(block.tokens)
        offsets[position] = total
    tokens = [token for block in asked.blocks for token in block.tokens]
    return RenderedPrompt((*tokens, *asked.end), offsets, 0)


def run(rig: Rig, asked: Asked, base: int) -> Usage:
    """One request through the real dialect and the real cache, without a model and without looking
    at every invariant."""
    based = rules(ANTHROPIC, min_tokens=MINIMUM, lookback=LOOKBACK, unmarked_ttl=float(base))
    normal = dialects.normalize(request(asked), based)
    plan = dialects.plan(normal, based)
    prompt, cache = rendered(asked), rig.cache
    lookup = cache.lookup("default", prompt, plan, rig.now_s)
    lease = cache.admit(lookup, num_reserve=len(prompt.token_ids) + 1)
    assert lease is not None
    tokens = list(prompt.token_ids)
    cache.grow(lease, len(tokens))
    rig.device.compute(lease.block_table, tokens, lease.num_cached, len(tokens))
    cache.insert(lease, tokens, len(tokens))
    cache.write_entries(lease)
    cache.release(lease, tokens, len(tokens))
    return dialects.usage(lease.report, based, plan, 0)


def compare(script: list[Step], unmarked_ttl_s: int, model: Rules | None = None) -> None:
    """Both serve the same conversation; the cache's invariants are checked at the end."""
    rig, model, talk = Rig(num_pages=4096), model or Rules(MINIMUM), Talk()
    for step in script:
        rig.now_s += step.gap_s
        rig.cache.tick(rig.now_s)
        asked = talk.take(step)
        usage = run(rig, asked, unmarked_ttl_s)
        written = dict(usage.cache_write)
        got = Billed(usage.cache_read, written.get(300.0, 0), written.get(3600.0, 0), usage.input)
        assert got == model.serve(asked, rig.now_s)
    rig.cache.check()


scripts = st.lists(steps, min_size=1, max_size=8)


@settings(max_examples=150)
@given(scripts, st.sampled_from([0, 300]))
def test_bills_follow_the_rules(script: list[Step], unmarked_ttl_s: int) -> None:
    """Look-back, minimum, three positions, refresh, upgrades, salts and time, in any order."""
    compare(script, unmarked_ttl_s)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=10_000)
@given(scripts, st.sampled_from([0, 300]))
def test_bills_follow_the_rules_ten_thousand_times(script: list[Step], unmarked_ttl_s: int) -> None:
    """The same over ten thousand conversations."""
    compare(script, unmarked_ttl_s)


class SlowClock(Rules):
    """Lets a promise last a little longer than it should."""

    def serve(self, asked: Asked, now_s: float) -> Billed:
        return super().serve(asked, now_s * 0.999)


@pytest.mark.parametrize("broken", ["lookback", "time", "minimum"])
def test_control_the_comparison_can_fail(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rule of the second writing changed, some conversation is billed otherwise."""
    model: Rules = (
        SlowClock(MINIMUM) if broken == "time" else Rules(MINIMUM + (broken == "minimum"))
    )
    if broken == "lookback":
        monkeypatch.setattr("tests.fakes.anthropic_rules.LOOKBACK", 19)
    grown = Step(0, 0, None, None, (0.999,), 0, None, "standard", "auto", 3)
    script = {
        "lookback": [grown, replace(grown, grow=19)],
        "time": [grown, replace(grown, gap_s=300)],
        "minimum": [replace(grown, places=(place / 20,)) for place in range(20)],
    }[broken]
    with pytest.raises(AssertionError):
        compare(script, 300, model)
