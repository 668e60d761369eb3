"""From an `EngineConfig` to a runner that is ready and checked.

The one door into `engine.model` for the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

from engine.config import EngineConfig
from engine.errors import ModelDamaged, ModelError, ModelUnsupported
from engine.model.checks import check_exact, check_faithful
from engine.model.generic import attention, experts
from engine.model.generic.forward import GenericForward
from engine.model.kv_pool import KvPool
from engine.model.lean.forward import LeanForward
from engine.model.llama.weights import INT4_LINEARS, LINEARS, fuse_weights, round_to_int4
from engine.model.load.fingerprint import runner_fingerprint
from engine.model.load.manifest import ModelFiles, check_folder, content_digest
from engine.model.load.model_config import check_supported, fit_context, has_experts, read_config
from engine.model.load.plan import RunnerPlan, plan_runner
from engine.model.load.reference import check_layers, reference_logits
from engine.model.native.forward import NativeForward
from engine.model.native.pages import NativePages
from engine.model.native.weights import NATIVE, NativeWeights
from engine.model.paged.cuda import DeviceFeatures
from engine.model.paged.load import NUM_SPARE
from engine.model.paged.staging import StagedPages
from engine.model.rows import PREFILL_ROWS
from engine.model.runner import Forward, Identity, LogitsSink, PageMover, TorchRunner

READY_NBYTES: Final = 256 * 1024**2
"""The bytes of the pool that are touched before the first request.

A fresh process then takes a long prefix from a tier several times as fast: 92 MB of KV in 18 ms,
not 250, where a virtual machine's memory is fresh, too.
"""


def load_runner(
    config: EngineConfig,
    logits_sink: LogitsSink | None = None,
    features: DeviceFeatures | None = None,
) -> TorchRunner:
    """Load the model folder `config.model_path` and return a warm runner for it.

    `features` are by default those of the device. Raises `ModelNotFound`, `ModelDamaged`, or what
    `plan_runner` and `build_runner` raise.
    """
    files = check_folder(Path(config.model_path))
    model_config = read_config(files.folder)
    check_supported(model_config)
    fit_context(model_config, config.context)
    # The plan refuses before anything is loaded.
    plan = plan_runner(config, model_config, features)
    model = _load_model(files, model_config, plan)
    return build_runner(model, plan, content_digest(files), logits_sink)


def build_runner(
    model: Any, plan: RunnerPlan, weights: str, logits_sink: LogitsSink | None = None
) -> TorchRunner:
    """A warm runner of a transformers model on the plan's device, made with `ATTENTION_NAME`.

    `weights` names the weights' content. The model itself is of no use afterwards. Sets torch's
    thread count. Raises `ModelUnsupported`, also where an exact runner is not exact here, or
    `ModelError` when `kv_nbytes` is too small for one context.
    """
    torch.set_num_threads(plan.num_threads)
    identity = Identity(
        fingerprint=runner_fingerprint(plan, weights),
        windows=plan.windows,
        exact=plan.exact,
        rows=plan.rows,
    )
    pool = _make_pool(plan)
    pool.touch(READY_NBYTES)
    forward = _checked_forward(model, pool, identity, plan)
    return TorchRunner(forward, pool, identity, logits_sink, _page_mover(pool, plan))


def _make_pool(plan: RunnerPlan) -> KvPool:
    num_spare = 0 if plan.paged is None else NUM_SPARE
    page_size = plan.config.block_size
    try:
        return KvPool(plan.shape, _num_pages(plan), page_size, plan.device, num_spare=num_spare)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"kv_nbytes={plan.config.kv_nbytes} does not fit on {plan.device} beside the weights"
        ) from error


def _num_pages(plan: RunnerPlan) -> int:
    """Pages that fit `kv_nbytes`; at least one sequence of full context must."""
    config = plan.config
    page_nbytes = plan.shape.page_nbytes(config.block_size)
    needed = -(-config.context // config.block_size)
    num_pages = config.kv_nbytes // page_nbytes
    if num_pages < needed:
        raise ModelError(
            f"kv_nbytes={config.kv_nbytes} holds {num_pages * config.block_size} tokens; one "
            f"context of {config.context} tokens needs {needed * page_nbytes} bytes"
        )
    return num_pages


def _checked_forward(model: Any, pool: KvPool, identity: Identity, plan: RunnerPlan) -> Forward:
    """The model's forward pass, checked against transformers' own."""
    name, vocabulary = type(model).__name__, model.config.vocab_size
    if plan.config.dtype == "int4":
        round_to_int4(model)
    if plan.runner == "generic":
        check_layers(model, pool, identity)
    reference = reference_logits(model, pool.page_size)
    forward = _make_forward(model, pool, identity, plan)
    check_faithful(name, forward, pool, reference)
    if identity.exact:
        check_exact(name, forward, pool, vocabulary)
    return forward


def _make_forward(model: Any, pool: KvPool, identity: Identity, plan: RunnerPlan) -> Forward:
    if plan.runner == "native":
        # A check computes up to two groups of rows, however short the context.
        num_positions = max(plan.config.context, 2 * PREFILL_ROWS)
        native = NativeWeights(fuse_weights(model, NATIVE), num_positions)
        # From here on torch only samples, and does so alone: its threads would spin beside the
        # library's.
        torch.set_num_threads(1)
        return NativeForward(native, pool, plan.windows, plan.num_threads)
    if plan.runner == "lean":
        lean = fuse_weights(model, INT4_LINEARS if plan.config.dtype == "int4" else LINEARS)
        return (
            LeanForward(lean, pool, plan.windows)
            if plan.paged is None
            else plan.paged.forward(lean, pool)
        )
    return GenericForward(model, pool, identity)


def _page_mover(pool: KvPool, plan: RunnerPlan) -> PageMover | None:
    """A faster way to move pages than the pool's own, if there is one."""
    if plan.runner == "native":
        return NativePages(pool)
    copies = None if plan.features is None else plan.features.copies
    return None if copies is None else StagedPages(pool, copies)


def _load_model(files: ModelFiles, model_config: PreTrainedConfig, plan: RunnerPlan) -> Any:
    attention.register()
    experts.register()
    auto: Any = AutoModelForCausalLM  # its annotations do not know `output_loading_info`
    options: dict[str, Any] = {}
    if plan.rows is not None and has_experts(model_config):
        options["experts_implementation"] = experts.EXPERTS_NAME
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model, info = auto.from_pretrained(
            files.folder,
            config=model_config,
            dtype=plan.shape.dtype,
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
    return model.eval().to(plan.device)
