"""Sampling: every parameter's exact effect and its distribution,
and a choice that depends on its own row alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.sampling.sampler import probabilities, sample, uniform
from engine.model.sampling.shaping import SamplingRow, most_probable, shape_logits
from engine.schedule.sequence import Sampled, Sequence, Slice
from engine.types import Sampling
from tests.fakes.constraint import OnlyThese

pytestmark = pytest.mark.engine

PROBS = (0.4, 0.3, 0.15, 0.1, 0.05)
LOGITS = torch.log(torch.tensor(PROBS))

MIXED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"seed": 1},
    {"seed": 2, "temperature": 0.7, "top_p": 0.9},
    {"seed": 3, "top_k": 40},
    {"seed": 4, "temperature": 1.3, "min_p": 0.1, "num_logprobs": 3},
    {"seed": 5, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"seed": 6, "top_k": 100, "top_p": 0.5, "logit_bias": {7: 3.0, 8: -100.0}},
    {"temperature": 0.0, "repetition_penalty": 0.8, "num_logprobs": 0},
)


def sequence(prompt: Seq[int], output: Seq[int] = (), **sampling: Any) -> Sequence:
    """A sequence with these tokens; sampling defaults are the type's own."""
    return Sequence(
        "r", [*prompt, *output], len(prompt), Sampling(**({"max_tokens": 10} | sampling))
    )


def piece(one: Sequence, draft: tuple[int, ...] = ()) -> Slice:
    """The slice that asks for the token after a sequence."""
    return Slice(one, len(one.token_ids) - 1, 1, sample=True, draft=draft)


def tokens(logits: torch.Tensor, sequences: Seq[Sequence]) -> list[int]:
    """The token of each row, for sequences that guess nothing."""
    return [sampled.token_ids[0] for sampled in sample(logits, [piece(one) for one in sequences])]


def noise(*shape: int, seed: int) -> torch.Tensor:
    """Logits as a model gives them: few bits, so that equal ones are common."""
    return (
        (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 4).bfloat16().float()
    )


FILTERS: list[tuple[dict[str, Any], list[float]]] = [
    ({}, [0.4, 0.3, 0.15, 0.1, 0.05]),
    ({"top_k": 2}, [0.4, 0.3, 0, 0, 0]),
    ({"top_k": 9}, [0.4, 0.3, 0.15, 0.1, 0.05]),
    ({"top_p": 0.5}, [0.4, 0.3, 0, 0, 0]),
    ({"top_p": 0.39}, [0.4, 0, 0, 0, 0]),
    ({"top_p": 0.86}, [0.4, 0.3, 0.15, 0.1, 0]),
    ({"top_p": 0.0}, [0.4, 0, 0, 0, 0]),
    ({"min_p": 0.3}, [0.4, 0.3, 0.15, 0, 0]),
    ({"min_p": 1.0}, [0.4, 0, 0, 0, 0]),
    ({"temperature": 0.5}, [0.16, 0.09, 0.0225, 0.01, 0.0025]),
    ({"temperature": 2.0}, [math.sqrt(p) for p in PROBS]),
    ({"top_k": 3, "top_p": 0.8, "min_p": 0.0}, [0.4, 0.3, 0, 0, 0]),
    ({"top_k": 3, "top_p": 0.99, "min_p": 0.5}, [0.4, 0.3, 0, 0, 0]),
]


@pytest.mark.parametrize(("sampling", "weights"), FILTERS, ids=str)
def test_filters(sampling: dict[str, Any], weights: list[float]) -> None:
    """Temperature and filters leave exactly these tokens, in these proportions."""
    got = probabilities(LOGITS.unsqueeze(0), [Sampling(max_tokens=1, **sampling)])[0].double()
    assert (got / got.sum()).tolist() == pytest.approx(
        [weight / sum(weights) for weight in weights], rel=1e-5
    )


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_p": 0.7}, [0, 1, 2]),
        ({"top_k": 4, "top_p": 0.6}, [0, 1, 2]),
        ({"min_p": 0.9}, [0, 1, 2, 4]),
    ],
    ids=str,
)
def test_of_equally_probable_tokens_the_first_stay(
    sampling: dict[str, Any], kept: list[int]
) -> None:
    """A filter that ends among equals keeps as many as it says; one that is a threshold keeps
    all."""
    row = torch.log(torch.tensor([0.24, 0.24, 0.24, 0.04, 0.24]))
    got = probabilities(row.unsqueeze(0), [Sampling(max_tokens=1, **sampling)])[0]
    assert got.nonzero().squeeze(-1).tolist() == kept


