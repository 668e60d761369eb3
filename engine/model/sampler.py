"""From logits to the next token. Knows no model and no cache; a row's choice depends on that row alone."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence as Seq
from typing import Final

import torch

from engine.schedule.sequence import Sampled, Sequence, Slice
from engine.types import Sampling

_TOP_CANDIDATES: Final = 1024
"""Sorting this many first is usually enough for top-p, and much cheaper than sorting a vocabulary."""


def sample(logits: torch.Tensor, slices: Seq[Slice]) -> list[Sampled]:
    """What each slice samples: `logits [num_rows, vocab]` has a row for it and one for each of its draft's tokens, in order.

    In order: penalties, bias, temperature, top-k, top-p, min-p. With a seed the random number is a function of the seed and
    the output index only, so the choice is the same alone and in a batch.
    """
    if all(_is_plain_greedy(piece.sequence.sampling) and not piece.draft for piece in slices):
        return [Sampled((int(token),)) for token in logits.argmax(dim=-1).tolist()]
    return [Sampled((_choose(row.float().cpu(), piece.sequence),)) for row, piece in zip(logits, slices, strict=True)]


def uniform(seed: int | None, index: int) -> float:
    """A number in [0, 1): a hash of seed and output index, or the system's randomness without a seed."""
    bits = os.urandom(8) if seed is None else hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(bits, "little") >> 11) / (1 << 53)


def penalize(logits: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """Penalties and bias applied to a row `[vocab]` fp32; a new tensor where there are any.

    Repetition (CTRL, arXiv 1909.05858) covers prompt and output; presence and frequency the output only
    (https://platform.openai.com/docs/api-reference/chat, 2026-11).
    """
    sampling = sequence.sampling
    output = Counter(sequence.token_ids[sequence.num_prompt :])
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(sequence.token_ids)), dtype=torch.int64)
        scores = logits[seen]
        factor = sampling.repetition_penalty
        logits = logits.index_copy(0, seen, torch.where(scores > 0, scores / factor, scores * factor))
    if output and (sampling.presence_penalty or sampling.frequency_penalty):
        ids = torch.tensor(list(output), dtype=torch.int64)
        counts = torch.tensor(list(output.values()), dtype=torch.float32)
        logits = logits.index_add(0, ids, -(counts * sampling.frequency_penalty + sampling.presence_penalty))
    bias = {token: value for token, value in sampling.logit_bias.items() if 0 <= token < logits.shape[0]}
    if bias:
        ids = torch.tensor(list(bias), dtype=torch.int64)
        logits = logits.index_add(0, ids, torch.tensor(list(bias.values()), dtype=torch.float32))
    return logits


def candidates(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that may be chosen and their weights: `(ids [n] int64, probabilities [n] fp64, not normalized)`.

    `logits [vocab]` fp32; the most probable token always stays. Filters after temperature, as in transformers.
    """
    probs = torch.softmax(logits.double() / sampling.temperature, dim=-1)
    ids = torch.arange(probs.shape[0])
    if 0 < sampling.top_k < probs.shape[0]:
        probs, ids = torch.topk(probs, sampling.top_k)
        probs = probs / probs.sum()
    if sampling.top_p < 1.0:
        probs, ids = _nucleus(probs, ids, sampling.top_p)
    if sampling.min_p > 0.0:
        keep = probs >= sampling.min_p * probs.max()
        probs, ids = probs[keep], ids[keep]
    return ids, probs


def _nucleus(probs: torch.Tensor, ids: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The most probable tokens whose sum first reaches `top_p`."""
    size = min(_TOP_CANDIDATES, probs.shape[0])
    head, order = torch.topk(probs, size)
    if size < probs.shape[0] and float(head.sum()) < top_p:
        head, order = torch.sort(probs, descending=True, stable=True)
    num_kept = int((head.cumsum(0) - head < top_p).sum())
    num_kept = max(1, num_kept)
    return head[:num_kept], ids[order[:num_kept]]


def _choose(logits: torch.Tensor, sequence: Sequence) -> int:
    sampling = sequence.sampling
    logits = penalize(logits, sequence)
    if sampling.temperature <= 0.0:
        return int(logits.argmax())
    ids, probs = candidates(logits, sampling)
    cumulative = probs.cumsum(0)
    point = uniform(sampling.seed, sequence.num_output) * float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, point, right=True))
    return int(ids[min(index, ids.shape[0] - 1)])


def _is_plain_greedy(sampling: Sampling) -> bool:
    return sampling.temperature <= 0.0 and not (
        sampling.logit_bias or sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0
    )
