"""`make bench`: the default model through real gateways,
in sections; each prints its table and the targets it has.

Texts are new in every run, so nothing is measured twice. Seconds on a shared machine are noise;
read the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from bench.clients import measure_clients, show_clients
from bench.index import measure_index, show_index
from bench.kernels import measure_kernels, show_kernels
from bench.lengths import LENGTHS, measure_lengths, measure_overhead, show_pairs
from bench.machine import describe
from bench.misses import measure_misses, show_misses
from bench.modes import MODES, engine_policy, measure_modes, modes_here, show_modes
from bench.tiers import measure_tiers, show_tiers
from tools.serving import serving

console = Console(width=110)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a section measured, as JSON takes it, and whether its targets are met."""

    figures: Any
    good: bool = True


def lengths_section(arguments: argparse.Namespace) -> Outcome:
    """Cold and warm time to first token by prompt length, and the time around the computing."""
    with serving() as base_url:
        pairs = asyncio.run(measure_lengths(base_url, arguments.lengths, arguments.repetitions))
        overhead_s = asyncio.run(measure_overhead(base_url, max(arguments.lengths)))
    good = show_pairs(console, pairs)
    told = (
        f"a warm request of {max(arguments.lengths)} tokens spends {1000 * overhead_s:.1f} ms "
        "besides computing tokens"
    )
    console.print(f"{told}\n")
    return Outcome({"pairs": pairs, "overhead_s": overhead_s}, good)


def modes_section(arguments: argparse.Namespace) -> Outcome:
    """The runners, and the exact mode of those that have one, in turns."""
    with ExitStack() as gateways:
        base_urls = {
            name: gateways.enter_context(serving(engine_policy(MODES[name])))
            for name in modes_here()
        }
        modes = asyncio.run(measure_modes(base_urls, arguments.repetitions))
    show_modes(console, modes)
    return Outcome(modes)


def clients_section(arguments: argparse.Namespace) -> Outcome:
    """One, four and eight clients on a shared prefix and on conversations."""
    with serving(engine_policy("exact: auto")) as base_url:
        figures = asyncio.run(measure_clients(base_url, arguments.seed))
    return Outcome(figures, show_clients(console, figures))


def misses_section(arguments: argparse.Namespace) -> Outcome:
    """A workload without hits, kept and not kept, in turns."""
    with serving(engine_policy("exact: auto")) as base_url:
        figures = asyncio.run(measure_misses(base_url, arguments.seed))
    return Outcome(figures, show_misses(console, figures))


def tiers_section(arguments: argparse.Namespace) -> Outcome:
    """A prefix read back from every tier, against the speed of its medium."""
    figures = measure_tiers()
    return Outcome(figures, show_tiers(console, figures))


def index_section(arguments: argparse.Namespace) -> Outcome:
    """The cache alone, without a model."""
    figures = measure_index()
    return Outcome(figures, show_index(console, figures))


def kernels_section(arguments: argparse.Namespace) -> Outcome:
    """The native kernels alone, beside torch."""
    figures = measure_kernels()
    return Outcome(figures, show_kernels(console, figures))


SECTIONS: Final[Mapping[str, Callable[[argparse.Namespace], Outcome]]] = {
    "lengths": lengths_section,
    "modes": modes_section,
    "clients": clients_section,
    "misses": misses_section,
    "tiers": tiers_section,
    "index": index_section,
    "kernels": kernels_section,
}


def run_sections(names: Sequence[str], arguments: argparse.Namespace) -> dict[str, Outcome]:
    """The sections of these names in their usual order, each announced before and timed after."""
    chosen = [name for name in SECTIONS if name in names]
    outcomes = {}
    for i, name in enumerate(chosen, 1):
        console.rule(f"{name}, {i} of {len(chosen)}", align="left")
        begin_s = time.monotonic()
        outcomes[name] = SECTIONS[name](arguments)
        console.print(f"{name}: {time.monotonic() - begin_s:.0f} s\n", highlight=False)
    return outcomes


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command's arguments; ends the program for wrong ones."""
    whole = argparse.RawDescriptionHelpFormatter
    about = "\n".join(f"  {name:9}{section.__doc__}" for name, section in SECTIONS.items())
    parser = argparse.ArgumentParser(
        prog="make bench", description=f"{__doc__}\n\nsections:\n{about}", formatter_class=whole
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SECTIONS,
        default=list(SECTIONS),
        metavar="SECTION",
        help="only these",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--repetitions", type=int, default=2, help="cold prompts per length and per mode"
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=LENGTHS, help="prompt lengths in tokens"
    )
    parser.add_argument(
        "--seed", default=uuid.uuid4().hex, help="of the texts of `clients` and `misses`"
    )
    return parser.parse_args(words)


def main() -> int:
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # so that the gateways started here are stopped, too
    arguments = parse()
    machine = describe()
    for name, value in machine.items():
        console.print(f"{name:>14}: {value}", highlight=False)
    outcomes = run_sections(arguments.only, arguments)
    if arguments.json:
        figures = {"machine": machine} | {
            name: outcome.figures for name, outcome in outcomes.items()
        }
        arguments.json.write_text(
            json.dumps(figures, default=asdict, indent=2) + "\n", encoding="utf-8"
        )
    missed = [name for name, outcome in outcomes.items() if not outcome.good]
    if missed:
        console.print(f"targets missed in: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
