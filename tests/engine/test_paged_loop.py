"""The step loop over a device with large pages,
recorded decode steps and copies beside what computes.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest

from engine.config import EngineConfig
from engine.messages import Finished, Submit
from engine.model.load.load import load_runner
from engine.model.paged.cuda import DeviceFeatures
from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart
from engine.store.memory import MemoryStore
from engine.types import CachePlan, PlannedEntry, Sampling
from engine.worker import build_engine
from tests.fakes.events import EventLog
from tests.fakes.paged_device import FakeCopies, FakeRecorder, eager_varlen
from tests.fakes.stepper import RealModel, Stepper
from tests.fakes.tier_io import inline_tiers
from tests.fakes.tiny_models import VOCABULARY, save_tiny_model
from tests.fakes.tokenizer import ByteTokenizer

pytestmark = pytest.mark.engine

PROMPT: Final = random.Random(3).choices(range(3, 250), k=330)


def large_pages(query: Any, key: Any, *rest: Any, **options: Any) -> Any:
    """A kernel that takes pages of 256 tokens, as FlashAttention 2."""
    if key.shape[1] % 256:
        raise RuntimeError("Paged KV cache block size must be divisible by 256")
    return eager_varlen(query, key, *rest, **options)


def config(folder: Path, **options: Any) -> EngineConfig:
    return EngineConfig(
        model="m",
        model_path=str(folder),
        root_secret=b"0123456789abcdef",
        dtype="float32",
        runner="lean",
        context=512,
        kv_nbytes=16 * 1024**2,
        max_sequences=4,
        num_threads=1,
        **options,
    )


def test_hits_from_the_tier_above_answer_as_misses(tmp_path: Path) -> None:
    """Read through pinned memory while others decode, on and off a page's border: the answers of
    requests alone."""
    copies, recorder = FakeCopies(), FakeRecorder()
    folder = save_tiny_model("llama", tmp_path)
    runner = load_runner(config(folder), features=DeviceFeatures(large_pages, recorder, copies))
    model = RealModel(runner, ByteTokenizer(), runner.page_size)
    assert (runner.page_size, max(PROMPT) < VOCABULARY) == (256, True)
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0}
    prompts = [[*PROMPT[:300], *PROMPT[i : i + 9]] for i in range(3)]
    truths = [
        Stepper(real=model, context=512, max_step_tokens=300).answer(
            prompt, plan=CachePlan(read=False, store=False), **options
        )
        for prompt in prompts
    ]
    store = MemoryStore(1 << 24)
    stepper = Stepper(
        real=model,
        context=512,
        max_step_tokens=300,
        tiers=inline_tiers(("ram", store)),
        force_store=True,
        max_sequences=4,
    )
    assert stepper.answer(PROMPT, marks=[300], **options).started.report.hit is None
    outcomes = [stepper.submit(prompt, marks=[300], **options) for prompt in prompts]
    stepper.run()
    for outcome, truth in zip(outcomes, truths, strict=True):
        assert outcome.started.report.skipped == 300
        assert outcome.token_ids == truth.token_ids
    assert outcomes[0].started.report.tiers == {"ram": 300}
    assert copies.num_held > 0
    assert sum(graph.num_replays for graph in recorder.graphs) > 6
    runner.close()


def test_an_engine_takes_the_pages_that_its_device_needs(small_model: Path) -> None:
    """Blocks of its cache are pages of the runner, whatever size was asked for: it answers, and
    reads to the token."""
    log = EventLog()
    settings = config(small_model)
    runner = load_runner(
        settings, features=DeviceFeatures(large_pages, FakeRecorder(), FakeCopies())
    )
    assert (settings.block_size, runner.page_size) == (16, 256)
    system = Position("system", 0)
    plan = CachePlan(readable=(system,), writable=(PlannedEntry(system, 300.0),))
    with build_engine(settings, log, runner=runner) as engine:
        for name in "ab":
            prompt = Prompt(
                (Message("user", (TextPart(name),)),),
                system=(TextPart("Be brief. " * 100, CacheMark(300.0)),),
            )
            engine.submit(
                Submit(name, "t", prompt, plan, Sampling(max_tokens=3), started_at_s=1000.0)
            )
            assert isinstance(log.wait_last(name), Finished)
    written, read = (log.wait_started(name).report for name in "ab")
    assert read.hit is not None
    assert read.hit.offset == written.boundaries[0].offset > 256
