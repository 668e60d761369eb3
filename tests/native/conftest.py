"""What tests of the native kernels share: teams of several sizes, and packed weights.

All skip where there is no library.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.native.library import Team
from tests.fakes.native import REASON


@pytest.fixture(params=(1, 2, 3))
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    """A team of one, two and three threads."""
    if REASON is not None:
        pytest.skip(REASON)
    made = Team(request.param)
    yield made
    made.close()
