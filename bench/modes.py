"""What exact mode costs against fast mode, on two gateways that take turns. Part of `make bench`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from rich.console import Console
from rich.table import Table

from bench.lengths import Pair, measure_pair
from bench.traffic import Client
from tools.serving import POLICY

MODE_LENGTH: Final = 2000
MODE_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Mode:
    """What one setting of `engine.exact` costs."""

    exact: str
    cold_s: float
    warm_s: float
    decode_s: float


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


def show_modes(console: Console, modes: Sequence[Mode]) -> None:
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
