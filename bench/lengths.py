"""Cold and warm requests of several lengths, and what a warm one costs besides computing.

Part of `make bench`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from rich.console import Console
from rich.table import Table

from bench.traffic import Client, Measured

LENGTHS: Final = (500, 1000, 2000, 4000)
TARGET_LENGTH: Final = 4000
TARGET_RATIO: Final = 0.08
"""Warm time to first token over cold, at this prompt length, is to stay below this."""
MAX_UNBILLED: Final = 32
"""Skipped prefill exceeds the billed read by less than two blocks."""
QUESTIONS: Final = ("What does prefill do?", "What is an entry?", "What is a page?")


@dataclass(frozen=True, slots=True)
class Pair:
    """A cold request and the warm one after it, each the median of its repetitions in time to first
    token."""

    num_tokens: int
    cold: Measured
    warm: Measured

    @property
    def ratio(self) -> float:
        return self.warm.ttft_s / self.cold.ttft_s

    @property
    def counts_agree(self) -> bool:
        """What was written is read, and the billed read is what was skipped, but for less than two
        blocks."""
        warm = self.warm
        return (
            warm.num_read == self.cold.num_written
            and 0 <= warm.num_skipped - warm.num_read < MAX_UNBILLED
        )


def median_of(runs: Sequence[Measured]) -> Measured:
    """The run in the middle by time to first token."""
    return sorted(runs, key=lambda run: run.ttft_s)[len(runs) // 2]


async def measure_pair(
    client: Client, num_tokens: int, repetitions: int, max_tokens: int = 8
) -> Pair:
    """`repetitions` times: a prompt nobody has seen, then another question behind the same system
    text."""
    cold, warm = [], []
    for _ in range(repetitions):
        system = await client.system_of(num_tokens, QUESTIONS[0])
        cold.append(await client.ask(system, QUESTIONS[0], max_tokens=max_tokens))
        warm += [
            await client.ask(system, question, max_tokens=max_tokens) for question in QUESTIONS[1:]
        ]
    return Pair(num_tokens, median_of(cold), median_of(warm))


async def measure_lengths(base_url: str, lengths: Iterable[int], repetitions: int) -> list[Pair]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        return [
            await measure_pair(Client(session, base_url), num_tokens, repetitions)
            for num_tokens in lengths
        ]


async def measure_overhead(base_url: str, num_tokens: int, num_answers: int = 20) -> float:
    """Median seconds that a warm request spends besides computing: HTTP, parsing, rendering,
    matching, billing."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        client = Client(session, base_url)
        system = await client.system_of(num_tokens, QUESTIONS[0])
        await client.ask(system, QUESTIONS[0])
        return statistics.median(
            [await client.overhead(system, QUESTIONS[0]) for _ in range(num_answers)]
        )


def show_pairs(console: Console, pairs: Sequence[Pair]) -> bool:
    """Print the table of lengths and the targets; true if all are met."""
    table = Table(title="one client, system text marked for five minutes", title_justify="left")
    for column in (
        "prompt tokens",
        "cold TTFT",
        "warm TTFT",
        "warm/cold",
        "written",
        "read",
        "skipped",
        "decode",
    ):
        table.add_column(column, justify="right")
    for pair in pairs:
        cold, warm = pair.cold, pair.warm
        counts = (str(cold.num_written), str(warm.num_read), str(warm.num_skipped))
        times = (f"{cold.ttft_s:.2f} s", f"{warm.ttft_s:.3f} s", f"{pair.ratio:.1%}")
        table.add_row(str(warm.num_prompt), *times, *counts, f"{1000 * warm.decode_s:.0f} ms")
    console.print(table)
    targets = {
        f"read == written, 0 <= skipped - read < {MAX_UNBILLED}": all(
            pair.counts_agree for pair in pairs
        )
    }
    for pair in pairs:
        if pair.num_tokens == TARGET_LENGTH:
            targets[f"warm TTFT <= {TARGET_RATIO:.0%} of cold at {TARGET_LENGTH} tokens"] = (
                pair.ratio <= TARGET_RATIO
            )
    for target, met in targets.items():
        console.print(f"{'PASS' if met else 'FAIL'}: {target}", highlight=False)
    console.print()
    return all(targets.values())
