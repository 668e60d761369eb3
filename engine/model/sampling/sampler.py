"""From logits to the next tokens, all rows of a step at once. Knows no model and no cache.

A row's choice depends on that row alone: it has the same bits alone and among others. What filters
and penalties mean is in `engine.model.sampling.shaping`; random numbers are a hash of the seed and
the output index, so neither the batch, nor a preemption, nor a draft changes them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from engine.model.sampling.logprobs import logprobs_of
from engine.model.sampling.shaping import SamplingRow, keep_candidates, shape_logits
from engine.schedule.sequence import Sampled, Slice
from engine.types import Sampling, TokenLogprobs

MIN_TEMPERATURE: Final = 1e-5
"""Below it the choice is greedy: the quotient of a logit would leave fp32."""

_BLOCK: Final = 256
"""Probabilities are added up in blocks, and only the block that is hit is looked into."""


def sample(logits: torch.Tensor, slices: Seq[Slice]) -> list[Sampled]:
    """The tokens sampled for each slice: `logits [num_rows, vocab]` has a row for it and one for
    each of its draft's tokens, in order.

    In order: the constraint's mask, penalties, bias, temperature, top-k, top-p, min-p. A draft is
    accepted as long as the sampled tokens equal it, so it changes no token. Log-probabilities are
    the model's own, before all of that. The logits are not changed.
    """
    rows = [
        SamplingRow(piece.sequence, piece.draft[:i])
        for piece in slices
        for i in range(piece.num_sampled)
    ]
    with torch.inference_mode():
        logits = logits.float()
        tokens = _choose(logits, rows)
        logprobs = logprobs_of(logits, [row.sampling.num_logprobs for row in rows], tokens)
    return list(_verify(slices, tokens, logprobs))


def uniform(seed: int | None, index: int) -> float:
    """A number in [0, 1): a hash of seed and output index, or the system's randomness without a
    seed."""
    bits = (
        os.urandom(8)
        if seed is None
        else hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    )
    return (int.from_bytes(bits, "little") >> 11) / (1 << 53)


def probabilities(logits: torch.Tensor, samplings: Seq[Sampling]) -> torch.Tensor:
    """The weights that rows `[n, vocab]` fp32 with these parameters draw from: `[n, vocab]` fp32,
    zero where nothing may be drawn.

    The rest keeps the weight it had before the filters, so a row needn't sum to one.
    """
    temperatures = [[max(one.temperature, MIN_TEMPERATURE)] for one in samplings]
    probs = logits / torch.tensor(temperatures, dtype=torch.float32, device=logits.device)
    torch.softmax(probs, dim=-1, out=probs)
    return keep_candidates(probs, samplings)


def draw(weights: torch.Tensor, points: Seq[float]) -> list[int]:
    """Inverse transform sampling: for each row of `weights [n, vocab]` the token in which the share
    `points[i]` in [0, 1) of the row's sum lies, tokens in the order of their ids.

    Sums are of fixed blocks, and running sums are made on the host in fp64: other orders of adding
    give other bits.
    """
    num_rows, vocab = weights.shape
    if vocab % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, -vocab % _BLOCK))
    blocks = weights.view(num_rows, -1, _BLOCK)
    first = _find(blocks.sum(dim=-1).cpu().numpy(), np.array(points))
    hit = blocks[torch.arange(num_rows), torch.from_numpy(first.place)]
    second = _find(hit.cpu().numpy(), first.share)
    tokens: list[int] = (first.place * _BLOCK + second.place).tolist()
    return tokens


class _Found(NamedTuple):
    """The items in which points lie, `place [n]` int64, and how far into the item, `share [n]` fp64
    in [0, 1]."""

    place: NDArray[np.int64]
    share: NDArray[np.float64]


def _find(weights: NDArray[np.float32], shares: NDArray[np.float64]) -> _Found:
    """The item of each row `[n, num_items]` in which `shares [n]` of the row's sum lie. Never one
    without weight."""
    sums = weights.cumsum(axis=-1, dtype=np.float64)
    total = sums[:, -1]
    points = np.minimum(shares * total, np.nextafter(total, 0.0))
    index = (sums <= points[:, None]).sum(axis=-1)
    rows = np.arange(len(index))
    weight = weights[rows, index].astype(np.float64)
    return _Found(index, np.clip((points - sums[rows, index] + weight) / weight, 0.0, 1.0))


def is_greedy(sampling: Sampling) -> bool:
    """True if nothing is drawn: the most probable token is taken, the first of equally probable
    ones."""
    return sampling.temperature < MIN_TEMPERATURE or sampling.top_k == 1


def _choose(logits: torch.Tensor, rows: Seq[SamplingRow]) -> list[int]:
    logits = shape_logits(logits, rows)
    drawn = [i for i, row in enumerate(rows) if not is_greedy(row.sampling)]
    tokens: list[int] = [0] * len(rows)
    if len(drawn) < len(rows):
        tokens = logits.argmax(dim=-1).tolist()
    if not drawn:
        return tokens
    if len(drawn) < len(rows):
        logits = logits[torch.tensor(drawn, device=logits.device)]
    weights = probabilities(logits, [rows[i].sampling for i in drawn])
    points = [uniform(rows[i].sampling.seed, rows[i].output_index) for i in drawn]
    for i, token in zip(drawn, draw(weights, points), strict=True):
        tokens[i] = token
    return tokens


def _verify(
    slices: Seq[Slice], tokens: Seq[int], logprobs: Seq[TokenLogprobs | None]
) -> Iterator[Sampled]:
    """Of each slice the tokens up to the first that its draft didn't guess, that one included."""
    start = 0
    for piece in slices:
        end = start + 1
        for guess in piece.draft:
            if tokens[end - 1] != guess:
                break
            end += 1
        yield Sampled(
            tuple(tokens[start:end]), tuple(one for one in logprobs[start:end] if one is not None)
        )
        start += piece.num_sampled
