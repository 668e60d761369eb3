"""The device check itself, on a processor: that it runs, and that it can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.gpu_check import Outcome, check_family, is_bit_equal, is_close
from tests.fakes.tiny_models import save_tiny_model

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]


def test_a_tiny_model_passes_on_a_processor(tmp_path: Path) -> None:
    """Hits of a tiny Llama are bit-equal to the miss in exact mode."""
    assert check_family(save_tiny_model("llama", tmp_path), "cpu", "on") == Outcome(True, "0.00%")


def test_a_model_that_does_not_load_fails(tmp_path: Path) -> None:
    """The reason is shown in the table, and the check goes on."""
    outcome = check_family(tmp_path / "nothing", "cpu", "on")
    assert not outcome.good
    assert "no such model folder" in outcome.shown


def test_differences_are_seen() -> None:
    """Control: one bit is no bit-equality, a large difference is not close, a flip at a clear choice is neither."""
    miss = {1: torch.tensor([0.0, 100.0])}
    assert is_bit_equal(miss, {1: torch.tensor([0.0, 100.0])})
    assert not is_bit_equal(miss, {1: torch.tensor([0.0, 100.00001])})
    assert is_close(miss, {1: torch.tensor([0.0, 101.0])})
    assert not is_close(miss, {1: torch.tensor([0.0, 106.0])})
    close_call = {1: torch.tensor([0.0, 100.0, 99.0])}
    assert is_close(close_call, {1: torch.tensor([0.0, 99.0, 100.0])})
    assert not is_close({1: torch.tensor([0.0, 100.0, 90.0])}, {1: torch.tensor([0.0, 94.0, 95.0])})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so_and_succeeds() -> None:
    """`make gpu-check` on a machine without a GPU."""
    done = subprocess.run([sys.executable, "-m", "bench.gpu_check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "skipped: torch sees no CUDA device here\n")
