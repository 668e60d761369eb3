"""Loading: what is refused, by which name; fingerprints; stretched positions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen3Config,
)

from engine.config import EngineConfig
from engine.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported
from engine.model.generic.attention import paged_attention
from engine.model.llama.weights import why_not_llama
from engine.model.load.load import load_runner
from engine.model.load.model_config import check_supported, fit_context, layer_windows
from engine.model.native.forward import why_not_native_model
from engine.native import library as native_library
from tests.fakes.native import NEEDS_NATIVE
from tests.fakes.tiny_models import FAMILIES, WINDOW, tiny_config
from tests.fakes.torch_driver import Driver

pytestmark = pytest.mark.engine

TINY: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}

Folder = Callable[[str], Path]


@pytest.fixture
def folder(tiny_folder: Folder, tmp_path: Path) -> Path:
    """A private copy of the tiny Llama, to damage."""
    for path in tiny_folder("llama").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_bytes()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def load(folder: Path, **options: Any) -> None:
    """Load and close."""
    Driver(folder, **options).runner.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "encoder-decoder"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "not a decoder-only"),
        ({"model_type": "no-such-model"}, "no-such-model"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "recurrent"),
        (
            {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]},
            "latent attention",
        ),
        ({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}, "soft-capped"),
        (
            {
                "layer_types": ["full_attention", "linear_attention", "full_attention"],
                "model_type": "qwen3",
            },
            "linear_attention",
        ),
        (
            {
                "layer_types": ["full_attention", "chunked_attention", "full_attention"],
                "model_type": "qwen3",
            },
            "chunked_attention",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized"),
    ],
    ids=str,
)
def test_unsupported_is_refused_by_name(folder: Path, changes: dict[str, Any], words: str) -> None:
    """Each architecture we do not implement is refused before its weights are read, and named."""
    edit_config(folder, **changes)
    with pytest.raises(ModelUnsupported, match=words):
        load(folder)


@pytest.mark.parametrize(
    "argument",
    [{"softcap": 50.0}, {"s_aux": object()}, {"something_new": 1}, {"dropout": 0.1}],
    ids=str,
)
def test_unknown_attention_arguments_raise(argument: dict[str, Any]) -> None:
    """An attention argument that would change the result is refused when it arrives, whatever the
    configuration said."""
    nothing: Any = None
    with pytest.raises(ModelUnsupported, match=next(iter(argument))):
        paged_attention(
            LlamaConfig(), nothing, nothing, nothing, None, pcg_pass=object(), **argument
        )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            GptOssConfig(
                **TINY,
                num_key_value_heads=2,
                head_dim=16,
                num_local_experts=2,
                num_experts_per_tok=1,
            ),
            "s_aux",
        ),
        (BloomConfig(vocab_size=320, hidden_size=32, n_layer=2, n_head=2), "Bloom"),
    ],
    ids=["sinks", "alibi"],
)
def test_what_only_the_model_shows_is_refused(
    config: PreTrainedConfig, words: str, tmp_path: Path, folder: Path
) -> None:
    """Attention sinks, and attention that is not transformers' interface at all, are found before
    the model serves."""
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ModelUnsupported, match=words):
        load(tmp_path / "other")


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(
            vocab_size=320,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=2048,
            bos_token_id=1,
            eos_token_id=2,
        ),
        Phi3Config(**TINY, num_key_value_heads=2, pad_token_id=0, sliding_window=None),
        GraniteConfig(**TINY, num_key_value_heads=2, logits_scaling=4.0, attention_multiplier=0.3),
        Olmo2Config(**TINY, num_key_value_heads=2),
    ],
    ids=lambda config: config.model_type,
)
def test_other_families_load(config: PreTrainedConfig, tmp_path: Path, folder: Path) -> None:
    """Families without a test of their own pass the check against transformers at load, exact
    mode's check included."""
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    load(tmp_path / "other", exact="on", dtype="float32")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file(folder: Path, name: str) -> None:
    """A folder that lacks something is no model."""
    (folder / name).unlink()
    with pytest.raises(ModelNotFound, match="safetensors"):
        load(folder)


