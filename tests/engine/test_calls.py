"""Tool calls from the prompt to the events and back, through the real loop and cache: every format,
on a scripted runner."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.inbox import RenderedJob
from engine.messages import Submit, TextDelta, ToolCallDelta
from engine.prompt.types import Message, Prompt, TextPart, ThinkingPart, ToolCallPart
from engine.types import CachePlan, Sampling, ToolChoice
from tests.fakes.runner import FakeRunner
from tests.fakes.stepper import Outcome, RealModel, Stepper
from tests.prompt.kit import BYTES, RENDERERS, result, say, tool

END = BYTES.special_tokens["<|im_end|>"]
ASKED = Prompt(
    messages=(say("user", "How warm?"),), tools=(tool("weather", city={"type": "string"}),)
)
CALLS = [("weather", {"city": "Köln"}), ("weather", {"city": "<b>", "days": [1, {"x": "}"}]})]
FORMATS = {
    "chatml": "hermes",
    "plain": "hermes",
    "qwen3": "hermes",
    "phi": "hermes",
    "llama3": "llama3",
    "llama31": "llama3",
    "mistral": "mistral",
    "mistral3": "mistral_args",
}
"""Template -> its format: shipped ones, those in the style of models, and one (phi) that has no
place for tools."""


def answer_of(template: str, *, text: str = "") -> str:
    """Text and calls as the template's model writes them."""
    form = RENDERERS[template].render(ASKED).syntax.calls
    assert form is not None
    assert form.name == FORMATS[template]
    return text + form.text(
        [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in CALLS]
    )


class Chat:
    """A loop whose model answers with given tokens."""

    def __init__(self, template: str) -> None:
        runner = FakeRunner(num_pages=400, block_size=16)
        runner.script_end = END
        self.renderer = RENDERERS[template]
        self.stepper = Stepper(context=2000, max_step_tokens=512, real=RealModel(runner, BYTES, 16))

    def ask(self, prompt: Prompt, answer: str, **sampling: object) -> Outcome:
        """Hand `prompt` in; the model will say `answer` and end its turn."""
        script = BYTES.encode(answer)
        self.stepper.runner.script = lambda sequence: script
        request_id = str(len(self.stepper.outcomes))
        options: dict[str, object] = {"max_tokens": 999, **sampling}
        submit = Submit(
            request_id, "t", prompt, CachePlan(any_prefix=True), Sampling(**options), 1000.0
        )  # type: ignore[arg-type]
        self.stepper.outcomes[request_id] = outcome = Outcome()
        self.stepper.loop.accept(
            RenderedJob(submit, self.renderer.render(prompt), submitted_s=0.0, render_s=0.0)
        )
        return outcome

    def answer(self, prompt: Prompt, answer: str, **sampling: object) -> Outcome:
        """The same, to its end."""
        outcome = self.ask(prompt, answer, **sampling)
        self.stepper.run()
        return outcome


def calls_of(outcome: Outcome) -> list[tuple[str, str]]:
    """The calls in the events. Each begins once, in order, with its name, and is not gone back
    to."""
    calls: list[tuple[str, str]] = []
    for event in outcome.events:
        if isinstance(event, ToolCallDelta):
            if event.name is not None:
                assert event.index == len(calls)
                calls.append((event.name, ""))
            assert event.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + event.arguments)
    return calls


def thoughts_of(outcome: Outcome) -> tuple[str, str]:
    """Reasoning and text in the events."""
    deltas = [event for event in outcome.events if isinstance(event, TextDelta)]
    thoughts, text = (
        "".join(event.text for event in deltas if event.thinking is thinking)
        for thinking in (True, False)
    )
    return thoughts, text


