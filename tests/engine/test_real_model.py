"""Promise 1 through the real step loop, cache and tiers, on the default model in exact mode:
a hit never changes the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.prompt.render import Renderer
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.template import ChatTemplate
from engine.prompt.types import Message, Position, Prompt, TextPart
from engine.store.base import BlockStore
from engine.store.disk.store import DiskStore
from engine.store.memory import MemoryStore
from engine.store.redis.store import RedisStore
from engine.types import CachePlan
from tests.fakes.exact_model import exact_model
from tests.fakes.redis_server import RedisServer
from tests.fakes.stepper import Outcome, RealModel, Stepper
from tests.fakes.tier_io import inline_tiers

pytestmark = pytest.mark.engine

SYSTEM = "You are the keeper of a lighthouse and answer in one sentence. " * 18
QUESTIONS = (
    "Who are you?",
    "What do you see at night, and what do you do about it?",
    "이름이 뭐예요?",
    "Count to five.",
)
SAMPLINGS: tuple[dict[str, object], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "top_p": 0.9, "seed": 1},
    {"temperature": 0.0, "repetition_penalty": 1.2},
)
MAX_TOKENS = 10


class Rows:
    """The logits of every token sampled, by request and number of tokens before it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], torch.Tensor] = {}

    def take(self, request_id: str, num_seen: int, row: torch.Tensor) -> None:
        """A guess that was wrong is overwritten by what comes in its place."""
        self._seen[request_id, num_seen] = row.clone()

    def of(self, stepper: Stepper, outcome: Outcome, num_prompt: int) -> torch.Tensor:
        """Those of an answer, `[tokens, vocab]`."""
        name = stepper.id_of(outcome)
        return torch.stack(
            [self._seen[name, num_prompt + i] for i in range(len(outcome.token_ids))]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """An answer computed alone, from its first token on, and the logits `[tokens, vocab]` it was
    sampled from."""

    token_ids: list[int]
    logits: torch.Tensor


@pytest.fixture(scope="module")
def rows() -> Rows:
    """What the model shows."""
    return Rows()


@pytest.fixture(scope="module")
def model(default_model: Path, rows: Rows) -> Iterator[RealModel]:
    """The default model, exact, with a pool of about 2,800 tokens."""
    with exact_model(default_model, 1024, rows.take) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def prompts(model: RealModel, default_model: Path) -> list[RenderedPrompt]:
    """Four questions under one system text that ends inside a block."""
    renderer = Renderer(model.tokenizer, ChatTemplate.load("auto", default_model, model.tokenizer))
    made = [
        renderer.render(Prompt((Message("user", (TextPart(text),)),), system=(TextPart(SYSTEM),)))
        for text in QUESTIONS
    ]
    assert made[0].offsets[Position("system", 0)] % model.block_size != 0
    return made


def ask(
    stepper: Stepper, prompts: list[RenderedPrompt], i: int, plan: CachePlan | None = None
) -> Outcome:
    """Hand in one of the questions, the system text marked."""
    mark = prompts[i].offsets[Position("system", 0)]
    options = {"marks": [mark], "max_tokens": MAX_TOKENS, "plan": plan, **SAMPLINGS[i]}
    return stepper.submit(prompts[i].token_ids, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def truth(model: RealModel, prompts: list[RenderedPrompt], rows: Rows) -> list[Truth]:
    """Every question's."""
    answers = []
    for i in range(len(QUESTIONS)):
        stepper = Stepper(real=model, context=1024, max_step_tokens=512)
        outcome = ask(stepper, prompts, i, CachePlan(read=False, store=False))
        stepper.run()
        answers.append(
            Truth(outcome.token_ids, rows.of(stepper, outcome, len(prompts[i].token_ids)))
        )
    return answers


@contextmanager
def opened(tier: str, folder: Path) -> Iterator[BlockStore]:
    """A store of the kind that a tier is; below the device there is one that is never read."""
    with ExitStack() as stack:
        match tier:
            case "ssd":
                yield stack.enter_context(DiskStore(folder, nbytes=256 * 1024**2))
            case "redis":
                server = stack.enter_context(RedisServer(folder))
                yield stack.enter_context(RedisStore(server.url, timeout_s=10.0))
            case _:
                yield stack.enter_context(MemoryStore(256 * 1024**2))


@pytest.mark.parametrize("tier", ["device", "ram", "ssd", "redis"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "batch of 4"])
def test_hits_answer_as_misses(
    model: RealModel,
    prompts: list[RenderedPrompt],
    truth: list[Truth],
    rows: Rows,
    tmp_path: Path,
    tier: str,
    *,
    together: bool,
) -> None:
    """Every token and every logit equals that of a cold run: read from the device, from the memory
    store, from files or from a real server, alone or with others, with other chunk sizes, greedy
    and sampled."""
    with opened(tier, tmp_path) as store:
        tiers = inline_tiers((tier, store))
        stepper = Stepper(
            real=model, context=1024, max_step_tokens=100, tiers=tiers, force_store=tier != "device"
        )
        first = ask(stepper, prompts, 0)
        stepper.run()
        assert first.token_ids == truth[0].token_ids
        outcomes = []
        for i in range(len(QUESTIONS)):
            outcomes.append(ask(stepper, prompts, i))
            if not together:
                stepper.run()
        stepper.run()
    mark = prompts[0].offsets[Position("system", 0)]
    for prompt, outcome, answer in zip(prompts, outcomes, truth, strict=True):
        report = outcome.started.report
        assert report.hit is not None
        assert report.hit.offset == mark <= report.skipped
        assert outcome.token_ids == answer.token_ids
        assert torch.equal(rows.of(stepper, outcome, len(prompt.token_ids)), answer.logits)
        if not together or outcome is outcomes[0]:
            assert report.tiers == {tier: report.skipped}


EIGHT: tuple[dict[str, object], ...] = (
    {"seed": 1, "temperature": 1.2},
    {"seed": 2, "top_p": 0.9, "presence_penalty": 0.5},
    {"seed": 3, "top_k": 40, "repetition_penalty": 1.2},
    {"seed": 4, "min_p": 0.05, "frequency_penalty": 0.3, "logit_bias": {198: 2.0}},
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.95},
    {"temperature": 0.0, "repetition_penalty": 1.3},
)


def test_a_seed_is_the_same_among_seven_others(
    model: RealModel, prompts: list[RenderedPrompt]
) -> None:
    """Four seeded answers with every sampling parameter between them: alone, and in a batch of
    eight that decode together."""
    alone = []
    for i in range(4):
        stepper = Stepper(real=model, context=1024, max_step_tokens=512)
        outcome = stepper.submit(prompts[i].token_ids[-40:], max_tokens=6, **EIGHT[i])
        stepper.run()
        alone.append(outcome.token_ids)
    stepper = Stepper(real=model, context=1024, max_step_tokens=512, max_sequences=8)
    together = [
        stepper.submit(prompts[i % 4].token_ids[-40:], max_tokens=6, **EIGHT[i]) for i in range(8)
    ]
    stepper.run()
    assert [outcome.token_ids for outcome in together[:4]] == alone
