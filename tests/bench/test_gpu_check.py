"""The device check itself, on a processor: that it runs, and that it can fail."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import gpu_check
from bench.gpu_check import CHECKS, FAST_BOUND, Outcome, check_model, is_bit_equal, is_close, main
from bench.gpu_speed import FULL, QUICK, SpeedCheck
from engine.model.paged.cuda import DeviceFeatures
from tests.fakes.paged_device import FakeCopies, FakeRecorder, eager_varlen
from tests.fakes.tiny_models import FAMILIES, LEAN_FAMILIES, save_tiny_model

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]


def large_pages(query: Any, key: Any, *rest: Any, **options: Any) -> Any:
    """A kernel as FlashAttention 2's, which takes pages of 256 tokens."""
    if key.shape[1] % 256:
        raise RuntimeError("Paged KV cache block size must be divisible by 256")
    return eager_varlen(query, key, *rest, **options)


def test_a_tiny_model_passes_on_a_processor(tmp_path: Path) -> None:
    """Hits of a tiny Llama are bit-equal to the miss in exact mode."""
    folder = save_tiny_model("llama", tmp_path)
    assert check_model(folder, "cpu", "generic", "on", bound=FAST_BOUND) == Outcome(True, "0.00%")


def test_a_paged_device_passes(tmp_path: Path) -> None:
    """Over large pages, with recorded steps and staged copies: hits within the bound of fast
    mode."""
    copies, recorder = FakeCopies(), FakeRecorder()
    features = DeviceFeatures(large_pages, recorder, copies)
    outcome = check_model(
        save_tiny_model("mistral", tmp_path),
        "cpu",
        "lean",
        "off",
        bound=FAST_BOUND,
        features=features,
    )
    assert outcome.good, outcome
    assert copies.num_held > 0
    assert sum(graph.num_replays for graph in recorder.graphs) > 0


def test_a_device_that_loses_copies_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: steps that do not wait for the pages they read give other logits, and the check sees
    it."""
    monkeypatch.setattr("engine.model.paged.staging.StagedPages.settle", lambda self, pages: None)
    features = DeviceFeatures(large_pages, FakeRecorder(), FakeCopies())
    assert not check_model(
        save_tiny_model("llama", tmp_path),
        "cpu",
        "lean",
        "off",
        bound=FAST_BOUND,
        features=features,
    ).good


def test_a_model_that_does_not_load_fails(tmp_path: Path) -> None:
    """The reason is shown in the table, and the check goes on."""
    outcome = check_model(tmp_path / "nothing", "cpu", "generic", "on", bound=FAST_BOUND)
    assert not outcome.good
    assert "no such model folder" in outcome.shown


def test_differences_are_seen() -> None:
    """Control: one bit is no bit-equality, a large difference is not close, a flip at a clear
    choice is neither."""
    miss = {1: torch.tensor([0.0, 100.0])}
    assert is_bit_equal(miss, {1: torch.tensor([0.0, 100.0])})
    assert not is_bit_equal(miss, {1: torch.tensor([0.0, 100.00001])})
    assert is_close(miss, {1: torch.tensor([0.0, 101.0])})
    assert not is_close(miss, {1: torch.tensor([0.0, 109.0])})
    assert not is_close(miss, {1: torch.tensor([0.0, float("nan")])})
    close_call = {1: torch.tensor([0.0, 100.0, 99.0])}
    assert is_close(close_call, {1: torch.tensor([0.0, 99.0, 100.0])})
    assert not is_close({1: torch.tensor([0.0, 100.0, 90.0])}, {1: torch.tensor([0.0, 94.0, 95.0])})


def test_every_family_is_checked_by_every_runner_that_does_it() -> None:
    """Exact and fast by the generic runner, fast by the lean one."""
    for mode in ("on", "off"):
        assert [
            family for family, runner, exact in CHECKS if (runner, exact) == ("generic", mode)
        ] == list(FAMILIES)
    assert [family for family, runner, _ in CHECKS if runner == "lean"] == list(LEAN_FAMILIES)


def test_the_shape_is_that_of_an_8b_model() -> None:
    """Eight billion parameters, 128 KiB of KV a token, prompts of 4k to 32k; all of it fits the
    pool."""
    shape = FULL.model
    heads, layers, width = (
        shape["num_key_value_heads"],
        shape["num_hidden_layers"],
        shape["hidden_size"],
    )
    head_dim = width // shape["num_attention_heads"]
    per_layer = width * (2 * width + 2 * heads * head_dim) + 3 * width * shape["intermediate_size"]
    assert 8.0e9 < layers * per_layer + 2 * shape["vocab_size"] * width < 8.1e9
    nbytes = layers * 2 * heads * head_dim * 2
    assert nbytes == 128 * 1024
    assert (min(FULL.lengths), max(FULL.lengths)) == (4096, 32_768)
    most = max(number * (tokens + FULL.num_decoded + 1 + 256) for number, tokens in FULL.decode)
    assert most * nbytes < FULL.kv_nbytes
    assert FULL.moved_nbytes < FULL.kv_nbytes


@pytest.mark.parametrize("paged", [False, True])
def test_speeds_of_a_tiny_model(*, paged: bool) -> None:
    """Every figure is there and makes sense, on a processor's own path and over a paged device."""
    features = DeviceFeatures(large_pages, FakeRecorder(), FakeCopies()) if paged else None
    scale = dataclasses.replace(QUICK, lengths=(64, 96), max_step_tokens=256, num_decoded=2)
    check = SpeedCheck("cpu", scale, features)
    speeds = check.run()
    check.close()
    assert (speeds.facts["runner"], speeds.facts["page_size"]) == ("lean", 256 if paged else 16)
    assert [row["tokens"] for row in speeds.first_token] == [64, 96]
    assert [(row["sequences"], row["tokens"]) for row in speeds.decode] == list(QUICK.decode)
    assert [row["move"] for row in speeds.moves] == ["out", "in", "in, beside decoding"]
    assert all(0 <= row["of_limit"] < 1 for row in speeds.decode)
    assert all(row["cold_ms"] > 0 and row["hit_ms"] > 0 for row in speeds.first_token)


@pytest.mark.long
def test_the_whole_program_on_a_processor(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables for people, and a last line of JSON that has all of it."""
    assert main(["--device", "cpu", "--quick"]) == 0
    out = capsys.readouterr().out
    for title in ("hit equals miss", "time to first token", "decoding", "KV in and out"):
        assert title in out
    found = json.loads(out.strip().splitlines()[-1])
    assert found["good"] is True
    assert set(found) == {"good", "machine", "hits", "facts", "first_token", "decode", "moves"}


def test_a_failure_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One hit that is not as good as promised fails the whole check, after everything was
    measured."""
    bad = [
        {
            "model": "llama",
            "runner": "generic",
            "exact": "on",
            "largest_difference": "3.00%",
            "good": False,
        }
    ]
    monkeypatch.setattr(gpu_check, "check_hits", lambda device, checks: bad)
    monkeypatch.setattr(
        gpu_check,
        "QUICK",
        dataclasses.replace(QUICK, lengths=(64,), decode=((1, 64),), num_decoded=1),
    )
    assert main(["--device", "cpu", "--quick"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert json.loads(out.strip().splitlines()[-1])["good"] is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so_and_succeeds() -> None:
    """`make gpu-check` on a machine without a GPU."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu_check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "skipped: torch sees no CUDA device here\n")
