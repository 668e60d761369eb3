"""Fast mode: our forward pass is transformers' own,
and a hit stays within a stated bound of a miss.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from engine.schedule.sequence import Sequence, Slice
from tests.fakes.native import NEEDS_NATIVE
from tests.fakes.tiny_models import FAMILIES, LEAN_FAMILIES, VOCABULARY
from tests.fakes.torch_driver import Driver

pytestmark = pytest.mark.engine

PAGE = 16
PROMPTS: Final = (Path(__file__).parent / "prompts.txt").read_text(encoding="utf-8").splitlines()
TOKENS = tuple(random.Random(4).choices(range(VOCABULARY), k=150))

FAST_BOUND: Final = {"bfloat16": 0.08, "float32": 2e-5}
"""Largest |difference| of a logit between hit and miss, as a share of the spread (max - min) of the
miss run's logits."""

EXPERTS_BOUND: Final = {"bfloat16": 0.4, "float32": 2e-5}
"""The same for mixtures of experts: in bf16 a rounding difference can turn a router's choice to
another expert."""

Loaded = tuple[str, str, Driver]


MODELS: Final = [
    *(("generic", *model) for model in itertools.product(FAMILIES, ("bfloat16", "float32"))),
    *(("lean", *model) for model in itertools.product(LEAN_FAMILIES, ("bfloat16", "float32"))),
    *(pytest.param(("native", family, "bfloat16"), marks=NEEDS_NATIVE) for family in LEAN_FAMILIES),
]


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def loaded(request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path]) -> Iterator[Loaded]:
    """One fast-mode driver per runner, family and dtype."""
    runner, family, dtype = request.param
    driver = Driver(tiny_folder(family), dtype=dtype, exact="off", runner=runner)
    assert driver.runner.name == runner
    yield family, dtype, driver
    driver.runner.close()


