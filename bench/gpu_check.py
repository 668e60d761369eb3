"""`make gpu-check`: what only a CUDA device can show, in under five minutes. Without one it says so and succeeds.

1. Hit equals miss on tiny random models of four families: bit-equal in exact mode, within the stated bound in fast mode.
2. Time to first token, cold and behind a cached prefix of 4,000 tokens, and decode speed of a model of a billion parameters.

`--device cpu` runs the same program on a processor, with a smaller model: to try the program, not the device.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils.logging import disable_progress_bar

from bench.machine import describe
from engine.errors import ModelError
from tests.fakes.tiny_models import FAMILIES, VOCABULARY, save_tiny_model
from tests.fakes.torch_driver import Driver

PAGE = 16
NUM_PROMPT, NUM_OUTPUT = 600, 8
HITS = (256, 263, 599)
"""Cached prefixes that end on a page's border, off it, and one token before the prompt's end."""
FAST_BOUND = 0.05
"""Fast mode in bfloat16: largest difference of a logit, as a share of the spread of the miss run's logits."""
LONG_PROMPT, LONG_CACHED, LONG_OUTPUT = 4040, 4000, 64
CHUNK = 512
GIB = 1024**3

Logits = dict[int, torch.Tensor]
console = Console(width=110)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a check holds, and what to show of it."""

    good: bool
    shown: str


def random_prompt(num_tokens: int, vocabulary: int) -> list[int]:
    """The same tokens in every run."""
    return random.Random(num_tokens).choices(range(3, vocabulary), k=num_tokens)


def is_bit_equal(miss: Logits, hit: Logits) -> bool:
    """Every row of logits."""
    return miss.keys() == hit.keys() and all(torch.equal(miss[n], hit[n]) for n in miss)


def largest_difference(miss: Logits, hit: Logits) -> float:
    """As a share of the spread of the miss run's logits."""
    return max(float((miss[n] - hit[n]).abs().max() / (miss[n].max() - miss[n].min())) for n in miss)


def is_close(miss: Logits, hit: Logits) -> bool:
    """What fast mode promises: differences under the bound, another best token only where the best two were closer."""
    for n, row in miss.items():
        bound = FAST_BOUND * float(row.max() - row.min())
        best = row.topk(2).values
        if float((row - hit[n]).abs().max()) >= bound:
            return False
        if row.argmax() != hit[n].argmax() and float(best[0] - best[1]) >= bound:
            return False
    return True


def hit_logits(driver: Driver, prompt: list[int], num_cached: int, forced: list[int]) -> Logits:
    """A run behind the first `num_cached` tokens of the pages 0, 1, ..., fed the given tokens instead of its own."""
    num_pages = -(-(len(prompt) + NUM_OUTPUT) // PAGE)
    num_full, num_tail = divmod(num_cached, PAGE)
    hit = driver.sequence("hit", prompt, [*range(num_full), *range(num_pages, 2 * num_pages - num_full)])
    if num_tail:
        driver.runner.copy_page(num_full, hit.block_table[num_full], num_tail)
    driver.prefill(hit, num_cached)
    driver.force(hit, forced)
    return driver.logits["hit"]


def check_family(folder: Path, device: str, exact: str) -> Outcome:
    """Whether every hit of one model is as good as the mode promises."""
    try:
        driver = Driver(folder, device=device, exact=exact, dtype="bfloat16")
    except ModelError as error:
        return Outcome(False, str(error))
    prompt = random_prompt(NUM_PROMPT, VOCABULARY)
    first = driver.sequence("miss", prompt, range(-(-(NUM_PROMPT + NUM_OUTPUT) // PAGE)))
    driver.prefill(first, 0, range(CHUNK, NUM_PROMPT, CHUNK))
    driver.decode([first], NUM_OUTPUT - 1)
    miss = driver.logits["miss"]
    hits = [hit_logits(driver, prompt, num_cached, first.token_ids[NUM_PROMPT:-1]) for num_cached in HITS]
    driver.runner.close()
    good = all(is_bit_equal(miss, hit) if exact == "on" else is_close(miss, hit) for hit in hits)
    return Outcome(good, f"{max(largest_difference(miss, hit) for hit in hits):.2%}")


def check_hits(device: str) -> bool:
    """Print one row per family and mode; true if all are good."""
    table = Table(title=f"hit equals miss, {', '.join(map(str, HITS))} of {NUM_PROMPT} tokens cached", title_justify="left")
    for column in ("model", "engine.exact", "largest difference, of the spread", ""):
        table.add_column(column)
    all_good = True
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as name:
            folder = save_tiny_model(family, Path(name))
            for exact in ("on", "off"):
                outcome = check_family(folder, device, exact)
                all_good &= outcome.good
                table.add_row(family, exact, outcome.shown, "ok" if outcome.good else "FAILED")
    console.print(table)
    return all_good


def save_random_llama(folder: Path, num_layers: int, device: str) -> LlamaConfig:
    """A Llama with random weights, of about a billion parameters at 16 layers."""
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=num_layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    Tokenizer(WordLevel({"w0": 0}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return config


def measure_speed(device: str, num_layers: int) -> None:
    """Print time to first token cold and behind a prefix, and decode speed."""
    with tempfile.TemporaryDirectory() as name:
        config = save_random_llama(Path(name), num_layers, device)
        driver = Driver(Path(name), device=device, exact="off", context=8192, kv_nbytes=2 * GIB)
    prompt = random_prompt(LONG_PROMPT, config.vocab_size)
    num_pages = -(-(LONG_PROMPT + LONG_OUTPUT) // PAGE)
    cuts = range(CHUNK, LONG_PROMPT, CHUNK)
    driver.prefill(driver.sequence("first", prompt, range(num_pages)), 0, cuts)  # the first pass of a shape is slow
    cold = driver.sequence("cold", prompt, range(num_pages))
    begin_s = time.perf_counter()
    driver.prefill(cold, 0, cuts)
    cold_s = time.perf_counter() - begin_s
    begin_s = time.perf_counter()
    driver.decode([cold], LONG_OUTPUT - 1)
    decode_s = time.perf_counter() - begin_s
    begin_s = time.perf_counter()
    driver.prefill(driver.sequence("warm", prompt, range(num_pages)), LONG_CACHED)
    warm_s = time.perf_counter() - begin_s
    driver.runner.close()
    console.print(
        f"{LONG_PROMPT} tokens, {LONG_CACHED} of them cached: cold {1000 * cold_s:.1f} ms, warm {1000 * warm_s:.1f} ms "
        f"({warm_s / cold_s:.1%}); prefill {LONG_PROMPT / cold_s:,.0f} tokens/s, decode {(LONG_OUTPUT - 1) / decode_s:.1f} "
        "tokens/s",
        soft_wrap=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    device = parser.parse_args().device
    if device.startswith("cuda") and not torch.cuda.is_available():
        console.print("skipped: torch sees no CUDA device here")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that temporary folders go, too
    disable_progress_bar()  # type: ignore[no-untyped-call]
    for name, value in describe().items():
        console.print(f"{name:>14}: {value}", highlight=False)
    if device.startswith("cuda"):
        console.print(f"{'device':>14}: {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}", highlight=False)
    good = check_hits(device)
    measure_speed(device, 16 if device.startswith("cuda") else 1)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