@pytest.mark.parametrize("vocab", [4096, 5000])
@pytest.mark.parametrize("top_p", [0.02, 0.3, 0.75, 0.9999])
def test_nucleus_of_any_size(vocab: int, top_p: float) -> None:
    """However much has to be sorted, the nucleus is the smallest set of the most probable tokens
    with that sum."""
    row = noise(vocab, seed=vocab) / 4
    got = probabilities(row.unsqueeze(0), [Sampling(max_tokens=1, top_p=top_p)])[0]
    kept = got[got > 0].sort().values.double()
    left = torch.softmax(row, 0)[got == 0]
    assert float(kept.sum()) >= top_p - 1e-6
    assert float(kept[1:].sum()) < top_p + 1e-6
    assert not len(left) or float(left.max()) <= float(kept[0])


@pytest.mark.parametrize("size", [1, 8, 64, 1000, 4096])
def test_the_most_probable_values(size: int) -> None:
    """The short cut over blocks finds the same values as a sort."""
    rows = torch.softmax(noise(3, 4096, seed=size), -1)
    assert torch.equal(
        torch.tensor(most_probable(rows, size).copy()), rows.sort(descending=True).values[:, :size]
    )


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"repetition_penalty": 2.0}, [0.5, -4.0, 1.5, -1.0]),
        ({"presence_penalty": 0.5}, [1.0, -2.0, 2.5, -1.0]),
        ({"frequency_penalty": 0.5}, [1.0, -2.0, 2.0, -1.0]),
        ({"presence_penalty": 1.0, "frequency_penalty": -0.5}, [1.0, -2.0, 3.0, -1.0]),
        ({"logit_bias": {3: 5.0, 0: -100.0, 99: 1.0, -1: 1.0}}, [-99.0, -2.0, 3.0, 4.0]),
        (
            {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "logit_bias": {1: 4.0}},
            [0.5, 0.0, 0.5, -1.0],
        ),
    ],
    ids=str,
)
def test_penalties(sampling: dict[str, Any], expected: list[float]) -> None:
    """Prompt [0, 1], output [2, 2]: repetition covers both, presence and frequency the output
    only."""
    logits = torch.tensor([[1.0, -2.0, 3.0, -1.0], [1.0, -2.0, 3.0, -1.0]])
    rows = [SamplingRow(sequence([0, 1], [2, 2], **sampling)), SamplingRow(sequence([3], [3]))]
    assert shape_logits(logits, rows)[0].tolist() == pytest.approx(expected)
    assert shape_logits(logits, rows)[1].tolist() == [1.0, -2.0, 3.0, -1.0]
    assert logits[0].tolist() == [1.0, -2.0, 3.0, -1.0]


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}, {"temperature": 1e-9}], ids=str
)
def test_greedy_takes_the_first_of_the_best(sampling: dict[str, Any]) -> None:
    """Parameters that leave one token take the most probable one, after bias where there is one."""
    rows = torch.tensor([[0.0, 2.0, 2.0, 1.0]] * 2)
    assert tokens(
        rows, [sequence([0], **sampling), sequence([0], **sampling, logit_bias={3: 50.0})]
    ) == [1, 3]


def test_a_constraint_comes_before_everything() -> None:
    """Only what it allows is chosen, greedily or not, whatever the bias says; ids past its end are
    not allowed."""
    rows = torch.tensor([[9.0, 1.0, 2.0, 9.0]] * 2)
    greedy, random = sequence([0], temperature=0.0, logit_bias={0: 100.0}), sequence([0], top_k=2)
    greedy.constraint, random.constraint = OnlyThese({1, 2}), OnlyThese({1})
    assert tokens(rows, [greedy, random]) == [2, 1]


