"""The native forward pass refuses what would lead the library outside of its memory,
and weights that do not fit together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.errors import ModelUnsupported
from engine.model.llama.weights import LlamaWeights, fuse_weights
from engine.model.native.weights import NATIVE, NativeMatrix, NativeWeights, pack
from engine.schedule.sequence import Slice
from tests.fakes.native import NEEDS_NATIVE
from tests.fakes.tiny_models import VOCABULARY, save_tiny_model
from tests.fakes.torch_driver import Driver

pytestmark = [pytest.mark.engine, NEEDS_NATIVE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("qwen3", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def driver(folder: Path) -> Iterator[Driver]:
    made = Driver(folder, runner="native", context=128)
    yield made
    made.runner.close()


@pytest.fixture(scope="module")
def weights(folder: Path) -> LlamaWeights[NativeMatrix]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return fuse_weights(model, NATIVE)


@pytest.mark.parametrize(
    ("pages", "start", "num_tokens", "words"),
    [
        ([0], 0, 17, "covered by 1 pages"),
        ([0, 1], -1, 2, "tokens -1 to 1"),
        ([0, 1], 0, 31, "more than the sequence has"),
        (list(range(17)), 250, 10, "tokens 250 to 260"),
    ],
)
def test_a_slice_outside_is_refused(
    driver: Driver, pages: list[int], start: int, num_tokens: int, words: str
) -> None:
    """Past its pages, before its beginning, past its tokens, past the model's positions."""
    sequence = driver.sequence("s", [1] * (30 if len(pages) < 9 else 270), pages)
    with pytest.raises(ValueError, match=words):
        driver.runner.step([Slice(sequence, start, num_tokens, sample=True)])


@pytest.mark.parametrize("context", [33, 48, 64, 128])
def test_a_short_context_is_served(folder: Path, context: int) -> None:
    """The checks at load fit into the smallest pool, which holds one context."""
    page_nbytes = 3 * 2 * 16 * 2 * 16 * 2
    driver = Driver(
        folder, runner="native", context=context, kv_nbytes=-(-context // 16) * page_nbytes
    )
    assert driver.runner.num_pages == -(-context // 16)
    driver.prefill(driver.sequence("s", [1] * 30, [0, 1]))
    driver.runner.close()


@pytest.mark.parametrize("page", [-1, 10**6])
def test_a_page_outside_the_pool_is_refused(driver: Driver, page: int) -> None:
    """Also when a block table grows by it."""
    sequence = driver.sequence("s", [1] * 20, [0])
    driver.runner.step([Slice(sequence, 0, 16, sample=False)])
    sequence.block_table.append(page)
    with pytest.raises(IndexError, match="not among the pool's"):
        driver.runner.step([Slice(sequence, 16, 4, sample=True)])


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_a_token_outside_the_vocabulary_is_refused(driver: Driver, token: int) -> None:
    """Whether it is a prompt's or a draft's."""
    with pytest.raises(ValueError, match="vocabulary"):
        driver.runner.step([Slice(driver.sequence("s", [1, token], [0]), 0, 2, sample=True)])
    with pytest.raises(ValueError, match="vocabulary"):
        driver.runner.step(
            [Slice(driver.sequence("s", [1, 2], [0]), 0, 2, sample=True, draft=(token,))]
        )


def test_weights_that_do_not_fit_together_are_refused(weights: LlamaWeights[NativeMatrix]) -> None:
    """A matrix, a norm or a head of another size than the layers' shape says."""
    NativeWeights(weights, 16)
    first, *others = weights.layers
    small = pack(torch.zeros((96, 64), dtype=torch.bfloat16))
    wrong = (
        replace(weights, layers=(replace(first, down=small), *others)),
        replace(weights, layers=(*others, replace(first, out=small))),
        replace(weights, layers=(*others, replace(first, mlp_norm=first.mlp_norm[:80]))),
        replace(weights, layers=(*others, replace(first, qk_norm=torch.zeros(8, 32)))),
        replace(weights, norm=weights.norm[:80]),
        replace(weights, head=small),
        replace(weights, frequencies=weights.frequencies[:4]),
        replace(weights, shape=replace(weights.shape, num_heads=5)),
    )
    for one in wrong:
        with pytest.raises(ModelUnsupported, match="do not fit together"):
            NativeWeights(one, 16)


def test_matrices_that_cannot_be_packed_are_refused() -> None:
    """Another dtype, an odd number of inputs, a bias of another length."""
    with pytest.raises(ValueError, match="float32"):
        pack(torch.zeros((4, 4)))
    with pytest.raises(ValueError, match="3 inputs"):
        pack(torch.zeros((4, 3), dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="a bias"):
        pack(torch.zeros((4, 4), dtype=torch.bfloat16), torch.zeros(3))
