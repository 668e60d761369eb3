"""The phases of a request in `Server-Timing` and the record: each has all of its time."""

from __future__ import annotations

import pytest

from gateway.serve.timings import Timings
from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import anthropic_body, openai_body, serving

MESSAGES, CHAT, COUNT = "/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens"
BESIDE = "backends: [{base_url: 'http://127.0.0.1:9', models: [{match: elsewhere}]}]"


def test_a_phase_that_is_entered_again_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time is not forgotten, other phases in between or not."""
    clock = iter([1.0, 3.0, 10.0, 10.5, 20.0, 24.0])
    monkeypatch.setattr(Timings, "elapsed_s", lambda timings: next(clock))
    timings = Timings(0.0)
    for name in ("parse", "plan", "parse"):
        with timings.phase(name):
            pass
    assert timings.shown() == {"parse": 6.0, "plan": 0.5}


def test_a_phase_that_raises_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is entered a second time."""
    clock = iter([1.0, 2.0, 5.0, 8.0])
    monkeypatch.setattr(Timings, "elapsed_s", lambda timings: next(clock))
    timings = Timings(0.0)
    for _ in range(2):
        with pytest.raises(ValueError), timings.phase("parse"):  # noqa: PT011 - its own, just below
            raise ValueError
    assert timings.phases == {"parse": 4.0}


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_parse_has_both_of_its_parts(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside an upstream a body is read for the model it names, and then as a whole: on a clock
    that goes on by a second whenever it is asked, the two take a second each."""
    body = anthropic_body() if path == MESSAGES else openai_body()
    async with serving(ScriptedBackend(), BESIDE) as served:
        seconds = iter(range(1000))
        monkeypatch.setattr(Timings, "elapsed_s", lambda timings: float(next(seconds)))
        async with served.http.post(path, json=body) as response:
            assert response.status == 200
            assert "parse;dur=2000.0" in response.headers["Server-Timing"]
        assert served.records[-1].phases["parse"] == 2.0


@pytest.mark.parametrize("path", [MESSAGES, CHAT, COUNT])
@pytest.mark.parametrize("body", [b"{", b'{"model":"claude-x","messages":7}'])
async def test_a_refused_request_has_its_phases(path: str, body: bytes) -> None:
    """The step that refused it has its time in the record, from which the metrics are made."""
    async with serving(ScriptedBackend()) as served:
        async with served.http.post(path, data=body) as response:
            assert response.status == 400
        phases = served.records[-1].phases
        assert set(phases) == {"read", "parse"}
        assert all(seconds > 0 for seconds in phases.values())
