"""What a loaded model must show before it serves: our forward pass is its own,
and exact mode is exact here.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from engine.errors import ModelUnsupported
from engine.model.generic.attention import ATTENTION_NAME, Pass
from engine.model.generic.forward import run_group
from engine.model.kv_pool import KvPool
from engine.model.rows import PREFILL_ROWS, one_group
from engine.model.runner import Forward, Identity
from engine.model.runs import RunTables
from engine.schedule.sequence import Sequence, Slice
from engine.types import Sampling

_TOLERANCE: Final[dict[torch.dtype, float]] = {torch.bfloat16: 0.1, torch.float32: 1e-3}
_LENGTHS: Final = (23, 9)


def reference_logits(model: Any, page_size: int) -> torch.Tensor:
    """What transformers says, with its own attention, of each of the sequences that
    `check_faithful` packs.

    The last token's logits, fp32 `[num_sequences, vocab]`.
    """
    rows = []
    model.set_attn_implementation("sdpa")
    try:
        with torch.inference_mode():
            for sequence in _sequences(_LENGTHS, page_size, model.config.vocab_size):
                ids = torch.tensor([sequence.token_ids], dtype=torch.int64, device=model.device)
                rows.append(model(input_ids=ids, use_cache=False).logits[0, -1].float())
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return torch.stack(rows)


def check_layers(model: Any, pool: KvPool, identity: Identity) -> None:
    """Every layer of a transformers model must attend through our function, with KV of one shape.

    Overwrites the pool's first pages. Raises `ModelUnsupported`.
    """
    name = type(model).__name__
    slices = _whole(_sequences(_LENGTHS, pool.page_size, model.config.vocab_size))
    tables = RunTables(pool.page_size)
    tables.renew(piece.sequence for piece in slices)
    context = Pass(one_group(slices, tables), pool, identity.windows)
    run_group(model, context)
    shape = (pool.shape.num_kv_heads, pool.shape.head_dim, pool.shape.head_dim)
    for layer in range(pool.shape.num_layers):
        if layer not in context.seen:
            raise ModelUnsupported(
                f"{name}: layer {layer} has no attention of the kind this engine implements"
            )
        if context.seen[layer] != shape:
            raise ModelUnsupported(
                f"{name}: layer {layer} has KV of shape {context.seen[layer]}, layer 0's is {shape}"
            )


def check_faithful(name: str, forward: Forward, pool: KvPool, reference: torch.Tensor) -> None:
    """Two sequences packed into one pass must give the logits transformers gives each of them
    alone.

    Finds what a configuration does not tell: layers that mix tokens without attention, position
    schemes or score transformations we ignore. Overwrites the pool's first pages. Raises
    `ModelUnsupported`.
    """
    ours = forward(_whole(_sequences(_LENGTHS, pool.page_size, reference.shape[1])))
    error = _difference(ours, reference)
    if not error < _TOLERANCE[pool.shape.dtype]:
        raise ModelUnsupported(
            f"{name}: logits differ from transformers' own by {error:.1%}; something in it is not "
            "implemented"
        )


def decode_logits(forward: Forward, pool: KvPool, vocabulary: int) -> torch.Tensor:
    """What a forward pass says of the token after next in each of the sequences of
    `check_faithful`, decoded in one batch.

    Fp32 `[num_sequences, vocab]`. Overwrites the pool's first pages.
    """
    sequences = _sequences(_LENGTHS, pool.page_size, vocabulary)
    forward(_whole(sequences))
    for sequence in sequences:
        sequence.token_ids.append(1)
    return forward(
        [Slice(sequence, sequence.num_prompt, 1, sample=True) for sequence in sequences]
    ).clone()


def is_same(ours: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether logits differ by no more than two ways of computing the same in that dtype."""
    return _difference(ours, reference) < _TOLERANCE[dtype]


def check_exact(name: str, forward: Forward, pool: KvPool, vocabulary: int) -> None:
    """A prompt cut elsewhere, beside another sequence and in other pages, must give the same bits,
    and so must its next token.

    Raises `ModelUnsupported` where this machine's kernels do not keep that promise.
    """
    length = min(PREFILL_ROWS + PREFILL_ROWS // 3, (pool.num_pages - 1) // 2 * pool.page_size - 1)
    first, second, other = _sequences((length, length, 9), pool.page_size, vocabulary)
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


def _whole(sequences: list[Sequence]) -> list[Slice]:
    return [Slice(sequence, 0, sequence.num_prompt, sample=True) for sequence in sequences]


def _sequences(lengths: tuple[int, ...], page_size: int, vocabulary: int) -> list[Sequence]:
    """Sequences of fixed arbitrary tokens in pages of their own, backwards: no two pages are one
    run."""
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
