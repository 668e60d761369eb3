"""One, four and eight clients at once, on prompts that share a beginning and on conversations.

Part of `make bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from rich.console import Console
from rich.table import Table

from bench.chat import TIMEOUT_S, ChatClient
from bench.load import LoadFigures, closed_loop, figures_of
from bench.traffic import MODEL
from bench.workloads import Conversation, generated_shared_prefix, multi_turn

NUM_CLIENTS: Final = (1, 4, 8)
TIMES: Final = {"question_tokens": 40, "output_tokens": 24}
WORKLOADS: Final[Mapping[str, Callable[[str], list[Conversation]]]] = {
    "shared prefix": lambda seed: generated_shared_prefix(
        seed, num_groups=1, prompts_per_group=8, system_tokens=1500, **TIMES
    ),
    "multi-turn": lambda seed: multi_turn(
        seed, num_conversations=8, num_turns=2, system_tokens=500, **TIMES
    ),
}
"""Eight questions, and eight conversations of two turns, so that every number of clients does the
same work."""


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """What so many clients got of one workload."""

    workload: str
    num_clients: int
    load: LoadFigures


async def measure_clients(base_url: str, seed: str) -> list[ClientFigures]:
    """Every workload for every number of clients, each time with texts nobody has seen. Raises
    `ServerRefused`."""
    figures = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        client = ChatClient(session, base_url, MODEL, {})
        for name, workload in WORKLOADS.items():
            for num_clients in NUM_CLIENTS:
                replies = await closed_loop(client, workload(f"{seed}, {num_clients}"), num_clients)
                figures.append(ClientFigures(name, num_clients, figures_of(replies)))
    return figures


def show_clients(console: Console, figures: Sequence[ClientFigures]) -> bool:
    """Print the table; true if more clients never mean fewer tokens per second of a workload."""
    table = Table(title="several clients at once", title_justify="left")
    for column in (
        "",
        "clients",
        "prompt tokens",
        "TTFT",
        "TTFT p95",
        "decode per token",
        "output",
    ):
        table.add_column(column, justify="left" if column == "" else "right")
    for row in figures:
        load = row.load
        times = (
            f"{load.ttft_s:.2f} s",
            f"{load.ttft_p95_s:.2f} s",
            f"{1000 * load.decode_s:.0f} ms",
        )
        counts = (str(row.num_clients), str(load.num_prompt // load.num_requests))
        table.add_row(row.workload, *counts, *times, f"{load.output_rate:.1f} token/s")
    console.print(table)
    rates = {(row.workload, row.num_clients): row.load.output_rate for row in figures}
    good = all(rates[name, NUM_CLIENTS[-1]] > rates[name, NUM_CLIENTS[0]] for name in WORKLOADS)
    console.print(
        f"{'PASS' if good else 'FAIL'}: eight clients together get more tokens per second than "
        "one\n"
    )
    return good
