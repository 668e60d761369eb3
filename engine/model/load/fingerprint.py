"""The name of a runner's KV: equal fingerprints mean equal bits for equal tokens."""

from __future__ import annotations

import hashlib
from typing import Final

import torch
import transformers

from engine.model.load.plan import RunnerPlan
from engine.native.library import library

LAYOUT_VERSION: Final = 1
"""Changes whenever equal tokens would get other KV bits, or other bytes in a page, from the same
weights."""


def runner_fingerprint(plan: RunnerPlan, weights: str) -> str:
    """Hex SHA-256 over everything a token's KV bits depend on; `weights` names their content.

    With row groups that includes the machine's kernels.
    """
    parts: dict[str, object] = {
        "layout": LAYOUT_VERSION,
        "weights": weights,
        "dtype": plan.config.dtype,
        "runner": plan.runner,
        "block_size": plan.config.block_size,
        "context": plan.config.context,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "exact": plan.rows is not None,
    }
    if plan.runner == "native":
        parts["kernels"] = library().pcg_bits()
    if plan.paged is not None:
        parts["attention"] = plan.paged.kernel.name
    if plan.device.type != "cpu":
        parts["device"] = plan.device.type
    if plan.rows is not None:
        parts["rows"] = plan.rows
        parts["device"] = _kernels(plan)
    text = "".join(f"{name}={value!r}\0" for name, value in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _kernels(plan: RunnerPlan) -> str:
    if plan.device.type == "cuda":
        return torch.cuda.get_device_name(plan.device)
    return f"{torch.backends.cpu.get_cpu_capability()}/{plan.num_threads}"
