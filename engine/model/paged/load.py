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
from engine.model.checks import decode_logits, is_close
from engine.model.kv_pool import KvPool
from engine.model.llama.layers import LlamaLayers
from engine.model.llama.linear import Linear
from engine.model.llama.weights import LlamaWeights
from engine.model.paged.attention import PagedAttention, PagedKernel
from engine.model.paged.cuda import DeviceFeatures
from engine.model.paged.decode_graphs import DecodeGraphs
from engine.model.paged.forward import PagedForward
from engine.model.paged.probe import LARGE_PAGE, HeadShape, choose_kernel

_log = logging.getLogger(__name__)

NUM_SPARE: Final = 1
"""Pages a pool needs beyond those of sequences: a recorded step's unused rows write there."""


@dataclass(frozen=True, slots=True)
class PagedPlan:
    """The parts of one model's forward pass over pages, which are of the size that `kernel`
    needs."""

    config: EngineConfig
    kernel: PagedKernel
    windows: tuple[int | None, ...]
    features: DeviceFeatures

    def forward(self, weights: LlamaWeights[Linear], pool: KvPool) -> PagedForward:
        """The forward pass over a pool with `NUM_SPARE` spare pages; decode steps are recorded
        where that can be done and gives the same logits. Overwrites the pool's first pages."""
        layers = LlamaLayers(weights, pool, PagedAttention(pool, self.windows, self.kernel))
        plain = PagedForward(layers, pool)
        if self.features.recorder is None or not self.kernel.recordable:
            return plain
        graphs = DecodeGraphs(
            layers, pool, self.config.context, self.config.max_sequences, self.features.recorder
        )
        recorded = PagedForward(layers, pool, graphs)
        vocabulary = weights.embedding.shape[0]
        ours, theirs = (decode_logits(forward, pool, vocabulary) for forward in (recorded, plain))
        is_good = is_close(ours, theirs, pool.shape.dtype)
        fields = {"batches": list(graphs.sizes), "used": is_good}
        _log.log(
            logging.INFO if is_good else logging.WARNING,
            "decode steps recorded",
            extra={"fields": fields},
        )
        return recorded if is_good else plain


def choose_paged(
    features: DeviceFeatures, config: EngineConfig, heads: HeadShape, device: torch.device
) -> PagedPlan:
    """The attention kernel for these heads on this device, over pages of `block_size` tokens, if it
    takes those."""
    sizes = [
        size
        for size in dict.fromkeys((config.block_size, LARGE_PAGE))
        if size <= config.max_step_tokens
    ]
    choice = choose_kernel(features.attend, heads, sizes, device)
    return PagedPlan(
        msgspec.structs.replace(config, block_size=choice.page_size),
        choice.kernel,
        heads.windows,
        features,
    )
