"""What each runner takes, and the exact mode of those that have one, on gateways that take turns.
Part of `make bench`."""

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
from engine.native.library import why_not_native
from tools.serving import POLICY

MODE_LENGTH: Final = 2000
MODE_TOKENS: Final = 64
MODES: Final[dict[str, str]] = {
    "lean": "runner: lean, exact: off",
    "generic": "runner: generic, exact: off",
    "generic, exact": "runner: generic, exact: on",
    "native": "runner: native",
}
"""Settings of an engine by the name they have in the table, the one that others are compared with
first."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What one of `MODES` takes."""

    name: str
    cold_s: float
    warm_s: float
    decode_s: float


async def measure_modes(base_urls: Mapping[str, str], repetitions: int) -> list[Mode]:
    """One mode per gateway. They take turns, so that whatever else the machine does slows down all
    of them."""
    runs: dict[str, list[Pair]] = {name: [] for name in base_urls}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        for _ in range(repetitions):
            for name, base_url in base_urls.items():
                runs[name].append(
                    await measure_pair(Client(session, base_url), MODE_LENGTH, 1, MODE_TOKENS)
                )
    return [mode_of(name, pairs) for name, pairs in runs.items()]


def mode_of(name: str, pairs: Sequence[Pair]) -> Mode:
    """Medians over repetitions."""
    return Mode(
        name,
        cold_s=statistics.median(pair.cold.ttft_s for pair in pairs),
        warm_s=statistics.median(pair.warm.ttft_s for pair in pairs),
        decode_s=statistics.median(
            answer.decode_s for pair in pairs for answer in (pair.cold, pair.warm)
        ),
    )


def modes_here() -> list[str]:
    """The names of `MODES` that this machine can run."""
    return [name for name in MODES if name != "native" or why_not_native() is None]


def engine_policy(settings: str) -> str:
    """A policy whose engine has these settings of YAML."""
    return f"{POLICY}models: [{{engine: {{{settings}, kv_bytes: 1GiB}}}}]\n"


def show_modes(console: Console, modes: Sequence[Mode]) -> None:
    """Print what each takes, and as a share of what the first takes."""
    table = Table(title=f"runners, {MODE_LENGTH} tokens", title_justify="left")
    for column in ("runner", "cold TTFT", "warm TTFT", "decode per token"):
        table.add_column(column, justify="right")
    first = modes[0]
    for mode in modes:
        cold = f"{mode.cold_s:.2f} s ({mode.cold_s / first.cold_s:.2f})"
        warm = f"{mode.warm_s:.3f} s ({mode.warm_s / first.warm_s:.2f})"
        table.add_row(
            mode.name,
            cold,
            warm,
            f"{1000 * mode.decode_s:.1f} ms ({mode.decode_s / first.decode_s:.2f})",
        )
    console.print(table)
    console.print()
