"""Forms that take long to compile: only those who ask for them wait, and tenants wait in turns."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import BadTools, Overloaded
from engine.forms import FairQueue
from engine.messages import Failed, Finished, Submit
from engine.prompt.output_syntax import OutputSyntax
from engine.prompt.types import Message, Prompt, TextPart, Tool
from engine.types import CachePlan, OutputFormat, Sampling
from tests.fakes.constraint import OnlyThese
from tests.fakes.harness import MakeEngine, Wiring


@dataclass(frozen=True)
class GatedForm:
    """Compiles once the gate is open, or raises."""

    gate: threading.Event
    error: Exception | None
    is_at_hand: bool

    def constraint(self) -> OnlyThese:
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        return OnlyThese((97, 256))


@dataclass
class GatedForms:
    """Every form is the one of its regular expression: `slow`, `bad`, `full` or anything else,
    which is at hand."""

    gate: threading.Event
    closed: bool = False

    def form(
        self, sampling: Sampling, tools: Sequence[Tool], syntax: OutputSyntax
    ) -> GatedForm | None:
        if sampling.output_format is None:
            return None
        word = sampling.output_format.definition
        error = {"bad": BadTools("no tools"), "full": Overloaded("no room")}.get(word)
        at_hand = word == "known"
        opened = threading.Event()
        opened.set()
        return GatedForm(opened if at_hand else self.gate, error, at_hand)

    def close(self) -> None:
        self.closed = True


def submit(name: str, word: str | None, tenant: str = "t") -> Submit:
    form = None if word is None else OutputFormat("regex", word)
    prompt = Prompt((Message("user", (TextPart("Hello"),)),))
    return Submit(
        name, tenant, prompt, CachePlan(), Sampling(max_tokens=3, output_format=form), 1000.0
    )


def test_nobody_else_waits_for_a_form(make_engine: MakeEngine) -> None:
    """While one form is being compiled, requests without one and with a known one are answered;
    then it is its turn."""
    forms = GatedForms(threading.Event())
    harness = make_engine(wiring=Wiring(forms=forms))
    for name, word in (
        ("slow", "slow"),
        ("bad", "bad"),
        ("full", "full"),
        ("plain", None),
        ("known", "known"),
    ):
        harness.engine.submit(submit(name, word))
    for name in ("plain", "known"):
        assert isinstance(harness.log.wait_last(name), Finished)
    assert not harness.log.of("slow")
    forms.gate.set()
    assert isinstance(harness.log.wait_last("slow"), Finished)
    told = [harness.log.wait_last(name) for name in ("bad", "full")]
    assert [last.kind for last in told if isinstance(last, Failed)] == ["bad_tools", "overloaded"]
    harness.engine.close()
    assert harness.engine.join(30)
    assert forms.closed


def test_tenants_take_turns() -> None:
    """Whoever has put much waits behind himself."""
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.put(item[0], item)
    assert [queue.take() for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    queue.close()
    assert queue.take() is None
