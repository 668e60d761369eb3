"""Whether what something costs grows with how much there is of it, or faster."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MOST: Final = 2.2
"""Times the cost of half as many."""

TRIES: Final = 6

Cost = Callable[[int], Callable[[], object]]
"""For a number of items the work that is measured."""


def assert_linear(cost: Cost, num: int) -> None:
    """Where the processor's caches end, twice as many cost a little more than twice as much, but
    only there: a square is the plainer the more there are."""
    first = _measured(cost, num)
    if first is not None:
        assert _measured(cost, 3 * num) is None, first


def _measured(cost: Cost, num: int) -> tuple[float, float] | None:
    """Seconds for `num` and for twice as many where that is more than `MOST` times as much: the
    least of several, because noise only ever adds. Ends as soon as it is not."""
    half, whole = cost(num), cost(2 * num)
    with _uncollected():
        one, two = _seconds(half), _seconds(whole)
        for _ in range(TRIES):
            if two <= MOST * one:
                return None
            one, two = min(one, _seconds(half)), min(two, _seconds(whole))
    return None if two <= MOST * one else (one, two)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, whose cost depends on everything else that the process
    holds."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _seconds(work: Callable[[], object]) -> float:
    begin_s = time.process_time()
    work()
    return time.process_time() - begin_s