def test_missing_folder(tmp_path: Path) -> None:
    """No folder, no model."""
    with pytest.raises(ModelNotFound, match="no such model folder"):
        load(tmp_path / "absent")


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_weights(folder: Path, keep: int) -> None:
    """A weights file cut anywhere is damaged, even by one byte."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(ModelDamaged, match=r"model\.safetensors"):
        load(folder)


def test_missing_tensors(folder: Path) -> None:
    """Weights that do not fill the model are damaged, not silently random."""
    edit_config(folder, num_hidden_layers=4, layer_types=None)
    with pytest.raises(ModelDamaged, match="tensors missing"):
        load(folder)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"dtype": "int3"}, ModelUnsupported, "int3"),
        ({"device": "abacus"}, ModelError, "abacus"),
        ({"kv_nbytes": 1000}, ModelError, "needs"),
    ],
    ids=str,
)
def test_bad_settings(
    folder: Path, options: dict[str, Any], error: type[ModelError], words: str
) -> None:
    """Settings this machine or engine cannot follow are said plainly."""
    with pytest.raises(error, match=words):
        load(folder, **options)


def test_fingerprint_names_what_kv_depends_on(tiny_folder: Folder, folder: Path) -> None:
    """Equal content in another folder has the same fingerprint; every setting that changes KV bits
    changes it."""
    base: dict[str, Any] = {"exact": "off", "dtype": "float32"}
    variants: list[dict[str, Any]] = [
        base,
        base | {"exact": "on"},
        base | {"dtype": "bfloat16"},
        base | {"block_size": 32},
    ]
    drivers = [Driver(folder, **options) for options in variants]
    prints = [driver.runner.fingerprint for driver in drivers]
    assert len(set(prints)) == len(prints)
    assert Driver(tiny_folder("llama"), **base).runner.fingerprint == prints[0]
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert Driver(folder, **base).runner.fingerprint != prints[0]


def test_closed_runner(folder: Path) -> None:
    """Close twice is fine; use after close is an error."""
    runner = Driver(folder).runner
    runner.close()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.read_pages([0])


def test_engine_config_is_enough(folder: Path) -> None:
    """The runner has the pages that fit, of the size it says."""
    config = EngineConfig(
        model="x", model_path=str(folder), root_secret=b"0" * 16, context=512, kv_nbytes=10_000_000
    )
    runner = load_runner(config)
    assert runner.page_nbytes == 3 * 2 * 16 * 2 * 16 * 2
    assert runner.num_pages == 10_000_000 // runner.page_nbytes
    runner.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_context_beyond_training(family: str, tiny_folder: Folder) -> None:
    """Past the trained length positions are scaled by a fixed factor, or it is refused; within it
    nothing changes."""
    config = AutoConfig.from_pretrained(tiny_folder(family))
    before = json.dumps(config.to_dict(), default=str)
    fit_context(config, 2048)
    assert json.dumps(config.to_dict(), default=str) == before
    if family == "gemma3":
        with pytest.raises(ModelUnsupported, match="trained for 2048"):
            fit_context(config, 8192)
        return
    fit_context(config, 8192)
    assert config.rope_parameters["rope_type"] == "yarn"
    assert config.rope_parameters["factor"] == 4.0
    driver = Driver(tiny_folder(family), context=4096, dtype="float32")
    driver.prefill(driver.sequence("long", [7] * 2500, range(160)), 0, (1000, 2000))
    assert bool(driver.logits["long"][2500].isfinite().all())
    driver.runner.close()


def test_length_dependent_rope_is_refused() -> None:
    """A rotary scaling that looks at the whole length would give a cached token other bits in a
    longer prompt."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config = LlamaConfig(max_position_embeddings=1024, rope_parameters=rope)
    fit_context(config, 1024)
    with pytest.raises(ModelUnsupported, match="dynamic"):
        fit_context(config, 2048)


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (LlamaConfig(num_hidden_layers=2), (None, None)),
        (tiny_config("gemma3"), (WINDOW, None, WINDOW)),
        (tiny_config("mixtral"), (None, None, None)),
        (AutoConfig.for_model("mistral", num_hidden_layers=2, sliding_window=64), (64, 64)),
        (Qwen3Config(num_hidden_layers=2, use_sliding_window=False), (None, None)),
        (
            Qwen3Config(
                num_hidden_layers=3, use_sliding_window=True, sliding_window=32, max_window_layers=1
            ),
            (None, 32, 32),
        ),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_windows(config: PreTrainedConfig, windows: tuple[int | None, ...]) -> None:
    """Each layer's window is read from the configuration."""
    assert layer_windows(config) == windows


