"""A call on the default model, from the request to the next turn: forced, read, sent back,
and hit through.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig
from engine.constrain.grammars import Grammars
from engine.inbox import RenderedJob
from engine.messages import Submit, TextDelta, ToolCallDelta
from engine.model.load.load import load_runner
from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from engine.prompt.tokenizer import HfTokenizer
from engine.prompt.types import Message, Prompt, TextPart, Tool, ToolCallPart, ToolResultPart
from engine.types import CachePlan, Sampling, ToolChoice
from tests.fakes.stepper import Outcome, RealModel, Stepper

pytestmark = [pytest.mark.engine, pytest.mark.long]

CITY = {"type": "string", "enum": ["Paris", "Berlin", "서울"]}
WEATHER = Tool(
    "get_weather",
    "The weather of a city",
    {
        "type": "object",
        "properties": {"city": CITY, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
ASKED = Prompt(
    messages=(Message("user", (TextPart("What is the weather in Berlin?"),)),), tools=(WEATHER,)
)


def test_a_forced_call_and_its_next_turn(default_model: Path) -> None:
    """Even a model of 135M parameters answers with a valid call, and the next turn computes nothing
    again up to where its text is divided into other tokens: at most the brackets behind the
    arguments."""
    config = EngineConfig(
        model="m",
        model_path=str(default_model),
        root_secret=b"0123456789abcdef",
        context=1024,
        kv_nbytes=64 * 1024**2,
    )
    runner = load_runner(config)
    tokenizer = HfTokenizer.from_folder(default_model)
    renderer = Renderer(tokenizer, ChatTemplate.load("auto", default_model, tokenizer))
    grammars = Grammars(tokenizer.for_any_thread())
    stepper = Stepper(
        real=RealModel(runner, tokenizer, config.block_size), context=1024, max_step_tokens=512
    )

    def ask(prompt: Prompt, sampling: Sampling) -> Outcome:
        rendered = renderer.render(prompt)
        constraint = grammars.constraint(sampling, prompt.tools, rendered.syntax)
        request_id = str(len(stepper.outcomes))
        stepper.outcomes[request_id] = outcome = Outcome()
        submit = Submit(request_id, "t", prompt, CachePlan(any_prefix=True), sampling, 1000.0)
        stepper.loop.accept(RenderedJob(submit, rendered, 0.0, 0.0, constraint))
        stepper.run()
        return outcome

    choice = ToolChoice("required", ("get_weather",))
    outcome = ask(ASKED, Sampling(max_tokens=100, temperature=0.0, tool_choice=choice))
    deltas = [event for event in outcome.events if isinstance(event, ToolCallDelta)]
    assert [delta.name for delta in deltas if delta.name is not None] == ["get_weather"]
    arguments = json.loads("".join(delta.arguments for delta in deltas))
    assert arguments["city"] in CITY["enum"]
    assert not [event for event in outcome.events if isinstance(event, TextDelta) and event.text]
    assert (outcome.finished.reason, outcome.finished.num_output) == (
        "stop",
        len(outcome.token_ids),
    )

    turn = (
        Message("assistant", (ToolCallPart("toolu_1", "get_weather", arguments),)),
        Message("user", (ToolResultPart("toolu_1", "21 degrees"),)),
    )
    answered = msgspec.structs.replace(ASKED, messages=(*ASKED.messages, *turn))
    following = ask(answered, Sampling(max_tokens=1))
    known = [*renderer.render(ASKED).token_ids, *outcome.token_ids]
    again = renderer.render(answered).token_ids
    num_shared = next(
        (i for i, (one, other) in enumerate(zip(known, again, strict=False)) if one != other),
        len(known),
    )
    assert arguments["city"] in tokenizer.decode(
        again[outcome.started.report.num_prompt : num_shared]
    )
    assert following.started.report.skipped >= num_shared
    runner.close()
