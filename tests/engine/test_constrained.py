"""Answers in a form, through the whole engine: from the request to the events.

Real parts around a fake model.
"""

from __future__ import annotations

import json

import pytest

from engine.messages import Failed, Finished, Submit, TextDelta, ToolCallDelta, encode_frame
from engine.prompt.types import Message, Prompt, TextPart, Tool
from engine.types import CachePlan, OutputFormat, Sampling, ToolChoice
from tests.fakes.constraint import OnlyThese
from tests.fakes.harness import Harness, MakeEngine
from tests.fakes.runner import FakeRunner
from tests.fakes.stepper import Stepper

SCHEMA = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "city": {"enum": ["Paris", "서울"]},
    },
    "required": ["age", "city"],
    "additionalProperties": False,
}
TOOL = Tool("get_weather", "Weather of a city.", SCHEMA)


def ask(
    harness: Harness, request_id: str, tools: tuple[Tool, ...] = (), **sampling: object
) -> Finished | Failed:
    """One request from its submission to its last event."""
    prompt = Prompt((Message("user", (TextPart("Hello"),)),), tools=tools)
    options = Sampling(**({"max_tokens": 200} | sampling))  # type: ignore[arg-type]
    harness.engine.submit(Submit(request_id, "t", prompt, CachePlan(), options, 1000.0))
    last = harness.log.wait_last(request_id)
    assert isinstance(last, Finished | Failed)
    return last


def text(harness: Harness, request_id: str) -> str:
    """What a request was told."""
    return "".join(
        event.text for event in harness.log.of(request_id) if isinstance(event, TextDelta)
    )


def test_an_answer_in_a_schema(make_engine: MakeEngine) -> None:
    """The text is the object that was asked for, and ends by itself."""
    harness = make_engine(context=1000)
    last = ask(harness, "a", output_format=OutputFormat("json_schema", json.dumps(SCHEMA)))
    assert isinstance(last, Finished)
    assert last.reason == "stop"
    answer = json.loads(text(harness, "a"))
    assert 0 <= answer["age"] <= 99
    assert answer["city"] in ("Paris", "서울")


def test_an_answer_that_is_cut_is_too_long(make_engine: MakeEngine) -> None:
    """`max_tokens` ends an answer before its form is complete, and says so."""
    harness = make_engine()
    last = ask(harness, "a", output_format=OutputFormat("regex", "a{50}"), max_tokens=7)
    assert isinstance(last, Finished)
    assert (last.reason, text(harness, "a")) == ("length", "aaaaaaa")


@pytest.mark.parametrize(
    "choice",
    [ToolChoice("required", parallel=False), ToolChoice("required", ("get_weather",))],
    ids=str,
)
def test_a_forced_call(make_engine: MakeEngine, choice: ToolChoice) -> None:
    """The answer is one call of the tool, with arguments in its schema, and no text."""
    harness = make_engine(FakeRunner(num_pages=512), context=2000)
    last = ask(harness, "a", (TOOL,), tool_choice=choice, max_tokens=400)
    assert isinstance(last, Finished)
    assert last.reason in ("stop", "tool_calls")
    deltas = [event for event in harness.log.of("a") if isinstance(event, ToolCallDelta)]
    assert [delta.name for delta in deltas if delta.name] == ["get_weather"]
    assert json.loads("".join(delta.arguments for delta in deltas)).keys() == {"age", "city"}
    assert text(harness, "a").strip() == ""


@pytest.mark.parametrize("name", [r'"\\ud83d"', r"\[{1200}\]{1200}"], ids=["half a pair", "deep"])
def test_a_client_may_have_any_call_written(make_engine: MakeEngine, name: str) -> None:
    """What a regular expression makes of a call can be sent as it is, and the engine goes on."""
    harness = make_engine(FakeRunner(num_pages=1024), context=4000)
    form = OutputFormat("regex", rf'<tool_call>\{{"name": {name}, "arguments": \{{\}}\}}')
    assert isinstance(ask(harness, "a", (TOOL,), output_format=form, max_tokens=3000), Finished)
    assert text(harness, "a").startswith('<tool_call>{"name": ')
    assert all(map(encode_frame, harness.log.of("a")))
    assert isinstance(ask(harness, "b", max_tokens=1), Finished)


def test_a_format_that_cannot_be_kept_is_refused(make_engine: MakeEngine) -> None:
    """In the compiler's words, before anything is computed; the engine goes on."""
    harness = make_engine()
    assert ask(harness, "a", output_format=OutputFormat("regex", "[a")).kind == "bad_format"  # type: ignore[union-attr]
    assert harness.runner.steps[-1][0].sequence.request_id != "a"
    assert isinstance(ask(harness, "b", output_format=OutputFormat("regex", "a")), Finished)


class Exhausted(OnlyThese):
    """Gives up after two tokens."""

    def advance(self, token_id: int) -> None:
        super().advance(token_id)
        if len(self.taken) == 2:
            self.failure = "too complex"


def test_a_form_that_fails_ends_its_own_request_only() -> None:
    """The one is told why, after the text it had; the other's answer goes on."""
    stepper = Stepper()
    other = stepper.submit(list(b"hello"), max_tokens=6)
    failed = stepper.submit(list(b"what"), max_tokens=6, constraint=Exhausted({97}))
    stepper.run()
    assert (failed.failed.kind, failed.failed.message, failed.text) == (
        "bad_format",
        "too complex",
        "a",
    )
    assert len(other.token_ids) == 6
