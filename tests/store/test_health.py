"""What the operator hears of a failing tier."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from engine.store.base import StoreStats
from engine.store.health import QUIET_S, ErrorReporter


@pytest.fixture(autouse=True)
def _hear_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine.store")


def test_one_line_and_one_more_when_it_works(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand failures are one warning; the end is one line; success without failure is none."""
    health = ErrorReporter("ssd", StoreStats())
    health.worked("put")
    for _ in range(1000):
        health.failed("put", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/secret/path"))
    assert (health.stats.num_errors, health.stats.problem) == (1000, "put: No space left on device")
    health.worked("put")
    assert health.stats.problem is None
    assert [record.getMessage() for record in caplog.records] == [
        "the ssd tier does not work: put: No space left on device",
        "the ssd tier works again",
    ]


def test_a_flapping_tier_speaks_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A tier that fails and works by turns is one warning per minute of its clock."""
    health = ErrorReporter("redis", StoreStats())
    for second in range(int(3 * QUIET_S)):
        health.now_s = float(second)
        health.failed("answer", "TimeoutError")
        health.worked("answer")
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert len(caplog.records) == 6


def test_problems_of_operations_are_apart() -> None:
    """That reads work does not hide that writes don't."""
    health = ErrorReporter("ssd", StoreStats())
    health.failed("put", "full")
    health.failed("get", "broken")
    health.worked("get")
    assert health.stats.problem == "put: full"
    health.worked("put")
    assert health.stats.problem is None
