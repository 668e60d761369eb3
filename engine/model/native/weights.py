"""The weights of a Llama-shaped decoder where the native library reads them.

Knows no pool, no sequences and no steps.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import torch

from engine.errors import ModelUnsupported
from engine.memory import mapping
from engine.model.llama.weights import LlamaLayer, LlamaWeights, MatrixFactories
from engine.native.library import PANEL, HeadsStruct, Layer, Matrix, Model, library

_HALF: Final = PANEL // 2


@dataclass(frozen=True, slots=True)
class NativeMatrix:
    """A weight in panels, `bias` in fp32. Tensors of the library's memory: alive as long as
    `matrix` is used."""

    panels: torch.Tensor
    bias: torch.Tensor | None
    matrix: Matrix


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeMatrix:
    """A weight `[num_out, num_in]` bf16 as the library multiplies with it."""
    num_out, num_in = weight.shape
    if weight.dtype is not torch.bfloat16 or num_in % 2:
        raise ValueError(f"a matrix of {weight.dtype} with {num_in} inputs cannot be packed")
    weight = weight.contiguous()
    size = -(-num_out // PANEL) * PANEL * num_in
    panels = torch.frombuffer(mapping(2 * size), dtype=torch.bfloat16)
    library().pcg_pack(weight.data_ptr(), num_out, num_in, panels.data_ptr())
    if bias is not None and bias.shape != (num_out,):
        raise ValueError(f"a bias of {tuple(bias.shape)} for {num_out} outputs")
    wide = None if bias is None else bias.float().contiguous()
    return NativeMatrix(
        panels,
        wide,
        Matrix(panels.data_ptr(), None if wide is None else wide.data_ptr(), num_in, num_out),
    )


def pack_gate_up(weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeMatrix:
    """The weight of the gate, then of what it gates, mixed so that each panel has 32 outputs of
    both."""
    mixed = weight.view(2, -1, _HALF, weight.shape[1]).transpose(0, 1).reshape(weight.shape)
    return pack(
        mixed, None if bias is None else bias.view(2, -1, _HALF).transpose(0, 1).reshape(-1)
    )


NATIVE: Final[MatrixFactories[NativeMatrix]] = MatrixFactories(pack, pack_gate_up, pack)


class NativeWeights:
    """A whole model in the library's structures, and everything their addresses point at.

    Positions up to `num_positions` are turned by a table, angles as in transformers. Raises
    `ModelUnsupported` where the sizes of matrices and norms do not fit together: the library takes
    them on trust.
    """

    def __init__(self, weights: LlamaWeights[NativeMatrix], num_positions: int) -> None:
        _check_sizes(weights)
        self._weights = weights
        self._kept: list[object] = []
        self.num_positions = num_positions
        self.vocabulary = weights.embedding.shape[0]
        self.num_logits: int = weights.head.matrix.num_out
        self.layers = (Layer * len(weights.layers))(*map(self._layer, weights.layers))
        shape = weights.shape
        self.model = Model(
            layers=ctypes.addressof(self.layers),
            embedding=self._keep(weights.embedding.contiguous()),
            norm=self._keep(weights.norm.float().contiguous()),
            turns=self._keep(_turns(weights, num_positions)),
            head=weights.head.matrix,
            heads=HeadsStruct(shape.num_heads, shape.num_kv_heads, shape.head_dim, 0),
            num_layers=len(weights.layers),
            hidden=weights.embedding.shape[1],
            eps=shape.eps,
        )

    def _layer(self, layer: LlamaLayer[NativeMatrix]) -> Layer:
        return Layer(
            qkv=layer.qkv.matrix,
            out=layer.out.matrix,
            gate_up=layer.gate_up.matrix,
            down=layer.down.matrix,
            attention_norm=self._keep(layer.attention_norm.float().contiguous()),
            mlp_norm=self._keep(layer.mlp_norm.float().contiguous()),
            qk_norm=None
            if layer.qk_norm is None
            else self._keep(layer.qk_norm.float().contiguous()),
        )

    def _keep(self, values: torch.Tensor) -> int:
        """The address of values that now live as long as this object."""
        self._kept.append(values)
        return values.data_ptr()


def _check_sizes(weights: LlamaWeights[NativeMatrix]) -> None:
    """Every layer of one shape, and all that is read along a row as long as the row."""
    shape, hidden = weights.shape, weights.embedding.shape[1]
    query, heads = shape.num_heads * shape.head_dim, shape.qk_heads + shape.num_kv_heads
    gated = weights.layers[0].down.matrix.num_in
    wanted = [
        (heads * shape.head_dim, hidden),
        (hidden, query),
        (2 * gated, hidden),
        (hidden, gated),
    ]
    fits = (
        shape.num_heads % shape.num_kv_heads == 0
        and weights.frequencies.numel() * 2 == shape.head_dim
    )
    fits = fits and weights.norm.numel() == weights.head.matrix.num_in == hidden
    for layer in weights.layers:
        matrices = (layer.qkv, layer.out, layer.gate_up, layer.down)
        fits = fits and [(one.matrix.num_out, one.matrix.num_in) for one in matrices] == wanted
        fits = fits and layer.attention_norm.numel() == layer.mlp_norm.numel() == hidden
        fits = fits and (
            layer.qk_norm is None or layer.qk_norm.shape == (shape.qk_heads, shape.head_dim)
        )
    if not fits:
        raise ModelUnsupported(
            "the sizes of its layers do not fit together as the native runner needs them"
        )


def _turns(weights: LlamaWeights[NativeMatrix], num_positions: int) -> torch.Tensor:
    """Cosine and sine of each pair by turns, `[num_positions, head_dim]` fp32, both times what the
    model scales them by."""
    angles = torch.arange(num_positions, dtype=torch.float32).unsqueeze(1) * weights.frequencies
    return (
        torch.stack([angles.cos(), angles.sin()], dim=2)
        .flatten(1)
        .mul_(weights.rope_scale)
        .contiguous()
    )
