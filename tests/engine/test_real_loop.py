"""Single-flight, preemption and guessing on the default model in exact mode:
the answers are those of a request alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.prompt.render import Renderer
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.template import ChatTemplate
from engine.prompt.types import Message, Prompt, TextPart
from engine.types import CachePlan
from tests.fakes.exact_model import exact_model
from tests.fakes.stepper import Outcome, RealModel, Stepper

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

NO_CACHE = CachePlan(read=False, store=False)
CONTEXT = 2200
TEXT = (
    "The keeper climbs the 142 steps at 18:40, checks lamp K-77 and writes the wind into "
    "ledger 3b. "
)


@pytest.fixture(scope="module")
def model(default_model: Path) -> Iterator[RealModel]:
    """The default model, exact, with a pool of about 2,800 tokens."""
    with exact_model(default_model, CONTEXT) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def render(model: RealModel, default_model: Path) -> Renderer:
    return Renderer(model.tokenizer, ChatTemplate.load("auto", default_model, model.tokenizer))  # type: ignore[arg-type]


def tokens(render: Renderer, text: str) -> list[int]:
    return list(render.render(Prompt((Message("user", (TextPart(text),)),))).token_ids)


def stepper(model: RealModel, **options: object) -> Stepper:
    options = {"max_step_tokens": 512, "max_sequences": 32, "max_queue": 64, **options}
    return Stepper(real=model, context=CONTEXT, **options)  # type: ignore[arg-type]


def run(engine: Stepper) -> None:
    """To the end; the cache is checked there, not in every step."""
    while engine.loop.has_work:
        engine.loop.step()
    engine.loop.check()


def alone(model: RealModel, prompt: list[int], **options: object) -> list[int]:
    engine = stepper(model, speculation=False)
    outcome = engine.submit(prompt, plan=NO_CACHE, **options)  # type: ignore[arg-type]
    run(engine)
    return outcome.token_ids


@pytest.mark.parametrize("cancel_at", [None, 0.6])
def test_64_identical_cold_prompts(
    model: RealModel, render: Renderer, cancel_at: float | None
) -> None:
    """2,000 tokens are computed once, and one more for each of the others; also where the first is
    cancelled at 60 %."""
    prompt = tokens(render, TEXT * 70)[:2000]
    truth = alone(model, prompt, max_tokens=4, temperature=0.0)
    engine = stepper(model)
    outcomes = [engine.submit(prompt, max_tokens=4, temperature=0.0) for _ in range(64)]
    counters = engine.loop.stats.counters
    if cancel_at is not None:
        while counters["engine_prefill_tokens_total"] < cancel_at * len(prompt):
            engine.loop.step()
        engine.abort(outcomes.pop(0))
    run(engine)
    assert counters["engine_prefill_tokens_total"] == 2000 + len(outcomes) - 1
    assert [outcome.token_ids for outcome in outcomes] == [truth] * len(outcomes)


SAMPLINGS: tuple[dict[str, object], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 5},
    {"temperature": 0.0, "repetition_penalty": 1.1},
)


def test_preempted_answers(model: RealModel, render: Renderer) -> None:
    """Three answers in a pool too small for them, greedy, seeded and penalized: bit-equal to those
    of an engine alone."""
    prompts = [
        [1000 + i, *tokens(render, TEXT * 4 + "What does the keeper do next?")]
        for i in range(len(SAMPLINGS))
    ]
    engine = stepper(model, answer_tokens=16, speculation=False)
    num_first = sum(-(-(len(prompt) + 16) // model.block_size) for prompt in prompts)
    num_others = (model.runner.num_pages - num_first - len(prompts)) * model.block_size
    lookup = engine.cache.lookup("others", RenderedPrompt((1,), {}, 0), NO_CACHE, 1000.0)
    others = engine.cache.admit(lookup, num_reserve=num_others)
    assert others is not None
    asked = list(zip(prompts, SAMPLINGS, strict=True))
    outcomes = [
        engine.submit(prompt, max_tokens=64, ignore_eos=True, **sampling)
        for prompt, sampling in asked
    ]  # type: ignore[arg-type]
    run(engine)
    assert engine.loop.stats.counters["engine_preempted_total"] > 0
    # Where generated KV is a prompt's, what a preempted answer had is found again.
    assert (
        engine.loop.stats.counters["engine_recomputed_tokens_total"] > 0
    ) != model.runner.reuse_decode_kv
    for (prompt, sampling), outcome in zip(asked, outcomes, strict=True):
        assert outcome.token_ids == alone(model, prompt, max_tokens=64, ignore_eos=True, **sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded", "penalized"])
def test_guessed_answers(model: RealModel, render: Renderer, sampling: dict[str, object]) -> None:
    """Repeating a text is mostly guessed right, and says the same as without guesses."""
    prompt = tokens(render, "Repeat this text word for word:\n" + TEXT * 2)
    engine = stepper(model)
    outcome: Outcome = engine.submit(prompt, max_tokens=48, **sampling)
    run(engine)
    counters = engine.loop.stats.counters
    assert outcome.token_ids == alone(model, prompt, max_tokens=48, **sampling)
    if sampling["temperature"] == 0.0 and "repetition_penalty" not in sampling:
        assert counters["engine_accepted_tokens_total"] > 20
