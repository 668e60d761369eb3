"""Starts engines for tests and stops them afterwards; a store that knows a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from engine.store.memory import MemoryStore
from tests.fakes.gate import Gate
from tests.fakes.harness import Harness, MakeEngine, Wiring
from tests.fakes.runner import FakeRunner
from tests.fakes.tiered import PROMPT, Bench


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """Starts engines and, at the end of the test, stops them and checks that nothing leaked."""
    with ExitStack() as stack:

        def make(
            runner: FakeRunner | None = None, wiring: Wiring | None = None, **options: object
        ) -> Harness:
            harness = Harness(
                FakeRunner(num_pages=128) if runner is None else runner, wiring or Wiring(), options
            )
            harness.engine.start()
            stack.callback(harness.stop)
            return harness

        yield make


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Opened at the end of the test, so that no thread stays behind."""
    made = Gate()
    yield made
    made.open()


@pytest.fixture
def warm() -> MemoryStore:
    """A store that knows the prompt up to its mark at 100."""
    store = MemoryStore(1 << 20)
    Bench(store).ask(PROMPT, marks=[100])
    return store
