"""The weights of a Llama-shaped decoder, fused for the lean forward pass. Knows no pool, no sequences and no attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from transformers import PreTrainedConfig

from engine.errors import ModelUnsupported
from engine.model.linear import Int4Linear, Linear, can_quantize, int4_values, make_linear

ARCHITECTURES: Final = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
ROPE_TYPES: Final = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary scalings whose frequencies are fixed when the model is loaded."""


class Make(Protocol):
    """Makes a linear of a weight `[num_out, num_in]`."""

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes every layer shares. `qk_heads` are the heads that are rotated: of queries, then of keys."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float

    @property
    def qk_heads(self) -> int:
        return self.num_heads + self.num_kv_heads


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """One layer. `qkv` gives the heads of queries, keys and values in that order; `gate_up` the gate, then what it gates.

    Rotated pairs lie side by side in a query or key head, unlike in transformers, where they lie half a head apart: scores
    are the same. `qk_norm [qk_heads, head_dim]` are the weights of the norms before the rotation, if there are any.
    """

    attention_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LeanWeights:
    """A whole model. `frequencies [head_dim / 2]` fp32 in radians per token; `rope_scale` multiplies what is rotated."""

    shape: Shape
    embedding: torch.Tensor
    layers: tuple[LeanLayer, ...]
    norm: torch.Tensor
    head: Linear
    frequencies: torch.Tensor
    rope_scale: float


def why_not_lean(config: PreTrainedConfig) -> str | None:
    """The first thing of a configuration that the lean forward pass does not implement, or None where it does all."""
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


def take_weights(model: Any, *, int4: bool = False) -> LeanWeights:
    """The weights of a transformers model that `why_not_lean` has nothing against; the model is of no use afterwards.

    With `int4` the layers' matrices are quantized: the model went through `round_to_int4`.
    Each layer's own matrices are let go as soon as they are fused, so that the model is never in memory twice.
    """
    config, body = model.config, model.model
    shape = Shape(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=body.layers[0].self_attn.head_dim,
        eps=config.rms_norm_eps,
    )
    layers = []
    make: Make = Int4Linear if int4 else make_linear
    with torch.inference_mode():
        for index in range(len(body.layers)):
            layers.append(_fused(body.layers[index], shape, make))
            body.layers[index] = torch.nn.Identity()
        rotary = body.rotary_emb
        return LeanWeights(
            shape=shape,
            embedding=body.embed_tokens.weight.detach(),
            layers=tuple(layers),
            norm=body.norm.weight.detach(),
            head=make_linear(
                model.lm_head.weight.detach(), None if model.lm_head.bias is None else model.lm_head.bias.detach()
            ),
            frequencies=rotary.inv_freq.float(),
            rope_scale=float(rotary.attention_scaling),
        )


def round_to_int4(model: Any) -> None:
    """Give the matrices of the model's layers the values that 4-bit weights have. Embedding and head stay as they are.

    Raises `ModelUnsupported` for sizes that cannot be quantized.
    """
    with torch.inference_mode():
        for layer in model.model.layers:
            for module in layer.modules():
                if isinstance(module, torch.nn.Linear):
                    if not can_quantize(module.in_features, module.out_features):
                        raise ModelUnsupported(
                            f"dtype int4: a matrix of {module.out_features} x {module.in_features} cannot be quantized"
                        )
                    module.weight.data = int4_values(module.weight)


def _fused(layer: Any, shape: Shape, make: Make) -> LeanLayer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    qk_norm = None
    if getattr(attention, "q_norm", None) is not None:
        q_norm = _paired(attention.q_norm.weight.detach(), 1).expand(shape.num_heads, -1)
        k_norm = _paired(attention.k_norm.weight.detach(), 1).expand(shape.num_kv_heads, -1)
        qk_norm = torch.cat([q_norm, k_norm])
    heads = [shape.num_heads, shape.num_kv_heads, 0]
    return LeanLayer(
        attention_norm=layer.input_layernorm.weight.detach(),
        qkv=_joined(make, projections, heads),
        qk_norm=qk_norm,
        out=_joined(make, [attention.o_proj], [0]),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_joined(make, [mlp.gate_proj, mlp.up_proj], [0, 0]),
        down=_joined(make, [mlp.down_proj], [0]),
    )


def _joined(make: Make, linears: list[Any], heads: list[int]) -> Linear:
    """Several linears of one input as one; those with `heads` get their outputs paired for the rotation."""
    parts = zip(linears, heads, strict=True)
    weight = torch.cat([_paired(linear.weight.detach(), num) if num else linear.weight.detach() for linear, num in parts])
    if linears[0].bias is None:
        return make(weight)
    parts = zip(linears, heads, strict=True)
    return make(
        weight, torch.cat([_paired(linear.bias.detach(), num) if num else linear.bias.detach() for linear, num in parts])
    )


def _paired(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows `[num_heads * head_dim, ...]` in another order: what is rotated together, half a head apart, side by side."""
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)
