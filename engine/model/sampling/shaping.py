"""The effect of sampling parameters on logits and probabilities, for rows with mixed parameters.

Knows no randomness.

Nothing here grows with the context: the output is counted once per token
(`engine.model.sampling.history`).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.model.sampling.history import history_of
from engine.schedule.sequence import Sequence
from engine.types import Sampling

Array: TypeAlias = NDArray[Any]

_RUNGS: Final = (64, 1024)
"""So many of the most probable tokens are sorted first: almost always enough, and much cheaper than
a vocabulary."""

_BLOCK: Final = 32
"""The most probable n tokens lie in the n blocks with the highest maxima, so most of a row is
looked at only once."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """A row of logits: the token after `sequence` and the guesses `before` it."""

    sequence: Sequence
    before: tuple[int, ...] = ()

    @property
    def sampling(self) -> Sampling:
        return self.sequence.sampling

    @property
    def output_index(self) -> int:
        """Number of tokens that the answer has before this one."""
        return self.sequence.num_output + len(self.before)


def shape_logits(logits: torch.Tensor, rows: Seq[SamplingRow]) -> torch.Tensor:
    """Logits `[num_rows, vocab]` fp32 under constraints, penalties and biases; a new tensor where
    there are any."""
    constrained = [i for i, row in enumerate(rows) if row.sequence.constraint is not None]
    penalized = [i for i, row in enumerate(rows) if has_penalties(row.sampling)]
    biased = [i for i, row in enumerate(rows) if row.sampling.logit_bias]
    if constrained or penalized or biased:
        logits = logits.clone()
        _mask(logits, rows, constrained)
        _penalize(logits, rows, penalized)
        _bias(logits, rows, biased)
    return logits


def has_penalties(sampling: Sampling) -> bool:
    """True if the earlier tokens matter."""
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


def _mask(logits: torch.Tensor, rows: Seq[SamplingRow], chosen: Seq[int]) -> None:
    """Minus infinity for every token that a row's constraint doesn't allow."""
    for i in chosen:
        constraint = rows[i].sequence.constraint
        assert constraint is not None
        assert not rows[i].before, "a constrained sequence has a draft"
        bits = np.unpackbits(
            np.frombuffer(constraint.allowed(), dtype=np.uint8), bitorder="little"
        )[: logits.shape[1]]
        refused = torch.ones(logits.shape[1], dtype=torch.bool)
        refused[: len(bits)] = torch.from_numpy(bits) == 0
        logits[i].masked_fill_(refused.to(logits.device), -torch.inf)


def _penalize(logits: torch.Tensor, rows: Seq[SamplingRow], chosen: Seq[int]) -> None:
    """Repetition (CTRL, arXiv 1909.05858) covers prompt and output; presence and frequency the
    output only (https://platform.openai.com/docs/api-reference/chat, 2026-11)."""
    if not chosen:
        return
    counted = [history_of(rows[i].sequence).after(rows[i].before) for i in chosen]
    places, ids = _places(chosen, [one.ids for one in counted], logits.device)
    counts = _to(logits.device, np.concatenate([one.counts for one in counted]))
    samplings = [rows[i].sampling for i in chosen]
    lengths = [len(one.ids) for one in counted]
    factor, presence, frequency = (
        _to(logits.device, np.repeat(np.array(values, dtype=np.float32), lengths))
        for values in (
            [one.repetition_penalty for one in samplings],
            [one.presence_penalty for one in samplings],
            [one.frequency_penalty for one in samplings],
        )
    )
    scores = logits[places, ids]
    scores = torch.where(scores > 0, scores / factor, scores * factor)
    logits[places, ids] = scores - (counts * frequency + (counts > 0) * presence)


def _bias(logits: torch.Tensor, rows: Seq[SamplingRow], chosen: Seq[int]) -> None:
    """The bias is added; ids that the vocabulary hasn't are ignored."""
    if not chosen:
        return
    pairs = [
        [(k, v) for k, v in rows[i].sampling.logit_bias.items() if 0 <= k < logits.shape[1]]
        for i in chosen
    ]
    places, ids = _places(
        chosen, [np.array([k for k, _ in row], dtype=np.int64) for row in pairs], logits.device
    )
    logits[places, ids] += _to(
        logits.device, np.array([v for row in pairs for _, v in row], dtype=np.float32)
    )


def _places(
    chosen: Seq[int], ids: Seq[Array], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices `[n]` of rows and of tokens: all `ids[j]` of row `chosen[j]`."""
    rows = np.repeat(np.array(chosen, dtype=np.int64), [len(one) for one in ids])
    return _to(device, rows), _to(device, np.concatenate(ids))


def _to(device: torch.device, array: Array) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


def keep_candidates(probs: torch.Tensor, samplings: Seq[Sampling]) -> torch.Tensor:
    """Zero, in place, for what top-k, top-p and min-p leave out of `probs [n, vocab]` fp32 after
    temperature.

    top-k keeps the k most probable tokens; top-p, of these, the most probable whose sum first
    reaches that share of theirs; min-p what has at least that share of the best. At least one
    stays. Of equally probable tokens the lowest ids.
    """
    cuts: dict[int, _Cut] = {}
    _cut(
        [i for i, one in enumerate(samplings) if one.top_k > 0 or one.top_p < 1.0],
        probs,
        samplings,
        cuts,
    )
    if cuts or any(one.min_p > 0.0 for one in samplings):
        device = probs.device
        floors = torch.tensor(
            [[cuts[i].floor if i in cuts else 0.0] for i in range(len(samplings))], device=device
        )
        shares = torch.tensor(
            [[min(one.min_p, 1.0)] for one in samplings], dtype=torch.float32, device=device
        )
        floors = torch.maximum(floors, shares * probs.amax(dim=-1, keepdim=True))
        kept = torch.ge(probs, floors, out=torch.empty_like(probs))
        probs.mul_(kept)
    for i, cut in cuts.items():
        if cut.num_tied is not None:
            tied = (probs[i] == cut.floor).nonzero().squeeze(-1)
            probs[i, tied[cut.num_tied :]] = 0.0
    return probs


@dataclass(frozen=True, slots=True)
class _Cut:
    """The least probability that top-k and top-p keep, and of how many tokens with exactly it,
    where not of all."""

    floor: float
    num_tied: int | None


def _cut(
    chosen: Seq[int], probs: torch.Tensor, samplings: Seq[Sampling], cuts: dict[int, _Cut]
) -> None:
    """Find the cut of every chosen row, sorting as little as it takes."""
    vocab = probs.shape[1]
    for size in (*(rung for rung in _RUNGS if rung < vocab), vocab):
        if not chosen:
            return
        part = (
            probs
            if len(chosen) == len(samplings)
            else probs[torch.tensor(chosen, device=probs.device)]
        )
        best = most_probable(part, size)
        sums = best.cumsum(axis=-1, dtype=np.float64)
        left = []
        for place, i in enumerate(chosen):
            num_kept = _num_kept(sums[place], samplings[i], vocab)
            if num_kept is None:
                left.append(i)
            else:
                cuts[i] = _cut_after(best[place], num_kept, vocab)
        chosen = left


def most_probable(probs: torch.Tensor, size: int) -> Array:
    """The `size` largest values of each row of `probs [n, vocab]`, sorted, the largest first: `[n,
    size]` fp32."""
    num_rows, vocab = probs.shape
    if size == vocab:
        return np.sort(probs.cpu().numpy(), axis=-1)[:, ::-1]
    if vocab % _BLOCK == 0 and size * _BLOCK < vocab:
        blocks = probs.view(num_rows, -1, _BLOCK)
        best = blocks.amax(dim=-1).topk(size, dim=-1, sorted=False).indices
        rows = torch.arange(num_rows, device=probs.device).unsqueeze(-1)
        probs = blocks[rows, best].view(num_rows, -1)
    values: Array = probs.topk(size, dim=-1).values.cpu().numpy()
    return values


def _num_kept(sums: Array, sampling: Sampling, vocab: int) -> int | None:
    """Number of tokens that stay, by the running sums `[size]` of the most probable; None if it
    takes more of them."""
    size = len(sums)
    top_k = sampling.top_k if 0 < sampling.top_k < vocab else vocab
    if sampling.top_p >= 1.0:
        return top_k if top_k <= size else None
    if size < top_k < vocab:
        return None
    total = float(sums[top_k - 1]) if top_k <= size else 1.0
    reached = int(np.searchsorted(sums, sampling.top_p * total)) + 1
    if reached > size and size < vocab:
        return None
    return min(reached, top_k, size)


def _cut_after(best: Array, num_kept: int, vocab: int) -> _Cut:
    """The cut behind the first `num_kept` of the probabilities `best [size]`, sorted."""
    size = len(best)
    floor = float(best[num_kept - 1])
    if num_kept == vocab or (num_kept < size and float(best[num_kept]) < floor):
        return _Cut(floor, None)
    return _Cut(floor, int((best[:num_kept] == floor).sum()))
