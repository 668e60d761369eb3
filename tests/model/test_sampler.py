"""Sampling: worked rows, and a choice that depends on its row, seed and output index alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model import sampler
from engine.model.sampler import candidates, penalize, uniform
from engine.schedule.sequence import Sequence, Slice
from engine.types import Sampling

pytestmark = pytest.mark.engine

LOGITS = torch.log(torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]))


def sample(logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    """The token of each row, for sequences that guess nothing."""
    slices = [Slice(one, len(one.token_ids) - 1, 1, sample=True) for one in sequences]
    return [sampled.token_ids[0] for sampled in sampler.sample(logits, slices)]


def sequence(prompt: list[int], output: list[int] | None = None, **sampling: Any) -> Sequence:
    """A sequence with these tokens; sampling defaults are the type's own."""
    return Sequence("r", prompt + (output or []), len(prompt), Sampling(**({"max_tokens": 10} | sampling)))


@pytest.mark.parametrize(
    ("sampling", "ids", "probs"),
    [
        ({}, [0, 1, 2, 3, 4], [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"top_k": 2}, [0, 1], [4 / 7, 3 / 7]),
        ({"top_k": 9}, [0, 1, 2, 3, 4], [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"top_p": 0.5}, [0, 1], [0.4, 0.3]),
        ({"top_p": 0.4}, [0], [0.4]),
        ({"top_p": 0.86}, [0, 1, 2, 3], [0.4, 0.3, 0.15, 0.1]),
        ({"top_p": 0.0}, [0], [0.4]),
        ({"min_p": 0.3}, [0, 1, 2], [0.4, 0.3, 0.15]),
        ({"min_p": 1.0}, [0], [0.4]),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4], [0.16 / 0.285, 0.09 / 0.285, 0.0225 / 0.285, 0.01 / 0.285, 0.0025 / 0.285]),
        ({"top_k": 3, "top_p": 0.5, "min_p": 0.9}, [0], [0.4 / 0.85]),
    ],
    ids=str,
)
def test_candidates(sampling: dict[str, Any], ids: list[int], probs: list[float]) -> None:
    """Filters keep exactly these tokens, with these weights."""
    got_ids, got_probs = candidates(LOGITS, Sampling(max_tokens=1, **sampling))
    assert got_ids.tolist() == ids
    assert got_probs.tolist() == pytest.approx(probs, rel=1e-6)


def test_nucleus_of_a_flat_row() -> None:
    """A nucleus larger than the partial sort is still found whole."""
    ids, _ = candidates(torch.zeros(4096), Sampling(max_tokens=1, top_p=0.75))
    assert len(set(ids.tolist())) == len(ids) == 3072


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"repetition_penalty": 2.0}, [0.5, -4.0, 1.5, -1.0]),
        ({"presence_penalty": 0.5}, [1.0, -2.0, 2.5, -1.0]),
        ({"frequency_penalty": 0.5}, [1.0, -2.0, 2.0, -1.0]),
        ({"presence_penalty": 1.0, "frequency_penalty": -0.5}, [1.0, -2.0, 3.0, -1.0]),
        ({"logit_bias": {3: 5.0, 0: -100.0, 99: 1.0, -1: 1.0}}, [-99.0, -2.0, 3.0, 4.0]),
        ({"repetition_penalty": 2.0, "frequency_penalty": 0.5, "logit_bias": {1: 4.0}}, [0.5, 0.0, 0.5, -1.0]),
    ],
    ids=str,
)
def test_penalties(sampling: dict[str, Any], expected: list[float]) -> None:
    """Prompt [0, 1], output [2, 2]: repetition covers both, presence and frequency the output only."""
    logits = torch.tensor([1.0, -2.0, 3.0, -1.0])
    assert penalize(logits, sequence([0, 1], [2, 2], **sampling)).tolist() == pytest.approx(expected)
    assert logits.tolist() == [1.0, -2.0, 3.0, -1.0]


def test_greedy_takes_the_best_after_bias() -> None:
    """Temperature 0 is an argmax, of biased logits where there is a bias."""
    rows = torch.stack([LOGITS, LOGITS])
    assert sample(rows, [sequence([0], temperature=0.0), sequence([0], temperature=0.0)]) == [0, 0]
    biased = sequence([0], temperature=0.0, logit_bias={4: 50.0})
    assert sample(rows, [biased, sequence([0], temperature=0.0)]) == [4, 0]


@settings(max_examples=50)
@given(seed=st.integers(-(2**63), 2**63 - 1), num_output=st.integers(0, 50), place=st.integers(0, 3))
def test_seeded_choice_is_the_same_in_any_batch(seed: int, num_output: int, place: int) -> None:
    """A seeded row's token is the same alone and anywhere in a batch."""
    logits = torch.randn(200, generator=torch.Generator().manual_seed(num_output))
    mine = sequence([1], [3] * num_output, seed=seed, top_p=0.9)
    others = [sequence([2]) for _ in range(3)]
    batch = [*others[:place], mine, *others[place:]]
    rows = torch.stack([logits if one is mine else torch.zeros(200) for one in batch])
    assert sample(rows, batch)[place] == sample(logits.unsqueeze(0), [mine])[0]


def test_seed_and_index_decide() -> None:
    """Another index or another seed draws another number, each the same every time; without a seed none repeats."""
    drawn = [uniform(seed, index) for seed in (1, 2, -1) for index in range(100)]
    assert len(set(drawn)) == 300
    assert all(0.0 <= number < 1.0 for number in drawn)
    assert uniform(1, 7) == drawn[7]
    assert len({uniform(None, 0) for _ in range(100)}) == 100
    assert abs(sum(drawn) / 300 - 0.5) < 0.06


def test_frequencies_follow_probabilities() -> None:
    """Over 4,000 seeds each token is drawn as often as its probability says (five standard deviations)."""
    rows = LOGITS.unsqueeze(0)
    counts = Counter(sample(rows, [sequence([0], seed=seed)])[0] for seed in range(4000))
    for token, prob in enumerate([0.4, 0.3, 0.15, 0.1, 0.05]):
        assert abs(counts[token] - 4000 * prob) < 5 * math.sqrt(4000 * prob * (1 - prob))
