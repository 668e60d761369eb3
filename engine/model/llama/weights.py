"""The weights of a Llama-shaped decoder, fused for a forward pass of ours.

Knows no pool, no sequences and no attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import torch
from transformers import PreTrainedConfig

from engine.errors import ModelUnsupported
from engine.model.llama.linear import Int4Linear, Linear, can_quantize, int4_values, make_linear

ARCHITECTURES: Final = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
ROPE_TYPES: Final = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary scalings whose frequencies are fixed when the model is loaded."""


M = TypeVar("M")
"""A matrix of a forward pass: a `Linear`, or one in a layout of its own."""
M_co = TypeVar("M_co", covariant=True)


class MatrixFactory(Protocol[M_co]):
    """Makes a matrix of a weight `[num_out, num_in]`."""

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> M_co: ...


@dataclass(frozen=True, slots=True)
class MatrixFactories(Generic[M]):
    """Factories of a model's matrices: those of its layers, of them the one of gate and up, and the
    head."""

    layer: MatrixFactory[M]
    gate_up: MatrixFactory[M]
    head: MatrixFactory[M]


LINEARS: Final[MatrixFactories[Linear]] = MatrixFactories(make_linear, make_linear, make_linear)
INT4_LINEARS: Final[MatrixFactories[Linear]] = MatrixFactories(Int4Linear, Int4Linear, make_linear)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes every layer shares. `qk_heads` are the heads that are rotated: of queries, then of
    keys."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float

    @property
    def qk_heads(self) -> int:
        return self.num_heads + self.num_kv_heads


@dataclass(frozen=True, slots=True)
class LlamaLayer(Generic[M]):
    """One layer. `qkv` gives the heads of queries, keys and values in that order; `gate_up` the
    gate, then what it gates.

    Rotated pairs lie side by side in a query or key head, unlike in transformers, where they lie
    half a head apart: scores are the same. `qk_norm [qk_heads, head_dim]` are the weights of the
    norms before the rotation, if there are any.
    """

    attention_norm: torch.Tensor
    qkv: M
    qk_norm: torch.Tensor | None
    out: M
    mlp_norm: torch.Tensor
    gate_up: M
    down: M


@dataclass(frozen=True, slots=True)
class LlamaWeights(Generic[M]):
    """A whole model. `frequencies [head_dim / 2]` fp32 in radians per token; `rope_scale`
    multiplies what is rotated."""

    shape: Shape
    embedding: torch.Tensor
    layers: tuple[LlamaLayer[M], ...]
    norm: torch.Tensor
    head: M
    frequencies: torch.Tensor
    rope_scale: float


def why_not_llama(config: PreTrainedConfig) -> str | None:
    """The first thing of a configuration that makes a model no Llama-shaped one, or None if it is
    one."""
    name = (getattr(config, "architectures", None) or [config.model_type])[0]
    if name not in ARCHITECTURES:
        return f"{name} is not one of {', '.join(sorted(ARCHITECTURES))}"
    if getattr(config, "hidden_act", None) != "silu":
        return f"{name} has the activation {config.hidden_act!r}, not silu"
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if "rope_theta" not in rope or kind not in ROPE_TYPES:
        return f"{name} has the rotary scaling {kind!r}, not one of {', '.join(sorted(ROPE_TYPES))}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return f"{name} rotates only a part of each head"
    return None


def fuse_weights(model: Any, factories: MatrixFactories[M]) -> LlamaWeights[M]:
    """The weights of a transformers model that `why_not_llama` has nothing against; the model is of
    no use afterwards.

    Each layer's own matrices are let go as soon as they are fused, so that the model is never in
    memory twice.
    """
    config, body = model.config, model.model
    shape = Shape(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=body.layers[0].self_attn.head_dim,
        eps=config.rms_norm_eps,
    )
    layers = []
    with torch.inference_mode():
        for index in range(len(body.layers)):
            layers.append(_fused(body.layers[index], shape, factories))
            body.layers[index] = torch.nn.Identity()
        rotary = body.rotary_emb
        return LlamaWeights(
            shape=shape,
            embedding=body.embed_tokens.weight.detach(),
            layers=tuple(layers),
            norm=body.norm.weight.detach(),
            head=factories.head(
                model.lm_head.weight.detach(),
                None if model.lm_head.bias is None else model.lm_head.bias.detach(),
            ),
            frequencies=rotary.inv_freq.float(),
            rope_scale=float(rotary.attention_scaling),
        )


def round_to_int4(model: Any) -> None:
    """Give the matrices of the model's layers the values that 4-bit weights have. Embedding and
    head stay as they are.

    Raises `ModelUnsupported` for sizes that cannot be quantized.
    """
    with torch.inference_mode():
        for layer in model.model.layers:
            for module in layer.modules():
                if isinstance(module, torch.nn.Linear):
                    if not can_quantize(module.in_features, module.out_features):
                        raise ModelUnsupported(
                            f"dtype int4: a matrix of {module.out_features} x "
                            f"{module.in_features} cannot be quantized"
                        )
                    module.weight.data = int4_values(module.weight)


def _fused(layer: Any, shape: Shape, factories: MatrixFactories[M]) -> LlamaLayer[M]:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    qk_norm = None
    if getattr(attention, "q_norm", None) is not None:
        q_norm = _paired(attention.q_norm.weight.detach(), 1).expand(shape.num_heads, -1)
        k_norm = _paired(attention.k_norm.weight.detach(), 1).expand(shape.num_kv_heads, -1)
        qk_norm = torch.cat([q_norm, k_norm])
    heads = [shape.num_heads, shape.num_kv_heads, 0]
    return LlamaLayer(
        attention_norm=layer.input_layernorm.weight.detach(),
        qkv=_joined(factories.layer, projections, heads),
        qk_norm=qk_norm,
        out=_joined(factories.layer, [attention.o_proj], [0]),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_joined(factories.gate_up, [mlp.gate_proj, mlp.up_proj], [0, 0]),
        down=_joined(factories.layer, [mlp.down_proj], [0]),
    )


def _joined(make: MatrixFactory[M], linears: list[Any], heads: list[int]) -> M:
    """Several linears of one input as one; those with `heads` get their outputs paired for the
    rotation."""
    parts = zip(linears, heads, strict=True)
    weight = torch.cat(
        [
            _paired(linear.weight.detach(), num) if num else linear.weight.detach()
            for linear, num in parts
        ]
    )
    if linears[0].bias is None:
        return make(weight)
    parts = zip(linears, heads, strict=True)
    return make(
        weight,
        torch.cat(
            [
                _paired(linear.bias.detach(), num) if num else linear.bias.detach()
                for linear, num in parts
            ]
        ),
    )


def _paired(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows `[num_heads * head_dim, ...]` in another order: what is rotated together, half a head
    apart, side by side."""
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)
