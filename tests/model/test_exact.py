"""Exact mode: logits, tokens and KV are the same bits however a sequence comes to be computed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.schedule.sequence import Sequence, Slice
from tests.fakes.native import NEEDS_NATIVE
from tests.fakes.tiny_models import FAMILIES, LEAN_FAMILIES, VOCABULARY
from tests.fakes.torch_driver import Driver

pytestmark = pytest.mark.engine

PAGE = 16
NUM_PROMPT = 530
"""Past one padding step of 512 keys, past four row groups of 128, and not a multiple of a page."""
NUM_OUTPUT = 6
TOKENS = tuple(random.Random(1).choices(range(VOCABULARY), k=NUM_PROMPT))
OTHER = tuple(random.Random(2).choices(range(VOCABULARY), k=77))
NUM_PAGES = -(-(NUM_PROMPT + NUM_OUTPUT) // PAGE)


class Cold:
    """A driver, and what a cold run alone in one step gave: the truth every other run must
    repeat."""

    def __init__(self, folder: Path, dtype: str, runner: str) -> None:
        self.driver = Driver(folder, dtype=dtype, exact="on", runner=runner)
        self.generic = runner == "generic"
        self.pages = list(range(NUM_PAGES))
        self.sequence = self.driver.sequence("cold", TOKENS, self.pages)
        self.driver.prefill(self.sequence)
        self.driver.decode([self.sequence], NUM_OUTPUT - 1)
        self.logits = self.driver.logits["cold"]
        self.kv = self.driver.runner.read_pages(self.pages[: NUM_PROMPT // PAGE])

    def check(self, sequence: Sequence, first: int = NUM_PROMPT) -> None:
        """The sequence's tokens and all its logits from `first` on are the cold run's, bit for
        bit."""
        assert sequence.token_ids == self.sequence.token_ids
        got = self.driver.logits[sequence.request_id]
        assert [n for n in got if n >= first] == list(range(first, NUM_PROMPT + NUM_OUTPUT))
        for num_seen, row in got.items():
            assert torch.equal(row, self.logits[num_seen]), f"logits after {num_seen} tokens"

    def finish(self, sequence: Sequence, start: int) -> None:
        """Prefill from `start`, decode, check."""
        self.driver.prefill(sequence, start)
        self.driver.decode([sequence], NUM_OUTPUT - 1)
        self.check(sequence)


MODELS = [
    *(("generic", *model) for model in itertools.product(FAMILIES, ("bfloat16", "float32"))),
    *(pytest.param(("native", family, "bfloat16"), marks=NEEDS_NATIVE) for family in LEAN_FAMILIES),
]


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def cold(request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path]) -> Iterator[Cold]:
    """One loaded model per runner, family and dtype."""
    runner, family, dtype = request.param
    made = Cold(tiny_folder(family), dtype, runner)
    yield made
    made.driver.runner.close()


@pytest.mark.parametrize("prefix", [16, 128, 512, 5, 127, 301, NUM_PROMPT - 1])
def test_hit_on_shared_pages(cold: Cold, prefix: int) -> None:
    """A prefix found in another sequence's pages, its last partial page copied, changes nothing."""
    whole = prefix // PAGE
    pages = cold.pages[:whole] + list(range(100, 100 + NUM_PAGES - whole))
    if prefix % PAGE:
        cold.driver.runner.copy_page(cold.pages[whole], 100, prefix % PAGE)
    cold.finish(cold.driver.sequence("hit", TOKENS, pages), prefix)


