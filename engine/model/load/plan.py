"""Everything about a runner that is decided before its weights are loaded.

Reads a model's configuration and asks the device; loads no weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import msgspec
import torch
from transformers import PreTrainedConfig

from engine.config import EngineConfig
from engine.errors import ModelError, ModelUnsupported
from engine.model.kv_pool import KvShape
from engine.model.llama.weights import why_not_llama
from engine.model.load.model_config import layer_windows
from engine.model.native.forward import why_not_native_model
from engine.model.paged.cuda import DeviceFeatures, cuda_features
from engine.model.paged.load import PagedPlan, choose_paged
from engine.model.paged.probe import HeadShape
from engine.model.rows import RowGroups

DTYPES: Final[dict[str, torch.dtype]] = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "int4": torch.bfloat16,
}
"""The dtype of KV and activations, by the dtype asked for."""


@dataclass(frozen=True, slots=True)
class RunnerPlan:
    """The choices for one model on one device.

    `runner` is `native`, `lean` or `generic`. `config` has the page size and the pool size that the
    device asks for. `rows` are the row groups by which the generic runner is exact (None: fast
    mode, or another runner). `features` and `paged` are None where the device offers nothing.
    """

    runner: str
    config: EngineConfig
    device: torch.device
    num_threads: int
    shape: KvShape
    windows: tuple[int | None, ...]
    exact: bool
    rows: RowGroups | None
    features: DeviceFeatures | None
    paged: PagedPlan | None


def plan_runner(
    config: EngineConfig, model_config: PreTrainedConfig, features: DeviceFeatures | None = None
) -> RunnerPlan:
    """Choose the runner for a model; `features` are by default those of the device.

    Pages are larger than `config.block_size` where the device's attention kernel needs that. Raises
    `ModelUnsupported` for what the configuration asks and no runner does, `ModelError` for a device
    that torch does not have.
    """
    device = _choose_device(config)
    runner = choose_runner(config, model_config, device)
    exact = choose_exact(config, runner)
    shape, windows = _kv_shape(config, model_config), layer_windows(model_config)
    if features is None and device.type == "cuda":
        features = cuda_features(device)
    if features is not None and features.memory_nbytes and config.kv_share:
        kv_nbytes = int(config.kv_share * features.memory_nbytes)
        config = msgspec.structs.replace(config, kv_nbytes=kv_nbytes)
    paged = None
    if features is not None and runner == "lean":
        num_heads: int = model_config.num_attention_heads
        heads = HeadShape(num_heads, shape.num_kv_heads, shape.head_dim, shape.dtype, windows)
        paged = choose_paged(features, config, heads, device)
        config = paged.config
    return RunnerPlan(
        runner=runner,
        config=config,
        device=device,
        num_threads=config.num_threads or _num_cores(),
        shape=shape,
        windows=windows,
        exact=exact,
        rows=RowGroups() if runner == "generic" and exact else None,
        features=features,
        paged=paged,
    )


def choose_runner(
    config: EngineConfig, model_config: PreTrainedConfig, device: torch.device
) -> str:
    """The rule of `runner: auto`: native where it does the model here, then lean in fast mode, else
    generic.

    Raises `ModelUnsupported` where a runner is asked for that cannot do it.
    """
    reasons = {
        "native": why_not_llama(model_config) or _why_not_native(config, model_config, device),
        "lean": why_not_llama(model_config) or _why_not_lean(config, device),
        "generic": "dtype int4 is the lean runner's" if config.dtype == "int4" else None,
    }
    if config.runner == "auto":
        found = next((name for name, reason in reasons.items() if reason is None), None)
        if found is None:
            raise ModelUnsupported(
                f"dtype int4 needs the lean runner, which cannot be used: {reasons['lean']}"
            )
        return found
    reason = reasons[config.runner]
    if reason is not None:
        raise ModelUnsupported(
            f"runner: {config.runner} cannot be used: {reason}; set runner: auto"
        )
    return config.runner


def _why_not_native(
    config: EngineConfig, model_config: PreTrainedConfig, device: torch.device
) -> str | None:
    if device.type != "cpu":
        return f"it runs on the CPU, not on {device.type}"
    if config.dtype != "bfloat16":
        return f"it computes in bfloat16, not in {config.dtype}"
    return why_not_native_model(model_config, layer_windows(model_config), config.block_size)


def _why_not_lean(config: EngineConfig, device: torch.device) -> str | None:
    if config.exact == "on":
        return "it has no exact mode, and exact: on is set"
    if device.type not in ("cpu", "cuda"):
        return f"it runs on the CPU and on CUDA, not on {device.type}"
    if config.dtype == "int4" and device.type != "cpu":
        return f"its 4-bit weights are for the CPU, not for {device.type}"
    return None


def choose_exact(config: EngineConfig, runner: str) -> bool:
    """The rule of `exact: auto`: on where it costs at most 10 % of cold TTFT.

    The native runner is exact as it is, whatever is asked for. The generic one pays for it with
    rows and keys padded to fixed numbers: 42 % of cold TTFT at 2,000 tokens of the default model
    (AVX512-BF16 CPU, torch 2.13), 44 % at 4,000.
    """
    return runner == "native" or config.exact == "on"


def _choose_device(config: EngineConfig) -> torch.device:
    if config.dtype not in DTYPES:
        raise ModelUnsupported(
            f"dtype {config.dtype!r} is not supported (known: {', '.join(DTYPES)})"
        )
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r}: unknown to torch") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {name!r}: this torch sees no CUDA device")
    return device


def _num_cores() -> int:
    """Cores this process may use: fewer than the machine has inside a container or under
    taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _kv_shape(config: EngineConfig, model_config: PreTrainedConfig) -> KvShape:
    num_heads: int = model_config.num_attention_heads
    return KvShape(
        num_layers=model_config.num_hidden_layers,
        num_kv_heads=getattr(model_config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(model_config, "head_dim", None) or model_config.hidden_size // num_heads,
        dtype=DTYPES[config.dtype],
    )
