"""The engine with its threads: who answers, when, and that nothing is left behind.

Real parts around a fake model.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence as Seq

import pytest

from engine.errors import BadPrompt, EngineError, Overloaded
from engine.messages import (
    Abort,
    Count,
    Counted,
    EngineStats,
    Failed,
    Finished,
    Flush,
    Flushed,
    Snapshot,
    Submit,
    Tick,
)
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart
from engine.schedule.sequence import Slice
from engine.stats import engine_numbers
from engine.types import CachePlan, PlannedEntry, Sampling
from engine.worker import JsonLines
from tests.fakes.gate import Gate
from tests.fakes.harness import MakeEngine, Wiring
from tests.fakes.runner import FakeRunner

SYSTEM = Position("system", 0)


def ask(text: str, system: str = "Be brief.") -> Prompt:
    return Prompt(
        (Message("user", (TextPart(text),)),), system=(TextPart(system, CacheMark(300.0)),)
    )


def submit(
    request_id: str, text: str = "Hello", *, max_tokens: int = 5, started_at_s: float = 1000.0
) -> Submit:
    plan = CachePlan(readable=(SYSTEM,), writable=(PlannedEntry(SYSTEM, 300.0),))
    return Submit(request_id, "t", ask(text), plan, Sampling(max_tokens=max_tokens), started_at_s)


def test_a_request_is_answered(make_engine: MakeEngine) -> None:
    """From prompt to text: the report, the deltas, the end."""
    harness = make_engine()
    harness.engine.submit(submit("a"))
    last = harness.log.wait_last("a")
    started = harness.log.wait_started("a")
    assert isinstance(last, Finished)
    assert (last.reason, last.num_output) == ("length", 5)
    assert len(harness.log.token_ids("a")) == 5
    assert started.report.skipped == 0
    assert [boundary.position for boundary in started.report.boundaries] == [SYSTEM]
    assert (
        min(started.render_s, started.match_s, started.queue_s, last.prefill_s, last.decode_s) >= 0
    )


def test_the_same_system_text_is_read_by_the_next_request(make_engine: MakeEngine) -> None:
    """The entry that one request wrote is the other's hit, to the token."""
    harness = make_engine()
    harness.engine.submit(submit("a", "one"))
    harness.log.wait_last("a")
    harness.engine.submit(submit("b", "two"))
    harness.log.wait_last("b")
    written, read = (harness.log.wait_started(name).report for name in "ab")
    assert read.hit is not None
    assert read.hit.offset == written.boundaries[0].offset


def test_requests_run_together(make_engine: MakeEngine) -> None:
    """Several requests at a time share steps, and each gets the answer it gets alone."""
    texts = ["one", "two two", "three three three", "four"]
    alone = make_engine()
    for i, text in enumerate(texts):
        alone.engine.submit(submit(str(i), text, max_tokens=20))
        alone.log.wait_last(str(i))
    together = make_engine()
    for i, text in enumerate(texts):
        together.engine.submit(submit(str(i), text, max_tokens=20))
    for i in range(len(texts)):
        together.log.wait_last(str(i))
        assert together.log.token_ids(str(i)) == alone.log.token_ids(str(i))


def test_counting_counts_what_submit_renders(make_engine: MakeEngine) -> None:
    """A count is the prompt total of the same prompt, and costs no step."""
    harness = make_engine()
    num_steps = len(harness.runner.steps)
    harness.engine.count(Count("c", ask("Hello")))
    counted = harness.log.wait_last("c")
    assert len(harness.runner.steps) == num_steps
    harness.engine.submit(submit("a", "Hello"))
    assert isinstance(counted, Counted)
    assert counted.num_prompt == harness.log.wait_started("a").report.num_prompt


def test_counting_goes_on_during_a_step(make_engine: MakeEngine, gate: Gate) -> None:
    """Counts never wait for the model."""
    harness = make_engine()
    harness.runner.before_step = gate
    harness.engine.submit(submit("a"))
    gate.wait_arrival()
    harness.engine.count(Count("c", ask("Hello")))
    assert isinstance(harness.log.wait_last("c"), Counted)
    gate.open()
    harness.log.wait_last("a")


# Aborts -------------------------------------------------------------------------------------------


