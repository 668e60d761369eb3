"""What the cache costs where it never helps: prompts with nothing in common, kept or not.

Part of `make bench`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from bench.chat import TIMEOUT_S, ChatClient
from bench.load import LoadFigures, closed_loop, figures_of
from bench.traffic import MODEL, Client
from bench.workloads import no_reuse

SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "kept": {},
    "no-store": {"Cache-Control": "no-store"},
}
"""Headers of the requests, by what becomes of their KV."""
NUM_ROUNDS: Final = 4
NUM_REQUESTS: Final = 4
MAX_SHARE: Final = 0.02
"""Of the time spent in steps of the model, at most this much again may be spent in the cache."""


@dataclass(frozen=True, slots=True)
class MissFigures:
    """Loads without a single hit, in turns; `cache_share` is time in the cache over time in the
    model's steps."""

    rounds: Mapping[str, Sequence[LoadFigures]]
    cache_share: float

    @property
    def cost(self) -> float:
        """How much longer a round takes where everything is kept, as a part of the other's time."""
        pairs = zip(self.rounds["kept"], self.rounds["no-store"], strict=True)
        return (
            statistics.median(kept.duration_s / forgotten.duration_s for kept, forgotten in pairs)
            - 1
        )


async def measure_misses(base_url: str, seed: str) -> MissFigures:
    """Both settings in turn, on a gateway that nobody else uses. Raises `ServerRefused`."""
    rounds: dict[str, list[LoadFigures]] = {name: [] for name in SETTINGS}
    shape = {"num_requests": NUM_REQUESTS, "prompt_tokens": 600, "output_tokens": 8}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        seen = Client(session, base_url)
        clients = {
            name: ChatClient(session, base_url, MODEL, headers)
            for name, headers in SETTINGS.items()
        }
        await closed_loop(clients["no-store"], no_reuse(f"{seed}, first", **shape), 1)
        share_s = {"cache": 0.0, "step": 0.0}
        for i in range(NUM_ROUNDS):
            for name in list(SETTINGS)[:: 1 if i % 2 == 0 else -1]:
                before = engine_seconds(await seen.metrics())
                replies = await closed_loop(
                    clients[name], no_reuse(f"{seed}, {name}, {i}", **shape), 1
                )
                rounds[name].append(figures_of(replies))
                if name == "kept":
                    after = engine_seconds(await seen.metrics())
                    share_s = {kind: share_s[kind] + after[kind] - before[kind] for kind in share_s}
    return MissFigures(rounds, share_s["cache"] / share_s["step"])


def engine_seconds(metrics: str) -> Mapping[str, float]:
    """Seconds since the start in the cache and in steps of the model, of what `/metrics` shows."""
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    }
    return {kind: samples[f"pcg_engine_{kind}_seconds_total"] for kind in ("cache", "step")}


def show_misses(console: Console, figures: MissFigures) -> bool:
    """Print the table; true if the cache takes at most its share, and nothing was read."""
    table = Table(title="prompts of 600 tokens with nothing in common", title_justify="left")
    for column in ("KV of the requests", "TTFT", "per request", "read"):
        table.add_column(column, justify="left" if column == "KV of the requests" else "right")
    for name, loads in figures.rounds.items():
        times = (
            statistics.median(load.ttft_s for load in loads),
            statistics.median(load.duration_s for load in loads),
        )
        shown = (
            f"{times[0]:.3f} s",
            f"{times[1] / NUM_REQUESTS:.3f} s",
            str(sum(load.num_cached for load in loads)),
        )
        table.add_row(name, *shown)
    console.print(table)
    missed = all(load.num_cached == 0 for loads in figures.rounds.values() for load in loads)
    good = missed and figures.cache_share <= MAX_SHARE
    console.print(
        f"keeping everything costs {figures.cost:+.1%} of the time, on this machine at this moment",
        highlight=False,
    )
    told = (
        f"time in the cache is {figures.cache_share:.2%} of that in the model's steps, at "
        "most "
        f"{MAX_SHARE:.0%}"
    )
    console.print(f"{'PASS' if good else 'FAIL'}: {told}\n", highlight=False)
    return good
