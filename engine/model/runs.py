"""Runs of consecutive slots of the pool, in which a sequence's tokens lie.

Plain data: knows no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotRun:
    """`num_slots` consecutive slots from `first`: a piece of a sequence that can be read in
    place."""

    first: int
    num_slots: int


def cut_runs(runs: Iterable[SlotRun], num_slots: int) -> tuple[SlotRun, ...]:
    """The first `num_slots` slots of `runs`."""
    kept: list[SlotRun] = []
    for run in runs:
        if num_slots <= 0:
            break
        kept.append(SlotRun(run.first, min(run.num_slots, num_slots)))
        num_slots -= run.num_slots
    return tuple(kept)


def skip_runs(runs: Iterable[SlotRun], num_slots: int) -> tuple[SlotRun, ...]:
    """`runs` without their first `num_slots` slots."""
    kept: list[SlotRun] = []
    for run in runs:
        if run.num_slots > num_slots:
            kept.append(SlotRun(run.first + num_slots, run.num_slots - num_slots))
        num_slots = max(0, num_slots - run.num_slots)
    return tuple(kept)