@pytest.mark.parametrize("prefix", [160, 333])
def test_hit_on_pages_written_from_bytes(cold: Cold, prefix: int) -> None:
    """Pages read as bytes and written elsewhere, in any order, carry the same KV."""
    num_read = -(-prefix // PAGE)
    target = list(range(100, 100 + NUM_PAGES))[::-1]
    body = cold.driver.runner.read_pages(cold.pages[:num_read])
    cold.driver.runner.write_pages(target[:num_read], body)
    assert cold.driver.runner.read_pages(target[:num_read]) == body
    cold.finish(cold.driver.sequence("bytes", TOKENS, target), prefix)


def test_kv_of_any_split_is_the_same_bytes(cold: Cold) -> None:
    """Prompt pages hold the same bytes when the prompt is cut off every border and pages are
    scattered."""
    pages = random.Random(3).sample(range(100, 300), NUM_PAGES)
    sequence = cold.driver.sequence("split", TOKENS, pages)
    cold.driver.prefill(sequence, 0, cuts=(1, 3, 20, 131, 257, 511, 513))
    assert cold.driver.runner.read_pages(pages[: NUM_PROMPT // PAGE]) == cold.kv


def test_batch_does_not_matter(cold: Cold) -> None:
    """Beside two other sequences, in prefill and in decode, every row is what it is alone."""
    driver = cold.driver
    mine = driver.sequence("mine", TOKENS, range(100, 100 + NUM_PAGES))
    others = [
        driver.sequence(f"other{index}", OTHER, range(200 + 10 * index, 206 + 10 * index))
        for index in (0, 1)
    ]
    steps = [
        [Slice(others[0], 0, 77, True), Slice(mine, 0, 90, False)],
        [Slice(mine, 90, 400, False), Slice(others[1], 0, 60, False)],
        [Slice(others[1], 60, 17, True), Slice(mine, 490, NUM_PROMPT - 490, True)],
    ]
    for slices in steps:
        for piece, token in zip(slices, driver.runner.step(slices), strict=True):
            if piece.sample:
                assert token is not None
                piece.sequence.token_ids += token.token_ids
    driver.decode([others[0], mine, others[1]], NUM_OUTPUT - 1)
    cold.check(mine)
    assert torch.equal(driver.logits["other0"][80], driver.logits["other1"][80])


def test_recomputed_after_preemption(cold: Cold) -> None:
    """A sequence that lost its pages while generating computes the same bits again, generated
    tokens included."""
    sequence = cold.driver.sequence(
        "again", cold.sequence.token_ids[:-1], range(100, 100 + NUM_PAGES), NUM_PROMPT
    )
    cold.driver.prefill(sequence, 0, cuts=(200, NUM_PROMPT + 2))
    cold.check(sequence, NUM_PROMPT + NUM_OUTPUT - 1)
    assert cold.driver.runner.read_pages(
        range(100, 100 + NUM_PAGES - 1)
    ) == cold.driver.runner.read_pages(cold.pages[:-1])


def test_neighbouring_garbage_does_not_matter(cold: Cold) -> None:
    """Pages around a sequence full of huge values, and of what came as NaN, do not reach it."""
    driver = cold.driver
    nan = (
        torch.full((driver.runner.page_nbytes // 4,), float("nan"))
        .view(torch.uint8)
        .numpy()
        .tobytes()
    )
    huge = (
        torch.full((driver.runner.page_nbytes // 2,), 1e30, dtype=torch.bfloat16)
        .view(torch.uint8)
        .numpy()
        .tobytes()
    )
    pages = list(range(100, 100 + NUM_PAGES))
    around = [*range(80, 100), *range(100 + NUM_PAGES, 180)]
    driver.runner.write_pages(
        around, memoryview(b"".join(nan if page % 2 else huge for page in around))
    )
    cold.finish(driver.sequence("beside", TOKENS, pages), 0)
    assert all(bool(row.isfinite().all()) for row in driver.logits["beside"].values())


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, NUM_PROMPT - 1), max_size=6, unique=True).map(sorted))
def test_any_split(cold: Cold, cuts: list[int]) -> None:
    """Any split into steps gives the cold run's logits."""
    sequence = cold.driver.sequence("cuts", TOKENS, range(100, 100 + NUM_PAGES))
    token = cold.driver.prefill(sequence, 0, cuts)
    assert token == cold.sequence.token_ids[NUM_PROMPT]
    assert torch.equal(cold.driver.logits["cuts"][NUM_PROMPT], cold.logits[NUM_PROMPT])


def test_generated_kv_is_reusable_where_it_is_the_same(cold: Cold) -> None:
    """Row groups differ between prompt and output, and their runner says so; else what was
    generated has a prompt's bits."""
    assert cold.driver.runner.exact
    assert cold.driver.runner.reuse_decode_kv != cold.generic
    if cold.generic:
        return
    ids = cold.sequence.token_ids[:-1]
    prompt = cold.driver.sequence("prompt", ids, range(100, 100 + NUM_PAGES))
    cold.driver.prefill(prompt)
    assert torch.equal(cold.driver.logits["prompt"][len(ids)], cold.logits[len(ids)])
    assert cold.driver.runner.read_pages(range(100, 133)) == cold.driver.runner.read_pages(
        cold.pages[:33]
    )


def test_threads_do_not_matter(cold: Cold) -> None:
    """The native runner gives the same bits on one thread and on three, and its KV is theirs,
    too."""
    if cold.generic:
        pytest.skip("row groups are exact for one number of threads")
    for num_threads in (1, 3):
        driver = Driver(
            Path(cold.driver.config.model_path),
            exact="on",
            runner="native",
            num_threads=num_threads,
        )
        driver.prefill(driver.sequence("other", TOKENS, range(50)))
        assert torch.equal(driver.logits["other"][NUM_PROMPT], cold.logits[NUM_PROMPT])
        assert driver.runner.fingerprint == cold.driver.runner.fingerprint
        driver.runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["generic", pytest.param("native", marks=NEEDS_NATIVE)])
def test_default_model_hit_equals_miss(default_model: Path, runner: str) -> None:
    """On the real model: a hit off a block border, in scattered pages and a batch, gives the miss's
    bits."""
    driver = Driver(default_model, exact="on", runner=runner, context=1024, kv_nbytes=400 * 368_640)
    tokens = [int(token * 96) for token in TOKENS[:290]]
    cold = driver.sequence("cold", tokens, range(20))
    driver.prefill(cold)
    driver.decode([cold], 4)
    driver.runner.copy_page(12, 60, 201 % PAGE)
    hit = driver.sequence("hit", tokens, [*range(12), *range(60, 80)])
    other = driver.sequence("other", tokens[:40], range(100, 110))
    first, second = driver.runner.step([Slice(other, 0, 40, True), Slice(hit, 201, 89, True)])
    assert first is not None
    assert second is not None
    other.token_ids += first.token_ids
    hit.token_ids += second.token_ids
    driver.decode([hit, other], 4)
    assert hit.token_ids == cold.token_ids
    assert all(
        torch.equal(driver.logits["hit"][n], driver.logits["cold"][n]) for n in range(290, 295)
    )
    driver.runner.close()
