"""Mixture-of-experts layers whose rows' bits depend on no other row: exact mode's experts.

Knows no routing.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

EXPERTS_NAME: Final = "pcg_fixed_rows"


def register() -> None:
    """Make `experts_implementation=EXPERTS_NAME` known to transformers. Idempotent."""
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, fixed_rows_experts)


def fixed_rows_experts(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Every chosen expert over *all* rows, weighted by zero where a row did not choose it, summed
    in expert order in fp32.

    Called by transformers as the `forward` of an experts module. `hidden_states [num_rows,
    hidden]`, `top_k_index` and `top_k_weights [num_rows, top_k]`; returns `[num_rows, hidden]`.
    Each linear sees all rows, so its row count is the group's. An expert that no row chose would
    add exactly zero and is left out.
    """
    num_rows = hidden_states.shape[0]
    weights = torch.zeros(
        (num_rows, module.num_experts), dtype=torch.float32, device=hidden_states.device
    )
    weights.scatter_add_(1, top_k_index, top_k_weights.float())
    total = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
    for expert in torch.unique(top_k_index).tolist():
        total += _expert(module, hidden_states, expert).float() * weights[:, expert, None]
    return total.to(hidden_states.dtype)


def _expert(module: Any, rows: torch.Tensor, expert: int) -> torch.Tensor:
    up = _linear(module, "gate_up_proj" if module.has_gate else "up_proj", rows, expert)
    out = _linear(
        module,
        "down_proj",
        module._apply_gate(up) if module.has_gate else module.act_fn(up),
        expert,
    )
    # Only models of newer transformers versions have a norm after each expert.
    return module.post_expert_norm(out) if getattr(module, "has_post_expert_norm", False) else out


def _linear(module: Any, name: str, rows: torch.Tensor, expert: int) -> torch.Tensor:
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    return F.linear(rows, weight.T if module.is_transposed else weight, bias)