DRAWN = [
    *FILTERS,
    ({"presence_penalty": 1.0}, [0.4, 0.3, 0.15 / math.e, 0.1, 0.05]),
    ({"frequency_penalty": 0.5}, [0.4, 0.3, 0.15 / math.e, 0.1, 0.05]),
    ({"repetition_penalty": 2.0}, [0.16, 0.3, 0.0225, 0.1, 0.05]),
    ({"logit_bias": {4: math.log(10), 0: -100.0}}, [0, 0.3, 0.15, 0.1, 0.5]),
]


@pytest.mark.parametrize(("sampling", "weights"), DRAWN, ids=str)
def test_frequencies_follow_probabilities(sampling: dict[str, Any], weights: list[float]) -> None:
    """Over 4,000 seeds the draws fit the distribution that the parameters mean (chi-square, one in
    a million), and what has no weight is never drawn. Prompt [0], output [2, 2]."""
    drawn = [sequence([0], [2, 2], seed=seed, **sampling) for seed in range(4000)]
    counts = Counter(tokens(LOGITS.expand(4000, 5), drawn))
    expected = {
        token: 4000 * weight / sum(weights) for token, weight in enumerate(weights) if weight
    }
    assert set(counts) <= set(expected)
    assert (
        sum((counts[token] - num) ** 2 / num for token, num in expected.items()) < 33.4
    )  # 4 degrees of freedom


def answers(logits: torch.Tensor, pieces: Seq[Slice]) -> list[Sampled]:
    """Of each slice alone."""
    sizes = [1 + len(one.draft) for one in pieces]
    return [sample(rows, [one])[0] for rows, one in zip(logits.split(sizes), pieces, strict=True)]


@settings(max_examples=40)
@given(
    order=st.permutations(range(len(MIXED))),
    seed=st.integers(0, 1000),
    vocab=st.sampled_from([300, 2048]),
)
def test_a_row_is_the_same_alone_and_among_others(order: list[int], seed: int, vocab: int) -> None:
    """Tokens and log-probabilities of eight rows with other parameters each, to the bit, in any
    order."""
    pieces = [
        piece(sequence([5, 6, 7], [9] * (seed % 5), **MIXED[i]), (seed % 7,) * (i % 3) * (i % 2))
        for i in order
    ]
    logits = noise(sum(1 + len(one.draft) for one in pieces), vocab, seed=seed)
    assert sample(logits, pieces) == answers(logits, pieces)


def test_a_row_is_the_same_in_a_large_vocabulary() -> None:
    """As above, where a reduction over one row would be split between threads."""
    pieces = [piece(sequence([5, 6, 7], [9, 9], **one)) for one in MIXED]
    logits = noise(len(pieces), 50_000, seed=0)
    assert sample(logits, pieces) == answers(logits, pieces)


@settings(max_examples=60)
@given(
    which=st.sampled_from([one for one in MIXED if "seed" in one]),
    seed=st.integers(0, 10_000),
    num_right=st.integers(0, 4),
)
def test_a_draft_changes_no_token(which: dict[str, Any], seed: int, num_right: int) -> None:
    """What a verified draft yields is what one step per token would have sampled, and one token
    more than was guessed."""
    logits = noise(5, 300, seed=seed)
    slow = sequence([5, 6, 7], [9], **which)
    slow_pieces = []
    for row in logits:
        (sampled,) = sample(row.unsqueeze(0), [piece(slow)])
        slow_pieces.append(sampled)
        slow.token_ids.append(sampled.token_ids[0])
    right = slow.token_ids[-5:-1]
    draft = tuple(right[:num_right]) + tuple((token + 1) % 300 for token in right[num_right:])
    (fast,) = sample(logits, [piece(sequence([5, 6, 7], [9], **which), draft)])
    assert fast.token_ids == tuple(slow.token_ids[-5:][: num_right + 1])
    assert fast.logprobs == tuple(
        one for sampled in slow_pieces[: num_right + 1] for one in sampled.logprobs
    )