class GatedRenderer:
    """Renders anything as three tokens, after standing at a gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def render(self, prompt: Prompt, now_s: float) -> RenderedPrompt:
        self._gate()
        return RenderedPrompt((1, 2, 3), {}, 0)


def test_an_abort_while_rendering_is_answered_at_once(make_engine: MakeEngine, gate: Gate) -> None:
    """One being rendered and one queued behind it end without waiting for the renderer, and are
    never computed."""
    harness = make_engine(wiring=Wiring(GatedRenderer(gate)))
    num_steps = len(harness.runner.steps)
    harness.engine.submit(submit("rendering"))
    harness.engine.submit(submit("queued"))
    gate.wait_arrival()
    for name in ("queued", "rendering"):
        harness.engine.abort(Abort(name))
        assert harness.log.wait_last(name) == Finished(name, "cancelled", 0)
    gate.open()
    harness.engine.submit(submit("next"))
    assert isinstance(harness.log.wait_last("next"), Finished)
    assert all(
        part.sequence.request_id == "next"
        for step in harness.runner.steps[num_steps:]
        for part in step
    )


def test_an_abort_in_decode_ends_within_a_step(make_engine: MakeEngine, gate: Gate) -> None:
    """The step in progress is the last: the client gets what was sampled, the rest stops."""
    harness = make_engine()
    harness.runner.before_step = gate
    harness.engine.submit(submit("a", max_tokens=300))
    for _ in range(5):
        gate.wait_arrival()
        gate.let_one_pass()
    gate.wait_arrival()
    harness.engine.abort(Abort("a"))
    num_steps = len(harness.runner.steps)
    gate.open()
    last = harness.log.wait_last("a")
    assert isinstance(last, Finished)
    assert (last.reason, last.num_output) == ("cancelled", len(harness.log.token_ids("a")))
    assert len(harness.runner.steps) == num_steps + 1


def test_aborting_what_is_not_there_does_nothing(make_engine: MakeEngine) -> None:
    """Unknown and finished ids are ignored."""
    harness = make_engine()
    harness.engine.submit(submit("a"))
    harness.log.wait_last("a")
    for name in ("a", "unknown"):
        harness.engine.abort(Abort(name))
    harness.engine.submit(submit("b"))
    harness.log.wait_last("b")
    assert harness.log.of("unknown") == []
    assert sum(isinstance(event, Finished) for event in harness.log.of("a")) == 1


# Refusals -----------------------------------------------------------------------------------------


class FailingRenderer:
    """Fails every prompt with the same error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def render(self, prompt: Prompt, now_s: float) -> RenderedPrompt:
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (BadPrompt("roles must alternate"), "bad_prompt", "roles must alternate"),
        (ValueError("secret text"), "internal", "ValueError while rendering the prompt"),
    ],
)
def test_a_prompt_that_cannot_be_rendered(
    make_engine: MakeEngine, error: Exception, kind: str, message: str
) -> None:
    """The template's words are the client's to read, those of an unforeseen error are not; the
    engine goes on."""
    harness = make_engine(wiring=Wiring(FailingRenderer(error)))
    harness.engine.submit(submit("a"))
    harness.engine.count(Count("c", ask("x")))
    for name in "ac":
        assert harness.log.wait_last(name) == Failed(name, kind, message)  # type: ignore[arg-type]


def test_too_many_requests_are_refused_at_the_door(make_engine: MakeEngine, gate: Gate) -> None:
    """Past the bound `submit` raises at once, without an event; what was taken in is served."""
    harness = make_engine(wiring=Wiring(GatedRenderer(gate)), max_queue=2, max_sequences=1)
    for i in range(3):
        harness.engine.submit(submit(str(i)))
    with pytest.raises(Overloaded):
        harness.engine.submit(submit("one more"))
    with pytest.raises(Overloaded):
        harness.engine.count(Count("a count", ask("x")))
    gate.open()
    for i in range(3):
        assert isinstance(harness.log.wait_last(str(i)), Finished)
    assert harness.log.of("one more") == []


def test_an_id_in_flight_is_refused(make_engine: MakeEngine, gate: Gate) -> None:
    """Two answers under one id could not be told apart."""
    harness = make_engine()
    harness.runner.before_step = gate
    harness.engine.submit(submit("a"))
    with pytest.raises(EngineError, match="in flight"):
        harness.engine.submit(submit("a"))


# Questions, time, end -----------------------------------------------------------------------------


def test_a_snapshot_has_every_documented_name(make_engine: MakeEngine) -> None:
    """The tables of `engine/stats.py` are complete, and the counts are those of the requests."""
    harness = make_engine()
    for name in "ab":
        harness.engine.submit(submit(name))
        harness.log.wait_last(name)
    harness.engine.ask(Snapshot("s"))
    stats = harness.log.wait_last("s")
    assert isinstance(stats, EngineStats)
    keys = {
        kind: {n.key for n in engine_numbers() if n.kind == kind} for kind in ("counter", "gauge")
    }
    assert {"counter": set(stats.counters), "gauge": set(stats.gauges)} == keys
    reports = [harness.log.wait_started(name).report for name in "ab"]
    num_prompt, num_skipped = sum(r.num_prompt for r in reports), sum(r.skipped for r in reports)
    assert num_skipped > 0
    assert stats.counters["engine_requests_total"] == 2
    assert stats.counters["engine_skipped_tokens_total"] == num_skipped
    assert stats.counters["engine_prefill_tokens_total"] == num_prompt - num_skipped
    assert stats.counters["engine_output_tokens_total"] == 10
    assert stats.counters["engine_decode_tokens_total"] == 8
    assert stats.gauges["engine_open"] == 0


def test_time_passes_by_ticks(make_engine: MakeEngine) -> None:
    """An entry is a hit until its TTL is over, by the clock that ticks and requests carry."""
    harness = make_engine()
    harness.engine.submit(submit("a", started_at_s=1000.0))
    harness.log.wait_last("a")
    hits = []
    for name, now_s in (("b", 1299.0), ("c", 1598.0), ("d", 1900.0)):
        harness.engine.tick(Tick(now_s))
        harness.engine.submit(submit(name, started_at_s=now_s))
        harness.log.wait_last(name)
        hits.append(harness.log.wait_started(name).report.hit is not None)
    assert hits == [True, True, False]


