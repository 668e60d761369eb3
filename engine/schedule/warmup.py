"""Warms a runner up: its first calls are slow, so one prefill and one decode step are run early.

Knows no cache.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from engine.schedule.runner import Runner
from engine.schedule.sequence import Sequence, Slice, Status
from engine.types import Sampling


def warm_up(runner: Runner, seed_ids: Seq[int], num_tokens: int, block_size: int) -> None:
    """Compute `num_tokens` tokens made of `seed_ids`, then one more. Writes into the first pages of
    the pool.

    Only for a pool in which nothing is cached yet. An error here is an error of the model: it is
    raised as it is.
    """
    token_ids = [seed_ids[i % len(seed_ids)] for i in range(num_tokens)]
    pages = list(range(-(-(num_tokens + 1) // block_size)))
    sequence = Sequence(
        "", token_ids, num_tokens, Sampling(max_tokens=2, temperature=0.0), block_table=pages
    )
    sequence.move(Status.PREFILL)
    (sampled,) = runner.step([Slice(sequence, 0, num_tokens, sample=True)])
    assert sampled is not None
    sequence.token_ids.extend(sampled.token_ids)
    sequence.num_computed = num_tokens
    sequence.move(Status.DECODE)
    runner.step([Slice(sequence, num_tokens, 1, sample=True)])
