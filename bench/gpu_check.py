"""`make gpu-check`: what only a CUDA device can show, in under five minutes. Without one it says so and succeeds.

1. Hit equals miss on small random models of four families: bit-equal in exact mode, the largest difference in fast mode.
2. Time to first token, cold and behind a cached prefix of 4,000 tokens, and decode speed of a model of a billion parameters.

`--device cpu` runs the same program on a processor, with a smaller model: to try the program, not the device.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedConfig
from transformers.utils.logging import disable_progress_bar

from bench.machine import describe
from bench.random_models import VOCAB, billion_config, tiny_configs, write_model
from bench.replay import Replay, Run
from engine.config import EngineConfig
from engine.errors import ModelError

NUM_PROMPT, NUM_OUTPUT = 600, 8
HITS = (256, 263, 599)
"""Cached prefixes that end on a block's border, off it, and one token before the prompt's end."""
FAST_BOUND = 0.25
"""Fast mode in bfloat16: logits differ by less, and tokens only where the miss run's two best were closer."""
LONG_PROMPT, LONG_CACHED, LONG_OUTPUT = 4040, 4000, 64
MIB = 1024**2

Mode = Literal["on", "off"]
console = Console(width=110)


def engine_config(folder: Path, device: str, exact: Mode, *, kv_nbytes: int, context: int) -> EngineConfig:
    return EngineConfig(
        model="random",
        model_path=str(folder),
        root_secret=bytes(32),
        device=device,
        exact=exact,
        kv_nbytes=kv_nbytes,
        context=context,
    )


def random_prompt(num_tokens: int, vocab: int) -> list[int]:
    """The same tokens in every run."""
    return random.Random(num_tokens).choices(range(3, vocab), k=num_tokens)


def largest_difference(miss: Run, hit: Run) -> float:
    """Over the logits of every sampled token."""
    return max(float((a - b).abs().max()) for a, b in zip(miss.logits, hit.logits, strict=True))


def is_bit_equal(miss: Run, hit: Run) -> bool:
    """Tokens and logits."""
    same_logits = all(torch.equal(a, b) for a, b in zip(miss.logits, hit.logits, strict=True))
    return same_logits and miss.token_ids == hit.token_ids


def is_close(miss: Run, hit: Run) -> bool:
    """What fast mode promises, with the hit run fed the miss run's tokens."""
    if largest_difference(miss, hit) >= FAST_BOUND:
        return False
    for logits, mine, other in zip(miss.logits, miss.token_ids, hit.token_ids, strict=True):
        best = torch.topk(logits, 2).values
        if mine != other and float(best[0] - best[1]) >= FAST_BOUND:
            return False
    return True


def check_family(folder: Path, device: str, exact: Mode) -> tuple[bool, float]:
    """Whether every hit of one model is as good as the mode promises, and the largest difference of logits."""
    replay = Replay(engine_config(folder, device, exact, kv_nbytes=256 * MIB, context=2048))
    prompt = random_prompt(NUM_PROMPT, VOCAB)
    miss = replay.cold(prompt, NUM_OUTPUT)
    good, largest = True, 0.0
    for num_cached in HITS:
        hit = replay.hit(prompt, NUM_OUTPUT, miss, num_cached, forced=miss.token_ids)
        good &= is_bit_equal(miss, hit) if exact == "on" else is_close(miss, hit)
        largest = max(largest, largest_difference(miss, hit))
    replay.close()
    return good, largest


def check_hits(device: str) -> bool:
    """Print one row per family and mode; true if all are good."""
    table = Table(title=f"hit equals miss, cached {', '.join(map(str, HITS))} of {NUM_PROMPT} tokens", title_justify="left")
    for column in ("model", "engine.exact", "largest difference of logits", ""):
        table.add_column(column)
    all_good = True
    modes: tuple[Mode, ...] = ("on", "off")
    for family, config in tiny_configs().items():
        with tempfile.TemporaryDirectory() as name:
            folder = write_model(Path(name), config, torch.bfloat16, device)
            for exact in modes:
                good, shown = attempt(lambda folder=folder, exact=exact: check_family(folder, device, exact))  # type: ignore[misc]
                all_good &= good
                table.add_row(family, exact, shown, "ok" if good else "FAILED")
    console.print(table)
    return all_good


def attempt(check: Callable[[], tuple[bool, float]]) -> tuple[bool, str]:
    """The outcome of a check, or why the engine refuses to run it."""
    try:
        good, largest = check()
    except (ModelError, RuntimeError) as error:
        return False, f"{type(error).__name__}: {error}"
    return good, f"{largest:.3g}"


def measure_speed(device: str, config: PreTrainedConfig) -> None:
    """Print time to first token cold and behind a prefix, and decode speed."""
    with tempfile.TemporaryDirectory() as name:
        folder = write_model(Path(name), config, torch.bfloat16, device)
        replay = Replay(engine_config(folder, device, "off", kv_nbytes=2048 * MIB, context=8192))
    prompt = random_prompt(LONG_PROMPT, config.vocab_size)
    replay.cold(prompt, 4)  # the first pass of a shape is slow
    cold = replay.cold(prompt, LONG_OUTPUT)
    warm = replay.hit(prompt, LONG_OUTPUT, cold, LONG_CACHED)
    replay.close()
    console.print(
        f"{LONG_PROMPT} tokens, {LONG_CACHED} of them cached: cold {1000 * cold.prefill_s:.1f} ms, warm "
        f"{1000 * warm.prefill_s:.1f} ms ({warm.prefill_s / cold.prefill_s:.1%}); prefill "
        f"{LONG_PROMPT / cold.prefill_s:,.0f} tokens/s, decode {(LONG_OUTPUT - 1) / cold.decode_s:.1f} tokens/s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    device = parser.parse_args().device
    if device.startswith("cuda") and not torch.cuda.is_available():
        console.print("skipped: torch sees no CUDA device here")
        return 0
    disable_progress_bar()  # type: ignore[no-untyped-call]
    for name, value in describe().items():
        console.print(f"{name:>14}: {value}", highlight=False)
    if device.startswith("cuda"):
        console.print(f"{'device':>14}: {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}", highlight=False)
    good = check_hits(device)
    measure_speed(device, billion_config() if device.startswith("cuda") else billion_config(num_layers=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