def test_penalties_see_the_draft() -> None:
    """A guessed token counts as said for the rows behind it, and is forgotten when it was wrong."""
    one = sequence([0], temperature=0.0, presence_penalty=5.0)
    logits = torch.tensor([[0.0, 3.0, 2.0, 0.0]] * 3)
    assert sample(logits, [piece(one, (1, 1))])[0].token_ids == (1, 2)
    assert tokens(logits[:1], [one]) == [1]


class CountedList(list[int]):
    """A list that counts how often one of its items is read."""

    num_reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_reads += 1
        return super().__getitem__(index)


def test_a_step_reads_only_new_tokens() -> None:
    """With penalties, the second step doesn't look at what the first one has counted."""
    one = sequence([1], repetition_penalty=1.1, frequency_penalty=0.1)
    one.token_ids = CountedList(range(1000))
    tokens(noise(1, 2000, seed=1), [one])
    before = one.token_ids.num_reads
    one.token_ids.append(3)
    tokens(noise(1, 2000, seed=2), [one])
    assert one.token_ids.num_reads - before == 1


@given(
    prompt=st.lists(st.integers(0, 600), min_size=1, max_size=400),
    output=st.lists(st.integers(0, 600), max_size=300),
)
@settings(max_examples=30)
def test_counts_kept_are_counts_made_anew(prompt: list[int], output: list[int]) -> None:
    """Penalties of a sequence that grew step by step equal those of one that is seen at once, as
    after a restart."""
    options = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3}
    grown = sequence(prompt, **options)
    logits = noise(1, 601, seed=len(prompt))
    for i, token in enumerate(output):
        if i % 3 == 0:
            shape_logits(logits, [SamplingRow(grown)])
        grown.token_ids.append(token)
    fresh = sequence(prompt, output, **options)
    shaped = shape_logits(logits, [SamplingRow(grown)])
    assert torch.equal(shaped, shape_logits(logits, [SamplingRow(fresh)]))
    counts, seen = Counter(output), {*prompt, *output}
    for token in range(0, 601, 7):
        score = float(logits[0, token])
        score = (score / 1.3 if score > 0 else score * 1.3) if token in seen else score
        expected = score - counts[token] * 0.3 - (0.4 if token in counts else 0.0)
        assert float(shaped[0, token]) == pytest.approx(expected, abs=1e-4)


def test_logprobs_are_the_models_own() -> None:
    """Of the distribution before temperature, bias and penalties; best first, equal ones by id; the
    chosen one always."""
    row = torch.log(torch.tensor([[0.1, 0.2, 0.2, 0.5]]))
    one = sequence(
        [3], temperature=0.0, logit_bias={0: 50.0}, repetition_penalty=2.0, num_logprobs=3
    )
    (logprobs,) = sample(row, [piece(one)])[0].logprobs
    assert (logprobs.chosen.token_id, logprobs.chosen.logprob) == (0, pytest.approx(math.log(0.1)))
    assert [top.token_id for top in logprobs.top] == [3, 1, 2]
    assert [top.logprob for top in logprobs.top] == pytest.approx(
        [math.log(p) for p in (0.5, 0.2, 0.2)]
    )


def test_logprobs_only_where_asked_for() -> None:
    """None asks for nothing, 0 for the chosen token alone, and more than there are for all."""
    rows = torch.tensor([[0.0, 1.0]] * 3)
    asked = [sequence([0], temperature=0.0, num_logprobs=num) for num in (None, 0, 9)]
    got = [sampled.logprobs for sampled in sample(rows, [piece(one) for one in asked])]
    assert [[len(one.top) for one in logprobs] for logprobs in got] == [[], [0], [2]]


def test_seed_and_index_decide() -> None:
    """Another index or another seed draws another number, each the same every time; without a seed
    none repeats."""
    drawn = [uniform(seed, index) for seed in (1, 2, -1) for index in range(100)]
    assert len(set(drawn)) == 300
    assert all(0.0 <= number < 1.0 for number in drawn)
    assert uniform(1, 7) == drawn[7]
    assert len({uniform(None, 0) for _ in range(100)}) == 100
    assert abs(sum(drawn) / 300 - 0.5) < 0.06
