"""The step loop over tiers with many requests: conversations that never mix,
aborts that leak nothing.
"""

from __future__ import annotations

import random

import pytest

from engine.store.memory import MemoryStore
from tests.fakes.tiered import PROMPT, Bench, truth

CODEWORDS = [[200 + i, 17 * i % 251, 91 * i % 251] for i in range(20)]


@pytest.mark.parametrize("name", ["ram", "ssd"])
def test_twenty_conversations_never_mix(name: str) -> None:
    """Interleaved, over a device too small for two of them: every answer is the one of an engine
    without any cache."""
    bench = Bench(MemoryStore(1 << 22), name=name, num_pages=64, force_store=name == "ram")
    rng = random.Random(7)
    talks = [[*code, *[rng.randrange(100) for _ in range(40)]] for code in CODEWORDS]
    marks = [len(talk) for talk in talks]
    num_tokens = 0
    for turn in range(100):
        i = turn * 7 % 20
        outcome = bench.ask(
            talks[i], marks=[marks[i]] if marks[i] < len(talks[i]) else [len(talks[i]) - 1]
        )
        num_tokens += sum(num for tier, num in outcome.started.report.tiers.items() if tier == name)
        assert outcome.token_ids == truth(talks[i])
        marks[i] = len(talks[i])
        talks[i] = [*talks[i], *outcome.token_ids, *CODEWORDS[i]]
    assert num_tokens > 1000


@pytest.mark.slow
def test_a_thousand_aborts_leak_nothing(warm: MemoryStore) -> None:
    """In every stage of loads and spills: no page, pin, read, staged byte or queued byte is
    left."""
    bench = Bench(warm, num_pages=96)
    rng = random.Random(3)
    for i in range(1000):
        bench.reader.is_open = bench.writer.is_open = False
        tail = [rng.randrange(250) for _ in range(rng.randrange(1, 60))]
        outcome = bench.stepper.submit(
            [*PROMPT[: rng.randrange(101)], *tail], marks=[rng.randrange(1, 100)], max_tokens=6
        )
        for _ in range(rng.randrange(12)):
            rng.choice((bench.reader, bench.writer)).run(rng.randrange(3))
            bench.stepper.step()
        if not outcome.is_over:
            bench.stepper.abort(outcome)
        bench.cache.check()
        if i % 10 == 0:
            bench.reader.is_open = bench.writer.is_open = True
            bench.reader.run()
            bench.writer.run()
            bench.settle()
    bench.reader.is_open = bench.writer.is_open = True
    bench.reader.run()
    bench.writer.run()
    bench.settle()
    gauges = bench.cache.stats().gauges
    assert (gauges.num_leases, gauges.num_pinned_pages, gauges.num_reserved_pages) == (0, 0, 0)
    assert (gauges.staged_nbytes, gauges.num_unwritten) == (0, 0)
    assert bench.cache.stats().tiers["ssd"].gauges.queued_nbytes == 0
    assert bench.ask(PROMPT, marks=[100]).token_ids == truth(PROMPT)
