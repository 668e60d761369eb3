"""From an `EngineConfig` to a runner that is ready and checked.

The one door into `engine.model` for the engine.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from engine.config import EngineConfig
from engine.errors import ModelDamaged, ModelError, ModelUnsupported
from engine.model.checks import check_exact, check_faithful
from engine.model.generic import attention, experts
from engine.model.generic.forward import GenericForward
from engine.model.kv_pool import KvPool, KvShape
from engine.model.lean.forward import LeanForward
from engine.model.lean.weights import LEAN, LEAN_INT4, round_to_int4, take_weights, why_not_lean
from engine.model.load.manifest import ModelFiles, check_folder, content_digest
from engine.model.load.reference import check_layers, reference_logits
from engine.model.load.support import check_supported, fit_context, has_experts, layer_windows
from engine.model.native.forward import NativeForward, why_not_native_model
from engine.model.native.pages import NativePages
from engine.model.native.weights import NATIVE, NativeWeights
from engine.model.paged.cuda import DeviceFeatures, cuda_features
from engine.model.paged.load import NUM_SPARE, Paged, choose_paged
from engine.model.paged.probe import HeadShape
from engine.model.paged.staging import StagedPages
from engine.model.rows import PREFILL_ROWS, RowGroups
from engine.model.runner import Forward, Identity, LogitsSink, PageMover, TorchRunner
from engine.native.library import library

LAYOUT_VERSION: Final = 1
"""Changes whenever equal tokens would get other KV bits, or other bytes in a page, from the same
weights."""

READY_NBYTES: Final = 256 * 1024**2
"""Of the pool, touched before anybody waits: a fresh process takes a long prefix from a tier
several times as fast (92 MB of KV in 18 ms, not 250, where a virtual machine's memory is fresh,
too)."""

DTYPES: Final[dict[str, torch.dtype]] = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "int4": torch.bfloat16,
}
"""What KV and activations are in, by the dtype asked for."""


@dataclass(frozen=True, slots=True)
class _Placement:
    """Where and how precisely the model computes."""

    device: torch.device
    dtype: torch.dtype
    num_threads: int


def load_runner(
    config: EngineConfig, logits_sink: LogitsSink | None = None, kit: DeviceFeatures | None = None
) -> TorchRunner:
    """Load the model folder `config.model_path` and return a warm runner for it; see `make_runner`.

    Raises `ModelNotFound`, `ModelDamaged`, or what `make_runner` raises.
    """
    files = check_folder(Path(config.model_path))
    model_config = _read_config(files.folder)
    check_supported(model_config)
    fit_context(model_config, config.context)
    placement = _place(config)
    torch.set_num_threads(placement.num_threads)
    runner = choose_runner(
        config, model_config, placement.device
    )  # what it refuses is refused before anything is loaded
    model = _load_model(files, model_config, placement, grouped=_is_grouped(config, runner))
    return make_runner(model, config, content_digest(files), logits_sink, kit)


def make_runner(
    model: Any,
    config: EngineConfig,
    weights: str,
    logits_sink: LogitsSink | None = None,
    kit: DeviceFeatures | None = None,
) -> TorchRunner:
    """A warm runner of a transformers model on the device it shall run on, made with
    `ATTENTION_NAME`.

    `weights` names the weights' content. `kit` is by default what the device has. Its pages are
    larger than `config.block_size` where the device's attention kernel needs that. Sets torch's
    thread count. With `exact="on"` the runner is exact or this raises; else see `choose_exact`.
    Raises `ModelUnsupported`, or `ModelError` when `kv_nbytes` is too small for one context.
    """
    placement = _place(config)
    torch.set_num_threads(placement.num_threads)
    runner = choose_runner(config, model.config, placement.device)
    rows = RowGroups() if _is_grouped(config, runner) else None
    shape, windows = _kv_shape(model.config, placement), layer_windows(model.config)
    if kit is None and placement.device.type == "cuda":
        kit = cuda_features(placement.device)
    if kit is not None and kit.memory_nbytes and config.kv_share:
        config = msgspec.structs.replace(config, kv_nbytes=int(config.kv_share * kit.memory_nbytes))
    paged = None
    if kit is not None and runner == "lean":
        heads = HeadShape(
            model.config.num_attention_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.dtype,
            windows,
        )
        paged = choose_paged(kit, config, heads, placement.device)
        config = paged.config
    identity = Identity(
        fingerprint=_fingerprint(config, weights, placement, _RunnerKind(runner, rows, paged)),
        windows=windows,
        exact=choose_exact(config, runner),
        rows=rows,
    )
    num_spare = 0 if paged is None else NUM_SPARE
    try:
        pool = KvPool(
            shape,
            _num_pages(config, shape),
            config.block_size,
            placement.device,
            num_spare=num_spare,
        )
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"kv_nbytes={config.kv_nbytes} does not fit on {placement.device} beside the weights"
        ) from error
    pool.touch(READY_NBYTES)
    forward = _checked(
        model, pool, identity, _BuiltRunner(runner, paged, config, placement.num_threads)
    )
    return TorchRunner(forward, pool, identity, logits_sink, _moves(pool, runner, kit))


@dataclass(frozen=True, slots=True)
class _BuiltRunner:
    """What a forward pass is made of besides model and pool."""

    runner: str
    paged: Paged | None
    config: EngineConfig
    num_threads: int


def choose_runner(
    config: EngineConfig, model_config: PreTrainedConfig, device: torch.device
) -> str:
    """The rule of `runner: auto`: native where it does the model here, then lean in fast mode, else
    generic.

    Raises `ModelUnsupported` where a runner is asked for that cannot do it.
    """
    reasons = {
        "native": why_not_lean(model_config) or _why_not_native(config, model_config, device),
        "lean": why_not_lean(model_config) or _why_not_lean(config, device),
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


def _is_grouped(config: EngineConfig, runner: str) -> bool:
    """Whether a runner is exact by fixed groups of rows."""
    return runner == "generic" and choose_exact(config, runner)


def _checked(model: Any, pool: KvPool, identity: Identity, made: _BuiltRunner) -> Forward:
    """The model's forward pass, which has shown that it is transformers' own; of another's model
    only the weights remain."""
    name, vocabulary = type(model).__name__, model.config.vocab_size
    if made.config.dtype == "int4":
        round_to_int4(model)
    if made.runner == "generic":
        check_layers(model, pool, identity)
    reference = reference_logits(model, pool.page_size)
    forward = _forward(model, pool, identity, made)
    check_faithful(name, forward, pool, reference)
    if identity.exact:
        check_exact(name, forward, pool, vocabulary)
    return forward


def _moves(pool: KvPool, runner: str, kit: DeviceFeatures | None) -> PageMover | None:
    """What is faster than the pool itself, if anything is."""
    if runner == "native":
        return NativePages(pool)
    return None if kit is None or kit.copies is None else StagedPages(pool, kit.copies)


def _forward(model: Any, pool: KvPool, identity: Identity, made: _BuiltRunner) -> Forward:
    if made.runner == "native":
        # A check computes up to two groups of rows, however short the context.
        weights = NativeWeights(
            take_weights(model, NATIVE), max(made.config.context, 2 * PREFILL_ROWS)
        )
        # From here on torch only samples, and does so alone: its threads would spin beside the
        # library's.
        torch.set_num_threads(1)
        return NativeForward(weights, pool, identity.windows, made.num_threads)
    if made.runner == "lean":
        lean = take_weights(model, LEAN_INT4 if made.config.dtype == "int4" else LEAN)
        return (
            LeanForward(lean, pool, identity)
            if made.paged is None
            else made.paged.forward(lean, pool)
        )
    return GenericForward(model, pool, identity)


def _read_config(folder: Path) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (ValueError, KeyError, OSError, TypeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelUnsupported(
            f"{folder / 'config.json'}: transformers {transformers.__version__} cannot use it: "
            f"{reason}"
        ) from error
    return config


def _place(config: EngineConfig) -> _Placement:
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
    return _Placement(device, DTYPES[config.dtype], config.num_threads or _num_cores())


def _num_cores() -> int:
    """Cores this process may use: fewer than the machine has inside a container or under
    taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load_model(
    files: ModelFiles, model_config: PreTrainedConfig, placement: _Placement, *, grouped: bool
) -> Any:
    attention.register()
    experts.register()
    auto: Any = AutoModelForCausalLM  # its annotations do not know `output_loading_info`
    options: dict[str, Any] = {}
    if grouped and has_experts(model_config):
        options["experts_implementation"] = experts.EXPERTS_NAME
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model, info = auto.from_pretrained(
            files.folder,
            config=model_config,
            dtype=placement.dtype,
            attn_implementation=attention.ATTENTION_NAME,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ModelUnsupported(f"{files.folder}: {' '.join(str(error).split())[:300]}") from error
    except (RuntimeError, OSError) as error:
        raise ModelDamaged(f"{files.folder}: {' '.join(str(error).split())[:300]}") from error
    if missing := sorted(info["missing_keys"]):
        raise ModelDamaged(f"{files.folder}: {len(missing)} tensors missing, first {missing[0]}")
    return model.eval().to(placement.device)


def _kv_shape(model_config: PreTrainedConfig, placement: _Placement) -> KvShape:
    num_heads: int = model_config.num_attention_heads
    return KvShape(
        num_layers=model_config.num_hidden_layers,
        num_kv_heads=getattr(model_config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(model_config, "head_dim", None) or model_config.hidden_size // num_heads,
        dtype=placement.dtype,
    )


def _num_pages(config: EngineConfig, shape: KvShape) -> int:
    """Pages that fit `kv_nbytes`; at least one sequence of full context must."""
    page_nbytes = shape.page_nbytes(config.block_size)
    needed = -(-config.context // config.block_size)
    num_pages = config.kv_nbytes // page_nbytes
    if num_pages < needed:
        raise ModelError(
            f"kv_nbytes={config.kv_nbytes} holds {num_pages * config.block_size} tokens; one "
            "context of "
            f"{config.context} tokens needs {needed * page_nbytes} bytes"
        )
    return num_pages


@dataclass(frozen=True, slots=True)
class _RunnerKind:
    """Which forward pass it is: the name, and what it groups rows by and attends with, if it
    does."""

    runner: str
    rows: RowGroups | None
    paged: Paged | None


def _fingerprint(
    config: EngineConfig, weights: str, placement: _Placement, kind: _RunnerKind
) -> str:
    """Hex SHA-256 over everything a token's KV bits depend on. With row groups that includes the
    machine's kernels."""
    parts: dict[str, object] = {
        "layout": LAYOUT_VERSION,
        "weights": weights,
        "dtype": config.dtype,
        "runner": kind.runner,
        "block_size": config.block_size,
        "context": config.context,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "exact": kind.rows is not None,
    }
    if kind.runner == "native":
        parts["kernels"] = library().pcg_bits()
    if kind.paged is not None:
        parts["attention"] = kind.paged.kernel.name
    if placement.device.type != "cpu":
        parts["device"] = placement.device.type
    if kind.rows is not None:
        parts["rows"] = kind.rows
        parts["device"] = _kernels(placement)
    text = "".join(f"{name}={value!r}\0" for name, value in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _kernels(placement: _Placement) -> str:
    if placement.device.type == "cuda":
        return torch.cuda.get_device_name(placement.device)
    return f"{torch.backends.cpu.get_cpu_capability()}/{placement.num_threads}"
