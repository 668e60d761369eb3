"""The default model in a form: 135M parameters write what validates, every time,
within a small budget.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from engine.config import EngineConfig
from engine.constrain.grammars import Grammars
from engine.model.load.load import load_runner
from engine.prompt.call_format import HERMES
from engine.prompt.output_syntax import OutputSyntax
from engine.prompt.tokenizer import HfTokenizer
from engine.prompt.types import Tool
from engine.types import OutputFormat, Sampling, ToolChoice
from tests.fakes.call_text import calls_in
from tests.fakes.schemas import random_schema
from tests.fakes.stepper import Outcome, RealModel, Stepper

pytestmark = [pytest.mark.engine, pytest.mark.long]

MAX_TOKENS = 400
SEEDS = [range(first, first + 20) for first in range(0, 200, 20)]
"""Two hundred answers, as many at a time as a test has time for."""


@pytest.fixture(scope="module")
def model(default_model: Path, tokenizer: HfTokenizer) -> Iterator[RealModel]:
    """The default model as it is served."""
    config = EngineConfig(
        model="m",
        model_path=str(default_model),
        root_secret=b"0123456789abcdef",
        context=1024,
        kv_nbytes=256 * 1024**2,
    )
    runner = load_runner(config)
    yield RealModel(runner, tokenizer, config.block_size)
    runner.close()


def answer_all(
    model: RealModel, grammars: Grammars, asked: list[tuple[Sampling, list[Tool]]], seeds: range
) -> list[Outcome]:
    """All at once, each with a seed of its own."""
    stepper = Stepper(
        real=model,
        context=1024,
        max_sequences=len(asked),
        max_step_tokens=512,
        max_queue=len(asked),
    )
    prompt = model.tokenizer.encode(
        "<|im_start|>user\nFill in the form.<|im_end|>\n<|im_start|>assistant\n"
    )
    outcomes = []
    for seed, (sampling, tools) in zip(seeds, asked, strict=True):
        constraint = grammars.constraint(sampling, tools, OutputSyntax(HERMES))
        outcomes.append(
            stepper.submit(
                prompt, max_tokens=MAX_TOKENS, seed=seed, temperature=0.8, constraint=constraint
            )
        )
    stepper.run()
    return outcomes


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"from-{seeds.start}")
def test_schemas(model: RealModel, grammars: Grammars, seeds: range) -> None:
    """Every answer validates and ends by itself."""
    schemas = [random_schema(seed) for seed in seeds]
    asked = [
        Sampling(max_tokens=1, output_format=OutputFormat("json_schema", json.dumps(schema)))
        for schema in schemas
    ]
    for schema, outcome in zip(
        schemas, answer_all(model, grammars, [(one, []) for one in asked], seeds), strict=True
    ):
        assert outcome.finished.reason == "stop", (schema, outcome.text)
        Draft202012Validator(schema).validate(json.loads(outcome.text))


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"from-{seeds.start}")
def test_forced_calls(model: RealModel, grammars: Grammars, seeds: range) -> None:
    """Every answer is one call of a tool that was offered, with valid arguments."""
    offers = [
        [Tool(f"tool_{i}", "", random_schema(7 * seed + i)) for i in range(2)] for seed in seeds
    ]
    forced = Sampling(max_tokens=1, tool_choice=ToolChoice("required", parallel=False))
    for tools, outcome in zip(
        offers,
        answer_all(model, grammars, [(forced, tools) for tools in offers], seeds),
        strict=True,
    ):
        assert outcome.finished.reason in ("stop", "tool_calls"), outcome.text
        ((name, arguments),) = calls_in(HERMES, outcome.text)
        (schema,) = [tool.parameters for tool in tools if tool.name == name]
        Draft202012Validator(schema).validate(json.loads(arguments))