def reference(folder: Path, dtype: str, token_ids: list[int]) -> torch.Tensor:
    """Logits after every token, by transformers' eager attention and full recomputation:
    `[num_tokens, vocab]` fp32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.inference_mode():
        logits: torch.Tensor = (
            model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0].float()
        )
    return logits


def differences(
    ours: dict[int, torch.Tensor], theirs: dict[int, torch.Tensor]
) -> list[tuple[float, float, float, bool]]:
    """Per row both have: largest difference, spread, top-2 gap of `theirs`, and whether the best
    token is the same."""
    rows = []
    for num_seen in sorted(ours.keys() & theirs.keys()):
        mine, other = ours[num_seen], theirs[num_seen]
        best = other.topk(2).values
        same = bool(mine.argmax() == other.argmax())
        rows.append(
            (
                float((mine - other).abs().max()),
                float(other.max() - other.min()),
                float(best[0] - best[1]),
                same,
            )
        )
    return rows


@pytest.mark.parametrize("cuts", [(), (64,), (7, 100, 149)], ids=str)
@pytest.mark.parametrize("scattered", [False, True])
def test_matches_transformers(
    loaded: Loaded, tiny_folder: Callable[[str], Path], cuts: tuple[int, ...], *, scattered: bool
) -> None:
    """Prefill in any split, then forced decode, gives the logits of a full recomputation; windows
    and experts included."""
    family, dtype, driver = loaded
    pages = list(range(20))[:: -1 if scattered else 1]
    sequence = driver.sequence("fast", TOKENS[:140], pages)
    driver.prefill(sequence, 0, cuts)
    driver.force(sequence, TOKENS[140:])
    truth = reference(tiny_folder(family), dtype, list(TOKENS))
    rows = differences(
        driver.logits["fast"], {num_seen: truth[num_seen - 1] for num_seen in range(140, 151)}
    )
    assert len(rows) == 11
    bound = (
        (EXPERTS_BOUND if family == "mixtral" else FAST_BOUND)[dtype]
        if dtype == "bfloat16"
        else 1e-5
    )
    assert max(difference / spread for difference, spread, _, _ in rows) < bound


def test_batch_matches_alone(loaded: Loaded) -> None:
    """Sequences packed into one pass get their own logits, in prefill and in decode."""
    family, dtype, driver = loaded
    alone = {}
    for name, token_ids in (("a", TOKENS[:70]), ("b", TOKENS[30:99])):
        sequence = driver.sequence(name, token_ids, range(10))
        driver.prefill(sequence)
        driver.force(sequence, TOKENS[100:103])
        alone[name] = driver.logits[name]
    first = driver.sequence("a", TOKENS[:70], [0, 1, 2, 9, 8, 7])
    second = driver.sequence("b", TOKENS[30:99], range(20, 26))
    driver.runner.step([Slice(first, 0, 70, True), Slice(second, 0, 69, True)])
    for token in TOKENS[100:103]:
        for sequence in (first, second):
            sequence.token_ids.append(token)
        driver.runner.step([Slice(one, len(one.token_ids) - 1, 1, True) for one in (first, second)])
    for name in ("a", "b"):
        rows = differences(driver.logits[name], alone[name])
        assert len(rows) == 4
        check_bound(rows, (EXPERTS_BOUND if family == "mixtral" else FAST_BOUND)[dtype])


def compare_hit_with_miss(
    driver: Driver, prompt: list[int], num_output: int
) -> list[tuple[float, float, float, bool]]:
    """A miss run, then a hit on the first half of its prompt, forced along the miss run's
    tokens."""
    num_pages = -(-(len(prompt) + num_output) // PAGE)
    miss = driver.sequence("miss", prompt, range(num_pages))
    driver.prefill(miss)
    driver.decode([miss], num_output - 1)
    whole = max(1, len(prompt) // 2) // PAGE
    hit = driver.sequence("hit", prompt, [*range(whole), *range(50, 50 + num_pages - whole)])
    cached = max(whole * PAGE, len(prompt) // 2)
    if cached % PAGE:
        driver.runner.copy_page(whole, 50, cached % PAGE)
    driver.prefill(hit, cached)
    driver.force(hit, miss.token_ids[len(prompt) : -1])
    return differences(driver.logits["hit"], driver.logits["miss"])


def check_bound(rows: list[tuple[float, float, float, bool]], bound: float) -> None:
    """Every difference is under the bound; where the best token differs, the miss run's best two
    were closer than it."""
    for difference, spread, gap, same in rows:
        assert difference < bound * spread
        assert same or gap < bound * spread


def test_hit_stays_in_bound(loaded: Loaded) -> None:
    """Fifty prompts fixed beforehand, on tiny models: hit and miss differ by less than the stated
    bound."""
    family, dtype, driver = loaded
    bound = (EXPERTS_BOUND if family == "mixtral" else FAST_BOUND)[dtype]
    assert len(PROMPTS) == 50
    for prompt in PROMPTS:
        rows = compare_hit_with_miss(driver, list(prompt.encode()), 4)
        assert len(rows) == 4
        check_bound(rows, bound)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.long)])
def test_hit_stays_in_bound_on_the_default_model(default_model: Path, dtype: str) -> None:
    """The same fifty prompts on the real model."""
    driver = Driver(
        default_model, dtype=dtype, exact="off", context=1024, kv_nbytes=300 * 2 * 368_640
    )
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    for prompt in PROMPTS:
        check_bound(
            compare_hit_with_miss(driver, tokenizer.encode(prompt).ids, 2), FAST_BOUND[dtype]
        )
    driver.runner.close()


def test_empty_step(loaded: Loaded) -> None:
    """A step without slices computes nothing."""
    assert loaded[2].runner.step([]) == []


def test_draft_rows_are_those_of_single_steps(loaded: Loaded) -> None:
    """A draft's rows, behind one sequence and beside another's prefill, get the logits that one
    token a step gives."""
    family, dtype, driver = loaded
    single = driver.sequence("single", TOKENS[:70], range(10))
    driver.prefill(single)
    driver.force(single, TOKENS[70:74])
    drafted = driver.sequence("drafted", TOKENS[:70], [12, 11, 14, 15, 16])
    driver.prefill(drafted)
    drafted.token_ids[70:] = [TOKENS[70]]
    beside = driver.sequence("beside", TOKENS[80:120], range(20, 23))
    driver.runner.step(
        [Slice(drafted, 70, 1, True, draft=tuple(TOKENS[71:74])), Slice(beside, 0, 40, False)]
    )
    rows = differences(driver.logits["drafted"], driver.logits["single"])
    assert sorted(driver.logits["drafted"]) == [70, 71, 72, 73, 74]
    check_bound(rows, (EXPERTS_BOUND if family == "mixtral" else FAST_BOUND)[dtype])


def test_sequences_do_not_see_each_other(loaded: Loaded) -> None:
    """Another sequence's tokens, in the same pass, change nothing but rounding."""
    driver = loaded[2]
    rows = []
    for other in (TOKENS[:50], TOKENS[60:110]):
        mine = driver.sequence("mine", TOKENS[:40], range(4))
        beside = Sequence("beside", list(other), 50, mine.sampling, block_table=list(range(10, 14)))
        driver.runner.step([Slice(beside, 0, 50, False), Slice(mine, 0, 40, True)])
        rows.append(driver.logits["mine"][40])
    assert torch.equal(*rows)