def test_a_flush_is_answered_and_forgets(make_engine: MakeEngine) -> None:
    """After a flush the next request computes everything."""
    harness = make_engine()
    harness.engine.submit(submit("a"))
    harness.log.wait_last("a")
    harness.engine.ask(Flush("f"))
    flushed = harness.log.wait_last("f")
    assert isinstance(flushed, Flushed)
    assert flushed.num_blocks > 0
    harness.engine.submit(submit("b"))
    assert harness.log.wait_started("b").report.skipped == 0
    harness.log.wait_last("b")


def test_closing_cancels_what_is_in_flight(make_engine: MakeEngine, gate: Gate) -> None:
    """Every open request gets its last event; later ones are refused."""
    harness = make_engine(max_sequences=1)
    harness.runner.before_step = gate
    for name in "abc":
        harness.engine.submit(submit(name, max_tokens=100))
    gate.wait_arrival()
    harness.engine.close()
    gate.open()
    for name in "abc":
        last = harness.log.wait_last(name)
        assert isinstance(last, Finished)
        assert last.reason == "cancelled"
    with pytest.raises(EngineError, match="closed"):
        harness.engine.submit(submit("d"))


def test_an_idle_engine_makes_no_steps(make_engine: MakeEngine) -> None:
    """Ticks alone compute nothing."""
    harness = make_engine()
    num_steps = len(harness.runner.steps)
    for i in range(100):
        harness.engine.tick(Tick(1000.0 + i))
    harness.engine.ask(Snapshot("s"))
    harness.log.wait_last("s")
    assert len(harness.runner.steps) == num_steps


# Errors -------------------------------------------------------------------------------------------


def always_fail(slices: Seq[Slice]) -> None:
    raise RuntimeError("device trouble")


def test_a_useless_engine_answers_everybody_and_says_so(make_engine: MakeEngine) -> None:
    """After two failed steps in a row: `Failed` for all in flight, `on_fatal`, and nothing more is
    taken in."""
    harness = make_engine(max_sequences=1)
    harness.runner.before_step = always_fail
    for name in "abc":
        harness.engine.submit(submit(name))
    for name in "abc":
        last = harness.log.wait_last(name)
        assert isinstance(last, Failed)
        assert last.kind == ("internal" if name != "c" else "fatal")
    assert harness.engine.join(30)
    assert [str(error) for error in harness.fatal] == ["device trouble"]
    assert harness.engine.failure is harness.fatal[0]
    with pytest.raises(EngineError, match="closed"):
        harness.engine.submit(submit("d"))


def test_a_model_that_cannot_warm_up_does_not_start(make_engine: MakeEngine) -> None:
    """`start` raises what the first step raised."""
    runner = FakeRunner()
    runner.before_step = always_fail
    with pytest.raises(RuntimeError, match="device trouble"):
        make_engine(runner)
    assert runner.is_closed


def test_no_thread_stays_behind(make_engine: MakeEngine) -> None:
    """After `join` the engine's threads are gone."""
    before = set(threading.enumerate())
    harness = make_engine()
    harness.engine.submit(submit("a"))
    harness.stop()
    assert set(threading.enumerate()) <= before


class Panic(BaseException):
    """As a panic of a library in Rust arrives: no `Exception`."""


class PanickingRenderer:
    """Panics at the first prompt, with words from it."""

    def __init__(self) -> None:
        self.num_prompts = 0

    def render(self, prompt: Prompt, now_s: float) -> RenderedPrompt:
        self.num_prompts += 1
        if self.num_prompts == 1:
            raise Panic(f"byte index 5 is not a char boundary of {prompt!r}")
        return RenderedPrompt((1, 2, 3), {}, 0)


def test_a_panic_while_rendering_costs_one_request(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """The render thread goes on with the next prompt. The log says what and where, and nothing of
    the prompt."""
    harness = make_engine(wiring=Wiring(PanickingRenderer()))
    for name in "ab":
        harness.engine.submit(submit(name, "a-secret"))
    first = harness.log.wait_last("a")
    assert isinstance(first, Failed)
    assert first.kind == "internal"
    assert isinstance(harness.log.wait_last("b"), Finished)
    (line,) = [
        JsonLines().format(record) for record in caplog.records if record.levelname == "ERROR"
    ]
    assert "Panic" in line
    assert "test_core.py" in line
    assert "a-secret" not in line


def test_a_panic_in_a_step_ends_the_engine_in_words(make_engine: MakeEngine) -> None:
    """Nobody waits for a thread that is gone."""

    def panic(slices: Seq[Slice]) -> None:
        raise Panic

    harness = make_engine()
    harness.runner.before_step = panic
    harness.engine.submit(submit("a"))
    assert isinstance(harness.log.wait_last("a"), Failed)
    assert harness.engine.join(30)
    assert isinstance(harness.engine.failure, Panic)
    assert harness.fatal == [harness.engine.failure]
