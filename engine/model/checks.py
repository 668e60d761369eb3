"""Checks of any forward pass: its logits are a reference's, and exact mode is exact here."""

from __future__ import annotations

from typing import Final

import torch

from engine.errors import ModelUnsupported
from engine.model.kv_pool import KvPool
from engine.model.rows import PREFILL_ROWS
from engine.model.runner import Forward
from engine.schedule.sequence import Sequence, Slice
from engine.types import Sampling

_TOLERANCE: Final[dict[torch.dtype, float]] = {torch.bfloat16: 0.1, torch.float32: 1e-3}

TRIAL_LENGTHS: Final = (23, 9)
"""Tokens of the sequences that a new forward pass is tried with."""


def check_faithful(name: str, forward: Forward, pool: KvPool, reference: torch.Tensor) -> None:
    """Two sequences packed into one pass get the logits that transformers gives each alone.

    Finds what a configuration leaves open: layers that mix tokens without attention, position
    schemes or score transformations we ignore. Overwrites the pool's first pages. Raises
    `ModelUnsupported`.
    """
    ours = forward(
        whole_prompts(trial_sequences(TRIAL_LENGTHS, pool.page_size, reference.shape[1]))
    )
    error = _difference(ours, reference)
    if not error < _TOLERANCE[pool.shape.dtype]:
        raise ModelUnsupported(
            f"{name}: logits differ from transformers' own by {error:.1%}; something in it is not "
            "implemented"
        )


def decode_logits(forward: Forward, pool: KvPool, vocabulary: int) -> torch.Tensor:
    """The logits of the token after next in each trial sequence, decoded in one batch.

    Fp32 `[num_sequences, vocab]`. Overwrites the pool's first pages.
    """
    sequences = trial_sequences(TRIAL_LENGTHS, pool.page_size, vocabulary)
    forward(whole_prompts(sequences))
    for sequence in sequences:
        sequence.token_ids.append(1)
    return forward(
        [Slice(sequence, sequence.num_prompt, 1, sample=True) for sequence in sequences]
    ).clone()


def is_close(ours: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> bool:
    """True if logits differ by no more than two ways of computing the same in that dtype."""
    return _difference(ours, reference) < _TOLERANCE[dtype]


def check_exact(name: str, forward: Forward, pool: KvPool, vocabulary: int) -> None:
    """A prompt and its next token get the same bits however the prompt is cut.

    Also beside another sequence, and in other pages.

    Raises `ModelUnsupported` where this machine's kernels do not keep that promise.
    """
    length = min(PREFILL_ROWS + PREFILL_ROWS // 3, (pool.num_pages - 1) // 2 * pool.page_size - 1)
    first, second, other = trial_sequences((length, length, 9), pool.page_size, vocabulary)
    second.token_ids = list(first.token_ids)
    cut = length // 4 + 5
    whole = forward([Slice(first, 0, length, sample=True)])
    forward([Slice(other, 0, 9, sample=False), Slice(second, 0, cut, sample=False)])
    same = torch.equal(whole, forward([Slice(second, cut, length - cut, sample=True)]))
    token = int(whole.argmax())
    for sequence in (first, second, other):
        sequence.token_ids.append(token)
    alone = forward([Slice(first, length, 1, sample=True)])
    batch = forward([Slice(other, 9, 1, sample=False), Slice(second, length, 1, sample=True)])
    if not (same and torch.equal(alone, batch)):
        raise ModelUnsupported(
            f"{name}: exact mode is not bit-exact on this machine; set exact: off"
        )


def _difference(ours: torch.Tensor, reference: torch.Tensor) -> float:
    return float((ours - reference).norm() / reference.norm())


def whole_prompts(sequences: list[Sequence]) -> list[Slice]:
    return [Slice(sequence, 0, sequence.num_prompt, sample=True) for sequence in sequences]


def trial_sequences(lengths: tuple[int, ...], page_size: int, vocabulary: int) -> list[Sequence]:
    """Sequences of fixed arbitrary tokens in pages of their own, backwards: no two are one run."""
    num_pages = [-(-(length + 1) // page_size) for length in lengths]
    sequences, end = [], sum(num_pages)
    for length, count in zip(lengths, num_pages, strict=True):
        token_ids = [
            (7 + 2_654_435_761 * (position + length)) % vocabulary for position in range(length)
        ]
        table = list(range(end - 1, end - 1 - count, -1))
        sequences.append(
            Sequence("check", token_ids, length, Sampling(max_tokens=1), block_table=table)
        )
        end -= count
    return sequences