@pytest.mark.parametrize("template", FORMATS)
def test_a_conversation_with_calls(template: str) -> None:
    """Events with the calls as they were written, every token counted once, and a next turn that
    hits through the answer."""
    chat = Chat(template)
    text = "" if template == "mistral" else "I look." if template == "mistral3" else "I look.\n"
    answer = answer_of(template, text=text)
    outcome = chat.answer(ASKED, answer)
    assert calls_of(outcome) == [
        (name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in CALLS
    ]
    assert thoughts_of(outcome) == ("", text.strip())
    assert outcome.token_ids == [*BYTES.encode(answer)]
    assert (outcome.finished.reason, outcome.finished.num_output) == (
        "stop",
        len(outcome.token_ids),
    )

    parts = [TextPart(text.strip())] if text else []
    parts += [ToolCallPart(f"c{i}", name, arguments) for i, (name, arguments) in enumerate(CALLS)]  # type: ignore[misc]
    turn = (Message("assistant", tuple(parts)), Message("user", (result(1, "21"),)))
    following = chat.answer(
        msgspec.structs.replace(ASKED, messages=(*ASKED.messages, *turn)), "Warm."
    )
    num_known = len(chat.renderer.render(ASKED).token_ids) + len(outcome.token_ids)
    if template == "mistral":  # its template gives each call an id that the model did not write
        num_known -= len(answer) - answer.index('}, {"name"')
    assert following.started.report.skipped >= num_known
    assert following.text == "Warm."


@given(st.sampled_from(list(FORMATS)), st.data())
@settings(max_examples=25)
def test_an_answer_that_ends_at_any_token(template: str, data: st.DataObject) -> None:
    """At its limit or cancelled, anywhere: no syntax is shown, no token lost, and what was told is
    the beginning of it all."""
    answer = answer_of(template, text="Hm.\n")
    num = data.draw(st.integers(1, len(BYTES.encode(answer)) - 1), label="tokens")
    chat = Chat(template)
    if data.draw(st.booleans(), label="cancelled"):
        outcome = chat.ask(ASKED, answer)
        while (
            len(outcome.token_ids) < num and not outcome.is_over
        ):  # several tokens may come in one step
            chat.stepper.step()
        if not outcome.is_over:
            chat.stepper.abort(outcome)
            chat.stepper.run()
            assert outcome.finished.reason == "cancelled"
        assert outcome.token_ids == [*BYTES.encode(answer)][: len(outcome.token_ids)]
        assert outcome.finished.num_output >= len(outcome.token_ids)
    else:
        outcome = chat.answer(ASKED, answer, max_tokens=num)
        assert outcome.finished.reason == "length"
        assert outcome.token_ids == [*BYTES.encode(answer)][:num]
        assert outcome.finished.num_output == num
    assert "Hm.\n".startswith(outcome.text)
    for (name, arguments), (whole, data_) in zip(calls_of(outcome), CALLS, strict=False):
        assert name == whole
        assert json.dumps(data_, ensure_ascii=False).startswith(arguments)


@pytest.mark.parametrize("template", FORMATS)
def test_no_calls_where_none_are_wanted(template: str) -> None:
    """With `tool_choice: none` the tools are still in the prompt, whose tokens are the same, and
    calls are text."""
    chat = Chat(template)
    wanted = chat.answer(ASKED, answer_of(template))
    outcome = chat.answer(ASKED, answer_of(template), tool_choice=ToolChoice("none"))
    assert (
        outcome.started.report.num_prompt
        == wanted.started.report.num_prompt
        == outcome.started.report.skipped + 1
    )
    assert calls_of(outcome) == []
    shown = answer_of(template)
    for control in BYTES.special_tokens:
        shown = shown.replace(control, "")
    assert outcome.text == shown


def test_reasoning_goes_on_behind_a_result() -> None:
    """Reasoning is told apart, comes back in front of the call, and the next turn hits through
    both."""
    chat = Chat("qwen3")
    answer = f"<think>\nIt is cold.\n</think>\n\n{answer_of('qwen3')}"
    outcome = chat.answer(ASKED, answer)
    assert thoughts_of(outcome) == ("It is cold.", "")
    assert outcome.token_ids == [*BYTES.encode(answer)]
    parts = (
        ThinkingPart("It is cold."),
        *(ToolCallPart(f"c{i}", *call) for i, call in enumerate(CALLS)),
    )
    turn = (Message("assistant", parts), Message("user", (result(1, "21"),)))
    following = chat.answer(
        msgspec.structs.replace(ASKED, messages=(*ASKED.messages, *turn)), "Warm."
    )
    assert following.started.report.skipped >= len(chat.renderer.render(ASKED).token_ids) + len(
        outcome.token_ids
    )
