"""`make bench`: cold and warm requests on the default model through a real gateway, and hits on every tier, as ratios.

Every cold prompt begins with a random word, so nothing is measured twice. Seconds on a shared machine are noise; read the
ratios. `--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table

from bench.index import IndexFigures, measure_index
from bench.machine import describe
from bench.tiers import measure_tiers, show_tiers
from bench.traffic import Client, Measured
from tools.serving import POLICY, serving

LENGTHS = (500, 1000, 2000, 4000)
TARGET_LENGTH, TARGET_RATIO = 4000, 0.08
"""Warm time to first token over cold, at this prompt length, is to stay below this."""
MAX_UNBILLED = 32
"""Skipped prefill exceeds the billed read by less than two blocks."""
MODE_LENGTH, MODE_TOKENS = 2000, 64
QUESTIONS = ("What does prefill do?", "What is an entry?", "What is a page?")

console = Console(width=110)


@dataclass(frozen=True, slots=True)
class Pair:
    """A cold request and the warm one after it, each the median of its repetitions in time to first token."""

    num_tokens: int
    cold: Measured
    warm: Measured

    @property
    def ratio(self) -> float:
        return self.warm.ttft_s / self.cold.ttft_s

    @property
    def counts_agree(self) -> bool:
        """What was written is read, and the billed read is what was skipped, but for less than two blocks."""
        warm = self.warm
        return warm.num_read == self.cold.num_written and 0 <= warm.num_skipped - warm.num_read < MAX_UNBILLED


@dataclass(frozen=True, slots=True)
class Mode:
    """What one setting of `engine.exact` costs."""

    exact: str
    cold_s: float
    warm_s: float
    decode_s: float


def median_of(runs: Sequence[Measured]) -> Measured:
    """The run in the middle by time to first token."""
    return sorted(runs, key=lambda run: run.ttft_s)[len(runs) // 2]


async def measure_pair(client: Client, num_tokens: int, repetitions: int, max_tokens: int = 8) -> Pair:
    """`repetitions` times: a prompt nobody has seen, then another question behind the same system text."""
    cold, warm = [], []
    for _ in range(repetitions):
        system = await client.system_of(num_tokens, QUESTIONS[0])
        cold.append(await client.ask(system, QUESTIONS[0], max_tokens=max_tokens))
        warm += [await client.ask(system, question, max_tokens=max_tokens) for question in QUESTIONS[1:]]
    return Pair(num_tokens, median_of(cold), median_of(warm))


async def measure_lengths(base_url: str, lengths: Iterable[int], repetitions: int) -> list[Pair]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        return [await measure_pair(Client(session, base_url), num_tokens, repetitions) for num_tokens in lengths]


async def measure_overhead(base_url: str, num_tokens: int, num_answers: int = 20) -> float:
    """Median seconds that a warm request spends besides computing: HTTP, parsing, rendering, matching, billing."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        client = Client(session, base_url)
        system = await client.system_of(num_tokens, QUESTIONS[0])
        await client.ask(system, QUESTIONS[0])
        return statistics.median([await client.overhead(system, QUESTIONS[0]) for _ in range(num_answers)])


async def measure_modes(base_urls: Mapping[str, str], repetitions: int) -> list[Mode]:
    """One mode per gateway. They take turns, so that whatever else the machine does slows down all of them."""
    runs: dict[str, list[Pair]] = {exact: [] for exact in base_urls}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        for _ in range(repetitions):
            for exact, base_url in base_urls.items():
                runs[exact].append(await measure_pair(Client(session, base_url), MODE_LENGTH, 1, MODE_TOKENS))
    return [mode_of(exact, pairs) for exact, pairs in runs.items()]


def mode_of(exact: str, pairs: Sequence[Pair]) -> Mode:
    """Medians over repetitions."""
    return Mode(
        exact,
        cold_s=statistics.median(pair.cold.ttft_s for pair in pairs),
        warm_s=statistics.median(pair.warm.ttft_s for pair in pairs),
        decode_s=statistics.median(answer.decode_s for pair in pairs for answer in (pair.cold, pair.warm)),
    )


def mode_policy(exact: str) -> str:
    return f"{POLICY}models: [{{engine: {{exact: {exact}, kv_bytes: 1GiB}}}}]\n"