def test_bidirectional_attention_is_refused() -> None:
    """An embedding model in a decoder's clothes is refused."""
    config = Gemma3TextConfig(use_bidirectional_attention=True, architectures=["Gemma3ForCausalLM"])
    with pytest.raises(ModelUnsupported, match="bidirectional"):
        check_supported(config)


@pytest.mark.parametrize(
    ("family", "options", "name"),
    [
        pytest.param("llama", {}, "native", marks=NEEDS_NATIVE),
        pytest.param("mistral", {"exact": "on"}, "native", marks=NEEDS_NATIVE),
        ("llama", {"dtype": "float32"}, "lean"),
        ("qwen2", {"runner": "lean"}, "lean"),
        ("llama", {"runner": "generic"}, "generic"),
        ("llama", {"exact": "on", "dtype": "float32"}, "generic"),
        ("gemma3", {}, "generic"),
        ("mixtral", {}, "generic"),
    ],
    ids=str,
)
def test_choice_of_runner(
    tiny_folder: Folder, family: str, options: dict[str, Any], name: str
) -> None:
    """`auto` takes the native runner where it does the model, then lean in fast mode, and the
    generic one everywhere else."""
    driver = Driver(tiny_folder(family), **options)
    assert driver.runner.name == name
    driver.runner.close()


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [("gemma3", {}, "Gemma3ForCausalLM"), ("llama", {"exact": "on"}, "exact mode")],
    ids=str,
)
def test_lean_is_refused_by_name(
    tiny_folder: Folder, family: str, options: dict[str, Any], words: str
) -> None:
    """Asked for by name where it cannot be used, the lean runner says why."""
    with pytest.raises(ModelUnsupported, match=words):
        load(tiny_folder(family), runner="lean", **options)


@NEEDS_NATIVE
@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("gemma3", {}, "Gemma3ForCausalLM"),
        ("llama", {"dtype": "float32"}, "bfloat16"),
        ("llama", {"block_size": 24}, "block_size 24"),
    ],
    ids=str,
)
def test_native_is_refused_by_name(
    tiny_folder: Folder, family: str, options: dict[str, Any], words: str
) -> None:
    """Asked for by name where it cannot be used, the native runner says why."""
    with pytest.raises(ModelUnsupported, match=words):
        load(tiny_folder(family), runner="native", **options)


