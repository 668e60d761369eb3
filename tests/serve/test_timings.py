"""Seconds by phase: an amount for every time it was entered."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import InvalidRequest
from gateway.serve.timings import Timings
from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import ANTHROPIC, serving


class SteppingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock goes on by a second with every look at it."""

    now_s = 0.0

    def time(self) -> float:
        self.now_s += 1.0
        return self.now_s


def test_a_phase_adds_up() -> None:
    """Entered twice it is the sum, and one that raises has its time too."""
    timings = Timings(0.0)

    async def work() -> None:
        for _ in range(2):
            with timings.phase("parse"):
                pass
        with pytest.raises(InvalidRequest), timings.phase("plan"):
            raise InvalidRequest("no")

    with asyncio.Runner(loop_factory=SteppingLoop) as runner:
        runner.run(work())
    assert timings.phases["parse"] == 2 * timings.phases["plan"] > 0


def test_the_first_token_counts() -> None:
    """Later ones change nothing."""
    timings = Timings(0.0)

    async def work() -> None:
        timings.first_token()
        first = timings.ttft_s
        timings.first_token()
        assert first == timings.ttft_s
        assert timings.shown(decode=2.0) == {"decode": 2.0, "ttft": first}

    with asyncio.Runner(loop_factory=SteppingLoop) as runner:
        runner.run(work())


@pytest.mark.parametrize("body", [b"{", b'{"model":"claude-sonnet-5","max_tokens":0}'])
async def test_a_refused_request_has_its_phase(body: bytes) -> None:
    """The time that parsing took before it failed is in the record."""
    async with serving(ScriptedBackend()) as served:
        async with served.http.post("/v1/messages", data=body, headers=ANTHROPIC) as response:
            assert response.status == 400
        assert list(served.records[-1].phases) == ["read", "parse"]


async def test_counting_has_its_phases() -> None:
    """Also of a request whose tokens are only counted."""
    async with serving(ScriptedBackend()) as served:
        body = {"model": "claude-sonnet-5", "messages": [{"role": "user", "content": "Hi"}]}
        async with served.http.post(
            "/v1/messages/count_tokens", json=body, headers=ANTHROPIC
        ) as response:
            assert response.status == 200
        assert list(served.records[-1].phases) == ["read", "parse"]
