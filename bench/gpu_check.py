"""`make gpu-check`: what only a CUDA device can show, in under five minutes.

Without one it says so and succeeds.

1. Hit equals miss on tiny random models: bit-equal in exact mode, within the stated bound in fast
mode, by both runners.
2. For a random model of the shape of an 8B one: time to first token cold and behind a hit at 4k to
32k tokens, decoded tokens per second beside what the memory's bandwidth allows, and KV in and out
beside plain copies of pinned memory.

Prints tables and, last, one line of JSON with all of it. `--quick` takes few and tiny models, and
`--device cpu` a processor: to try the program, not the device.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from bench.gpu_speed import FULL, QUICK, SpeedCheck
from bench.machine import describe
from engine.errors import ModelError
from engine.model.paged.cuda import DeviceFeatures
from tests.fakes.tiny_models import FAMILIES, LEAN_FAMILIES, VOCABULARY, save_tiny_model
from tests.fakes.torch_driver import Driver

NUM_PROMPT, NUM_OUTPUT = 600, 8
HITS = (256, 263, 599)
"""Cached prefixes that end on a page's border, off it, and one token before the prompt's end."""
FAST_BOUND = 0.08
"""Fast mode in bfloat16: largest difference of a logit, as a share of the spread of the miss run's
logits."""
EXPERTS_BOUND = 0.4
"""The same for mixtures of experts: a rounding difference can turn a router's choice to another
expert."""
CHUNK = 512
CHECKS = (
    *((family, "generic", "on") for family in FAMILIES),
    *((family, "generic", "off") for family in FAMILIES),
    *((family, "lean", "off") for family in LEAN_FAMILIES),
)

QUICK_CHECKS = (("llama", "generic", "on"), ("mistral", "lean", "off"))

Logits = dict[int, torch.Tensor]
console = Console(width=120)


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
    return max(
        float((miss[n] - hit[n]).abs().max() / (miss[n].max() - miss[n].min())) for n in miss
    )


def is_close(miss: Logits, hit: Logits, share: float = FAST_BOUND) -> bool:
    """What fast mode promises: differences under the bound, another best token only where the best
    two were closer."""
    for n, row in miss.items():
        bound = share * float(row.max() - row.min())
        best = row.topk(2).values
        if not float((row - hit[n]).abs().max()) < bound:
            return False
        if row.argmax() != hit[n].argmax() and float(best[0] - best[1]) >= bound:
            return False
    return True


def hit_logits(driver: Driver, prompt: list[int], num_cached: int, forced: list[int]) -> Logits:
    """A run behind the first `num_cached` tokens of the pages 0, 1, ..., fed the given tokens
    instead of its own.

    The pages it finds were read and written back elsewhere, as from a lower tier.
    """
    size = driver.runner.page_size
    num_pages = -(-(len(prompt) + NUM_OUTPUT) // size)
    num_full, num_tail = divmod(num_cached, size)
    moved = range(num_pages, num_pages + num_full)
    driver.runner.write_pages(moved, driver.runner.read_pages(range(num_full)))
    hit = driver.sequence("hit", prompt, [*moved, *range(num_pages + num_full, 2 * num_pages)])
    if num_tail:
        driver.runner.copy_page(num_full, hit.block_table[num_full], num_tail)
    driver.prefill(hit, num_cached)
    driver.force(hit, forced)
    return driver.logits["hit"]


def check_model(
    folder: Path,
    device: str,
    runner: str,
    exact: str,
    *,
    bound: float,
    features: DeviceFeatures | None = None,
) -> Outcome:
    """Whether every hit of one model is as good as the mode promises."""
    try:
        driver = Driver(
            folder, features, device=device, exact=exact, runner=runner, dtype="bfloat16"
        )
    except ModelError as error:
        return Outcome(False, str(error))
    prompt = random_prompt(NUM_PROMPT, VOCABULARY)
    first = driver.sequence(
        "miss", prompt, range(-(-(NUM_PROMPT + NUM_OUTPUT) // driver.runner.page_size))
    )
    driver.prefill(first, 0, range(CHUNK, NUM_PROMPT, CHUNK))
    driver.decode([first], NUM_OUTPUT - 1)
    miss = driver.logits["miss"]
    hits = [
        hit_logits(driver, prompt, num_cached, first.token_ids[NUM_PROMPT:-1])
        for num_cached in HITS
    ]
    driver.runner.close()
    good = all(
        is_bit_equal(miss, hit) if exact == "on" else is_close(miss, hit, bound) for hit in hits
    )
    return Outcome(good, f"{max(largest_difference(miss, hit) for hit in hits):.2%}")


def check_hits(
    device: str, checks: Sequence[tuple[str, str, str]] = CHECKS
) -> list[dict[str, Any]]:
    """One row per model, runner and mode."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folders = {
            family: save_tiny_model(family, Path(name) / family)
            for family in {family for family, _, _ in checks}
        }
        for family, runner, exact in checks:
            bound = EXPERTS_BOUND if family == "mixtral" else FAST_BOUND
            outcome = check_model(folders[family], device, runner, exact, bound=bound)
            names = {"model": family, "runner": runner, "exact": exact}
            rows.append({**names, "largest_difference": outcome.shown, "good": outcome.good})
    return rows


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows that have the same names as a table."""
    table = Table(title=title, title_justify="left")
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        table.add_column(name)
    for row in rows:
        table.add_row(*(shown(row.get(name, "")) for name in names))
    console.print(table)


def shown(value: object) -> str:
    """A cell of a table."""
    if isinstance(value, bool):
        return "ok" if value else "FAILED"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every check holds, or there is no device."""
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument(
        "--quick", action="store_true", help="few and tiny models: the figures say nothing"
    )
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        console.print("skipped: torch sees no CUDA device here")
        return 0
    disable_progress_bar()  # type: ignore[no-untyped-call]
    with told():
        return check(options.device, quick=options.quick)


def check(device: str, *, quick: bool) -> int:
    """Check, measure and print everything."""
    facts = dict(describe())
    if device.startswith("cuda"):
        facts["device"] = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    for name, value in facts.items():
        console.print(f"{name:>14}: {value}", highlight=False)
    hits = check_hits(device, QUICK_CHECKS if quick else CHECKS)
    show(f"hit equals miss, {', '.join(map(str, HITS))} of {NUM_PROMPT} tokens cached", hits)
    timed = SpeedCheck(device, QUICK if quick else FULL)
    speeds = timed.run()
    timed.close()
    console.print(
        ", ".join(f"{name} {value}" for name, value in speeds.facts.items()), highlight=False
    )
    show("time to first token", speeds.first_token)
    show("decoding, beside what reading weights and KV once a step would allow", speeds.decode)
    show("KV in and out, beside copies of pinned memory", speeds.moves)
    good = all(row["good"] for row in hits)
    console.print(
        json.dumps({"good": good, "machine": facts, "hits": hits, **asdict(speeds)}),
        soft_wrap=True,
        highlight=False,
    )
    return 0 if good else 1


@contextmanager
def told() -> Iterator[None]:
    """Print meanwhile what the engine says of kernels and graphs."""
    log, handler = logging.getLogger("engine.model"), _Fields()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _Fields(logging.Handler):
    """Prints records with their fields."""

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        console.print(
            f"{record.getMessage()}: {json.dumps(fields)}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that temporary folders go, too
    sys.exit(main())