def show_pairs(pairs: Sequence[Pair]) -> bool:
    """Print the table of lengths and the targets; true if all are met."""
    table = Table(title="one client, system text marked for five minutes", title_justify="left")
    for column in ("prompt tokens", "cold TTFT", "warm TTFT", "warm/cold", "written", "read", "skipped", "decode"):
        table.add_column(column, justify="right")
    for pair in pairs:
        cold, warm = pair.cold, pair.warm
        counts = (str(cold.num_written), str(warm.num_read), str(warm.num_skipped))
        times = (f"{cold.ttft_s:.2f} s", f"{warm.ttft_s:.3f} s", f"{pair.ratio:.1%}")
        table.add_row(str(warm.num_prompt), *times, *counts, f"{1000 * warm.decode_s:.0f} ms")
    console.print(table)
    targets = {f"read == written, 0 <= skipped - read < {MAX_UNBILLED}": all(pair.counts_agree for pair in pairs)}
    for pair in pairs:
        if pair.num_tokens == TARGET_LENGTH:
            targets[f"warm TTFT <= {TARGET_RATIO:.0%} of cold at {TARGET_LENGTH} tokens"] = pair.ratio <= TARGET_RATIO
    for target, met in targets.items():
        console.print(f"{'PASS' if met else 'FAIL'}: {target}", highlight=False)
    console.print()
    return all(targets.values())


def show_modes(modes: Sequence[Mode]) -> None:
    """Print what exact mode costs against fast mode."""
    table = Table(title=f"exact mode, {MODE_LENGTH} tokens", title_justify="left")
    for column in ("engine.exact", "cold TTFT", "warm TTFT", "decode per token"):
        table.add_column(column, justify="right")
    for mode in modes:
        table.add_row(mode.exact, f"{mode.cold_s:.2f} s", f"{mode.warm_s:.3f} s", f"{1000 * mode.decode_s:.1f} ms")
    console.print(table)
    fast, exact = modes
    cold, decode = exact.cold_s / fast.cold_s - 1, exact.decode_s / fast.decode_s - 1
    console.print(f"exact mode costs {cold:+.0%} of cold TTFT and {decode:+.0%} of decode\n")


def show_index(figures: IndexFigures) -> None:
    """Print the cache's own times."""
    console.print(
        f"cache alone, {figures.num_tokens} tokens: cold admit {1000 * figures.cold_s:.1f} ms, insert "
        f"{1000 * figures.insert_s:.1f} ms, warm admit {1000 * figures.warm_s:.1f} ms\n"
    )


def show_machine(machine: Mapping[str, str]) -> None:
    for name, value in machine.items():
        console.print(f"{name:>14}: {value}", highlight=False)
    console.print()


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the gateways started here are stopped, too
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--repetitions", type=int, default=3, help="cold prompts per length")
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="prompt lengths in tokens")
    parser.add_argument("--no-modes", action="store_true", help="leave out the comparison of exact and fast mode")
    parser.add_argument("--no-tiers", action="store_true", help="leave out memory, SSD and Redis")
    arguments = parser.parse_args()
    machine = describe()
    show_machine(machine)
    with serving() as base_url:
        pairs = asyncio.run(measure_lengths(base_url, arguments.lengths, arguments.repetitions))
        overhead_s = asyncio.run(measure_overhead(base_url, max(arguments.lengths)))
    good = show_pairs(pairs)
    console.print(
        f"a warm request of {max(arguments.lengths)} tokens spends {1000 * overhead_s:.1f} ms besides computing tokens\n"
    )
    modes = []
    if not arguments.no_modes:
        with serving(mode_policy("off")) as fast, serving(mode_policy("on")) as exact:
            modes = asyncio.run(measure_modes({"off": fast, "on": exact}, arguments.repetitions))
        show_modes(modes)
    tiers = [] if arguments.no_tiers else measure_tiers()
    if tiers:
        good &= show_tiers(console, tiers)
    index = measure_index()
    show_index(index)
    if arguments.json:
        figures = {"machine": machine, "pairs": pairs, "overhead_s": overhead_s, "modes": modes, "tiers": tiers, "index": index}
        arguments.json.write_text(json.dumps(figures, default=asdict, indent=2) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
