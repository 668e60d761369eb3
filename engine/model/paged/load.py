"""From weights and what a device offers to a forward pass over pages.

Knows no files and no CUDA.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import msgspec
import torch

from engine.config import EngineConfig
from engine.model.checks import decode_logits, is_same
from engine.model.kv_pool import KvPool
from engine.model.lean.layers import LeanLayers
from engine.model.lean.linear import Linear
from engine.model.lean.weights import LeanWeights
from engine.model.paged.attention import PagedAttention, PagedKernel
from engine.model.paged.cuda import DeviceFeatures
from engine.model.paged.decode_graphs import DecodeGraphs
from engine.model.paged.forward import PagedForward
from engine.model.paged.probe import LARGE_PAGE, HeadShape, choose_kernel

_log = logging.getLogger(__name__)

NUM_SPARE: Final = 1
"""Pages a pool needs beyond those of sequences: where a recorded step writes for nobody."""


@dataclass(frozen=True, slots=True)
class Paged:
    """How one model's forward pass over pages is made. The pages of `config` are of the size that
    `kernel` needs."""

    config: EngineConfig
    kernel: PagedKernel
    windows: tuple[int | None, ...]
    kit: DeviceFeatures

    def forward(self, weights: LeanWeights[Linear], pool: KvPool) -> PagedForward:
        """The forward pass over a pool with `NUM_SPARE` spare pages; decode steps are recorded
        where that can be done and gives the same logits. Overwrites the pool's first pages."""
        layers = LeanLayers(weights, pool, PagedAttention(pool, self.windows, self.kernel))
        plain = PagedForward(layers, pool)
        if self.kit.recorder is None or not self.kernel.recordable:
            return plain
        graphs = DecodeGraphs(
            layers, pool, self.config.context, self.config.max_sequences, self.kit.recorder
        )
        recorded = PagedForward(layers, pool, graphs)
        vocabulary = weights.embedding.shape[0]
        ours, theirs = (decode_logits(forward, pool, vocabulary) for forward in (recorded, plain))
        is_good = is_same(ours, theirs, pool.shape.dtype)
        fields = {"batches": list(graphs.sizes), "used": is_good}
        _log.log(
            logging.INFO if is_good else logging.WARNING,
            "decode steps recorded",
            extra={"fields": fields},
        )
        return recorded if is_good else plain


def choose_paged(
    kit: DeviceFeatures, config: EngineConfig, heads: HeadShape, device: torch.device
) -> Paged:
    """The attention kernel for these heads on this device, over pages of `block_size` tokens, if it
    takes those."""
    sizes = [
        size
        for size in dict.fromkeys((config.block_size, LARGE_PAGE))
        if size <= config.max_step_tokens
    ]
    choice = choose_kernel(kit.attend, heads, sizes, device)
    return Paged(
        msgspec.structs.replace(config, block_size=choice.page_size),
        choice.kernel,
        heads.windows,
        kit,
    )
