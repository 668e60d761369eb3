"""What a loaded model must show before it serves: our forward pass is its own, and exact mode is exact here."""

from __future__ import annotations

from typing import Any, Final

import torch

from engine.errors import ModelUnsupported
from engine.model.attention import ATTENTION_NAME, Pass
from engine.model.kv_pool import KvPool
from engine.model.rows import Group, RowGroups, fixed_groups, one_group
from engine.model.runner import Identity, run_group
from engine.schedule.sequence import Sequence, Slice
from engine.types import Sampling

_TOLERANCE: Final[dict[torch.dtype, float]] = {torch.bfloat16: 0.1, torch.float32: 1e-3}
_LENGTHS: Final = (23, 9)


def check_faithful(model: Any, pool: KvPool, identity: Identity) -> None:
    """Two sequences packed into one pass must give the logits transformers gives each of them alone.

    Finds what a configuration does not tell: layers that mix tokens without attention, position schemes or score
    transformations we ignore. Overwrites the pool's first pages. Raises `ModelUnsupported`.
    """
    name = type(model).__name__
    sequences = _sequences(_LENGTHS, pool.page_size, _vocabulary(model))
    slices = [Slice(sequence, 0, sequence.num_prompt, sample=True) for sequence in sequences]
    context = Pass(one_group(slices, pool.page_size), pool, identity.windows)
    ours = run_group(model, context)
    shape = (pool.shape.num_kv_heads, pool.shape.head_dim, pool.shape.head_dim)
    for layer in range(pool.shape.num_layers):
        if layer not in context.seen:
            raise ModelUnsupported(f"{name}: layer {layer} has no attention of the kind this engine implements")
        if context.seen[layer] != shape:
            raise ModelUnsupported(f"{name}: layer {layer} has KV of shape {context.seen[layer]}, layer 0's is {shape}")
    theirs = _reference(model, sequences)
    error = float((ours - theirs).norm() / theirs.norm())
    if not error < _TOLERANCE[pool.shape.dtype]:
        raise ModelUnsupported(
            f"{name}: logits differ from transformers' own by {error:.1%}; something in it is not implemented"
        )


def check_exact(model: Any, pool: KvPool, identity: Identity) -> None:
    """A prompt cut elsewhere, beside another sequence and in other pages, must give the same bits, and so must its next token.

    Raises `ModelUnsupported` where this machine's kernels do not keep that promise.
    """
    rows = identity.rows
    if rows is None:
        return
    length = rows.prefill + rows.prefill // 3
    first, second, other = _sequences((length, length, 17), pool.page_size, _vocabulary(model))
    second.token_ids = list(first.token_ids)
    cut = rows.prefill // 4 + 5
    whole = _logits(model, pool, identity, [[Slice(first, 0, length, sample=True)]])
    steps = [
        [Slice(other, 0, 17, sample=False), Slice(second, 0, cut, sample=False)],
        [Slice(second, cut, length - cut, sample=True)],
    ]
    same = torch.equal(whole, _logits(model, pool, identity, steps))
    token = int(whole.argmax())
    for sequence in (first, second, other):
        sequence.token_ids.append(token)
    alone = _logits(model, pool, identity, [[Slice(first, length, 1, sample=True)]])
    batch = _logits(model, pool, identity, [[Slice(other, 17, 1, sample=False), Slice(second, length, 1, sample=True)]])
    if not (same and torch.equal(alone, batch)):
        raise ModelUnsupported(f"{type(model).__name__}: exact mode is not bit-exact on this machine; set exact: off")


def _logits(model: Any, pool: KvPool, identity: Identity, steps: list[list[Slice]]) -> torch.Tensor:
    """Logits of the last group that wants any, `[num_wanted, vocab]`."""
    rows = identity.rows or RowGroups()
    groups: list[Group] = [group for slices in steps for group in fixed_groups(slices, pool.page_size, rows)]
    results = [run_group(model, Pass(group, pool, identity.windows)) for group in groups]
    return next(result for result in reversed(results) if len(result))


def _reference(model: Any, sequences: list[Sequence]) -> torch.Tensor:
    """The last token's logits by transformers' own attention, one sequence at a time, fp32 `[num_sequences, vocab]`."""
    rows = []
    model.set_attn_implementation("sdpa")
    try:
        with torch.inference_mode():
            for sequence in sequences:
                ids = torch.tensor([sequence.token_ids], dtype=torch.int64, device=model.device)
                rows.append(model(input_ids=ids, use_cache=False).logits[0, -1].float())
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return torch.stack(rows)


def _sequences(lengths: tuple[int, ...], page_size: int, vocabulary: int) -> list[Sequence]:
    """Sequences of fixed arbitrary tokens in pages of their own, backwards: no two pages are one run."""
    num_pages = [-(-(length + 1) // page_size) for length in lengths]
    sequences, end = [], sum(num_pages)
    for length, count in zip(lengths, num_pages, strict=True):
        token_ids = [(7 + 2_654_435_761 * (position + length)) % vocabulary for position in range(length)]
        table = list(range(end - 1, end - 1 - count, -1))
        sequences.append(Sequence("check", token_ids, length, Sampling(max_tokens=1), block_table=table))
        end -= count
    return sequences


def _vocabulary(model: Any) -> int:
    size: int = model.config.vocab_size
    return size