def test_without_a_library_auto_is_lean(
    tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where nothing was built `auto` takes the lean runner, and `native` by name says what is
    missing."""
    monkeypatch.setattr(native_library, "PATH", tmp_path / "none.so")
    driver = Driver(tiny_folder("llama"))
    assert (driver.runner.name, driver.runner.exact) == ("lean", False)
    driver.runner.close()
    with pytest.raises(
        ModelUnsupported, match="runner: native cannot be used: the native library is not built"
    ):
        load(tiny_folder("llama"), runner="native")


@NEEDS_NATIVE
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_dim": 24}, "heads of 24"),
        ({"head_dim": 272}, "heads of 272"),
        ({"hidden_size": 72}, "layers of 72"),
        ({"intermediate_size": 80}, "80"),
    ],
    ids=str,
)
def test_native_leaves_to_lean(changes: dict[str, Any], words: str) -> None:
    """Sizes that fill no vector are found in the configuration, and named."""
    config = LlamaConfig(hidden_size=96, intermediate_size=96, num_attention_heads=6, head_dim=16)
    assert why_not_native_model(config, (None,), 16) is None
    for name, value in changes.items():
        setattr(config, name, value)
    assert words in str(why_not_native_model(config, (None,), 16))
    assert "windows" in str(why_not_native_model(LlamaConfig(), tuple(range(1, 10)), 16))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "dynamic",
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 0.5,
                }
            },
            "a part of each head",
        ),
    ],
    ids=str,
)
def test_lean_leaves_to_generic(changes: dict[str, Any], words: str) -> None:
    """What the lean forward pass does not implement is found in the configuration, and named."""
    config = LlamaConfig(**TINY, architectures=["LlamaForCausalLM"])
    assert why_not_llama(config) is None
    for name, value in changes.items():
        setattr(config, name, value)
    assert words in str(why_not_llama(config))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_lean_scales_positions_as_transformers_does(folder: Path, rope: dict[str, Any]) -> None:
    """Each rotary scaling gives transformers' own logits in float32, or loading would refuse it."""
    edit_config(folder, rope_parameters=rope)
    driver = Driver(folder, runner="lean", dtype="float32")
    assert driver.runner.name == "lean"
    driver.runner.close()


def test_runners_have_fingerprints_of_their_own(tiny_folder: Folder) -> None:
    """KV of one runner is never found by the other."""
    drivers = [Driver(tiny_folder("llama"), runner=runner) for runner in ("lean", "generic")]
    assert drivers[0].runner.fingerprint != drivers[1].runner.fingerprint
    for driver in drivers:
        driver.runner.close()


CHECKPOINTED = {
    "mamba": "MambaForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "falcon_mamba": "FalconMambaForCausalLM",
    "jamba": "JambaForCausalLM",
    "bamba": "BambaForCausalLM",
    "zamba2": "Zamba2ForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "recurrent_gemma": "RecurrentGemmaForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "minimax": "MiniMaxForCausalLM",
    "rwkv": "RwkvForCausalLM",
    "xlstm": "xLSTMForCausalLM",
}
"""Families with a state that exists only at the end of what was computed, or at checkpoints of
it."""


@pytest.mark.parametrize("kind", CHECKPOINTED)
def test_report_44_models_that_resume_only_at_checkpoints_are_refused_by_name(kind: str) -> None:
    """A recurrent or hybrid model could not go on from any token of a cached prefix: it never
    loads, and the error says why."""
    config = AutoConfig.for_model(kind)
    config.architectures = [CHECKPOINTED[kind]]
    with pytest.raises(
        ModelUnsupported, match=rf"{CHECKPOINTED[kind]}.*(recurrent|linear_attention)"
    ):
        check_supported(config)


@pytest.mark.parametrize("runner", ["lean", "generic", pytest.param("native", marks=NEEDS_NATIVE)])
def test_report_44_sliding_windows_resume_at_any_token(tiny_folder: Folder, runner: str) -> None:
    """All KV of a windowed layer is kept, so another ending continues from inside the prefix, as if
    nothing were cached."""
    driver = Driver(
        tiny_folder("mistral"), dtype="bfloat16" if runner == "native" else "float32", runner=runner
    )
    first = driver.sequence("first", range(3, 203), range(13))
    driver.prefill(first)
    ids = [*range(3, 103), *range(210, 250)]
    driver.prefill(driver.sequence("cold", ids, range(20, 29)))
    driver.runner.copy_page(6, 40, 100 % 16)
    driver.prefill(driver.sequence("hit", ids, [*range(6), 40, 41, 42]), 100)
    cold, hit = driver.logits["cold"][140], driver.logits["hit"][140]
    assert float((cold - hit).abs().max()) < 1e-4 * float(cold.max() - cold.min())
    driver.runner.close()
