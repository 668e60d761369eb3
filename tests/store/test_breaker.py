"""The breaker: when calls may go."""

from __future__ import annotations

import pytest

from engine.store.redis.breaker import Breaker
from tests.fakes.clock import FakeClock


def make(clock: FakeClock) -> Breaker:
    return Breaker(num_failures=3, open_s=2.0, clock=clock)


def test_it_opens_after_failures_in_a_row() -> None:
    """A success in between starts the count anew; the third failure in a row stops all calls."""
    breaker = make(FakeClock())
    for outcome in ("failed", "failed", "succeeded", "failed", "failed"):
        assert breaker.allow()
        getattr(breaker, outcome)()
    assert breaker.allow()
    breaker.failed()
    assert not breaker.allow()


def test_one_probe_at_a_time() -> None:
    """After the pause one call may go; while it is out no other may; its failure starts another
    pause, its success ends it."""
    clock = FakeClock()
    breaker = make(clock)
    for _ in range(3):
        breaker.failed()
    clock.advance(1.99)
    assert not breaker.allow()
    clock.advance(0.01)
    assert [breaker.allow(), breaker.allow(), breaker.allow()] == [True, False, False]
    breaker.failed()
    assert not breaker.allow()
    clock.advance(2.0)
    assert breaker.allow()
    breaker.succeeded()
    assert [breaker.allow(), breaker.allow()] == [True, True]


def test_calls_already_out_when_it_opens() -> None:
    """Failures of calls that went before it opened prolong the pause and let nobody through."""
    clock = FakeClock()
    breaker = make(clock)
    for _ in range(3):
        breaker.failed()
    clock.advance(1.0)
    breaker.failed()
    clock.advance(1.5)
    assert not breaker.allow()


@pytest.mark.parametrize(("num_failures", "open_s"), [(0, 1.0), (1, -1.0)])
def test_settings_that_make_no_sense(num_failures: int, open_s: float) -> None:
    """They are refused."""
    with pytest.raises(ValueError, match="num_failures"):
        Breaker(num_failures=num_failures, open_s=open_s, clock=FakeClock())
