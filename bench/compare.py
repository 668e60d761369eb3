"""The same load on two OpenAI-compatible servers in turn,
and what the first takes of the second's time.

    python -m bench.compare --model smollm2-135m-instruct \
        --base-url http://127.0.0.1:8080 --base-url http://127.0.0.1:8000

Both get the same texts, which neither has seen, and take turns from one measurement to the next, so
that whatever else the machine does slows down both. A ratio is the median of the rounds' own
ratios. `bench/peers.md` says how to start peers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import aiohttp
from rich.console import Console
from rich.table import Table

from bench.chat import TIMEOUT_S, ChatClient, Message
from bench.load import closed_loop, figures_of, open_loop
from bench.machine import describe
from bench.traffic import MODEL
from bench.workloads import (
    Conversation,
    Writer,
    generated_shared_prefix,
    multi_turn,
    no_reuse,
    poisson,
    prefix_repetition,
)

LENGTHS: Final = (500, 1000, 2000, 4000)
PAUSE_S: Final = 1.0
"""Between the turns of two servers: what the last one does behind its answers would count against
the other. Threads of Intel's OpenMP, as in vLLM, spin for 200 ms after their work; our lower tiers
are written behind."""

NUM_MARKS: Final = 35
"""About as many tokens as the template and a question add to a system text."""
NUM_DECODED: Final = 128
NUM_CLIENTS: Final = 8
SHARED_TOKENS: Final = 2000
SHARED_OUTPUT: Final = 64

console = Console(width=110)

Measure = Callable[[ChatClient, str], Awaitable[Mapping[str, float]]]
"""Loads one server with texts from a seed and returns what it measured by name: seconds, or tokens
per second."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the first server's figure is to be of the second's."""

    factor: float
    at_most: bool = True

    def met(self, ratio: float) -> bool:
        return ratio <= self.factor if self.at_most else ratio >= self.factor

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.factor:g}"


TARGETS: Final[Mapping[str, Target]] = {
    "cold TTFT, 4000 tokens": Target(0.7),
    "warm TTFT, 4000 tokens": Target(0.5),
    "decode, one client": Target(0.8),
    f"{NUM_CLIENTS} clients, shared prefix": Target(1.3, at_most=False),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of both servers: medians over the rounds, and the median of the rounds' ratios."""

    name: str
    first: float
    second: float
    ratio: float

    @property
    def is_rate(self) -> bool:
        """Tokens per second, not seconds."""
        return "clients" in self.name

    def shown(self, value: float) -> str:
        return f"{value:.1f} token/s" if self.is_rate else f"{1000 * value:.1f} ms"

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        target = TARGETS.get(self.name)
        return None if target is None else target.met(self.ratio)


def compare_rounds(name: str, rounds: Sequence[tuple[float, float]]) -> Comparison:
    """`rounds` are one figure of both servers each."""
    first, second = zip(*rounds, strict=True)
    ratio = statistics.median(a / b for a, b in rounds)
    return Comparison(name, statistics.median(first), statistics.median(second), ratio)


def length_measure(num_tokens: int) -> Measure:
    """A prompt of this length: never seen, then twice with another question."""

    async def measure(client: ChatClient, seed: str) -> Mapping[str, float]:
        system = Message("system", Writer(seed).text(num_tokens - NUM_MARKS))
        questions = ("Tell me a story.", "What is a page?", "What is an entry?")
        cold, *warm = [
            await client.ask([system, Message("user", question)], 8) for question in questions
        ]
        warm_s = statistics.median(reply.ttft_s for reply in warm)
        return {
            f"cold TTFT, {num_tokens} tokens": cold.ttft_s,
            f"warm TTFT, {num_tokens} tokens": warm_s,
        }

    return measure


async def measure_decode(client: ChatClient, seed: str) -> Mapping[str, float]:
    """One long answer to a short question."""
    reply = await client.ask([Message("user", Writer(seed).question())], NUM_DECODED)
    return {"decode, one client": reply.decode_s}


async def measure_shared(client: ChatClient, seed: str) -> Mapping[str, float]:
    """Eight clients at once behind a system text nobody has seen; then eight more behind the
    same."""
    shape = {
        "system_tokens": SHARED_TOKENS - NUM_MARKS,
        "question_tokens": 20,
        "output_tokens": SHARED_OUTPUT,
    }
    conversations = generated_shared_prefix(
        seed, num_groups=1, prompts_per_group=2 * NUM_CLIENTS, **shape
    )
    cold = figures_of(await closed_loop(client, conversations[:NUM_CLIENTS], NUM_CLIENTS))
    held = figures_of(await closed_loop(client, conversations[NUM_CLIENTS:], NUM_CLIENTS))
    name = f"{NUM_CLIENTS} clients, shared prefix"
    return {name: cold.output_rate, f"{name} held": held.output_rate}


def shaped(shape: str, seed: str) -> list[Conversation]:
    """Two dozen requests or so of one of the known shapes."""
    shapes: Mapping[str, Callable[[], list[Conversation]]] = {
        "prefix-repetition": lambda: prefix_repetition(
            seed,
            num_prefixes=4,
            num_requests=24,
            prefix_tokens=1000,
            suffix_tokens=100,
            output_tokens=32,
        ),
        "shared-prefix": lambda: generated_shared_prefix(
            seed,
            num_groups=3,
            prompts_per_group=8,
            system_tokens=1500,
            question_tokens=60,
            output_tokens=32,
        ),
        "multi-turn": lambda: multi_turn(
            seed,
            num_conversations=6,
            num_turns=4,
            system_tokens=800,
            question_tokens=60,
            output_tokens=32,
        ),
        "no-reuse": lambda: no_reuse(seed, num_requests=16, prompt_tokens=600, output_tokens=16),
    }
    return shapes[shape]()


SHAPES: Final = ("prefix-repetition", "shared-prefix", "multi-turn", "no-reuse")


def open_measure(shape: str, rate: float) -> Measure:
    """Conversations of a shape that begin by themselves, `rate` per second on average."""

    async def measure(client: ChatClient, seed: str) -> Mapping[str, float]:
        figures = figures_of(await open_loop(client, poisson(shaped(shape, seed), rate, seed)))
        name = f"{shape} at {rate:g}/s"
        return {
            f"TTFT, {name}": figures.ttft_s,
            f"TTFT p95, {name}": figures.ttft_p95_s,
            f"decode, {name}": figures.decode_s,
        }

    return measure


async def compare(
    clients: tuple[ChatClient, ChatClient],
    measures: Sequence[Measure],
    num_rounds: int,
    seed: str,
    pause_s: float = 0.0,
) -> list[Comparison]:
    """Every measure `num_rounds` times on both servers, `pause_s` before each and first in turn.
    Raises `ServerRefused`."""
    comparisons = []
    for i, measure in enumerate(measures):
        rounds: dict[str, list[tuple[float, float]]] = {}
        for k in range(num_rounds):
            order = (0, 1) if k % 2 == 0 else (1, 0)
            found = {}
            for at in order:
                await asyncio.sleep(pause_s)
                found[at] = await measure(clients[at], f"{seed}, {i}, {k}")
            for name in found[0]:
                rounds.setdefault(name, []).append((found[0][name], found[1][name]))
        made = [compare_rounds(name, pairs) for name, pairs in rounds.items()]
        for comparison in made:
            console.print(f"{comparison.name}: {comparison.ratio:.2f}", highlight=False)
        comparisons += made
    return comparisons


def show(comparisons: Sequence[Comparison]) -> bool:
    """Print the table; true if every target that was measured is met."""
    table = Table(title="first and second server in turn", title_justify="left")
    for column in ("", "first", "second", "ratio", "target", ""):
        table.add_column(column, justify="left" if column == "" else "right")
    for comparison in comparisons:
        verdict = {None: "", True: "pass", False: "FAIL"}[comparison.met]
        target = str(TARGETS.get(comparison.name, ""))
        cells = (
            comparison.shown(comparison.first),
            comparison.shown(comparison.second),
            f"{comparison.ratio:.2f}",
            target,
            verdict,
        )
        table.add_row(comparison.name, *cells)
    console.print(table)
    return all(comparison.met is not False for comparison in comparisons)


async def run(
    base_urls: Sequence[str], models: Sequence[str], arguments: argparse.Namespace
) -> list[Comparison]:
    """Measure what the arguments ask for. Raises `ServerRefused`."""
    measures = [length_measure(num_tokens) for num_tokens in arguments.lengths]
    measures += [] if arguments.lengths_only else [measure_decode, measure_shared]
    measures += [open_measure(shape, arguments.rate) for shape in arguments.shapes]
    # A connection each: llama.cpp's server closes one after a stream without saying so.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
    ) as session:
        first, second = (
            ChatClient(session, url, model, {})
            for url, model in zip(base_urls, models, strict=True)
        )
        for client in (first, second):
            await client.probe()
            await client.ask(
                [Message("system", Writer(arguments.seed).text(600)), Message("user", "Hello.")], 8
            )
        return await compare((first, second), measures, arguments.rounds, arguments.seed, PAUSE_S)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command's arguments; ends the program for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--base-url", action="append", required=True, help="twice: ours, then theirs"
    )
    parser.add_argument(
        "--model", action="append", help=f"once for both, or once for each; default {MODEL}"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="times that each measurement is made on both"
    )
    parser.add_argument(
        "--lengths", type=int, nargs="*", default=LENGTHS, help="prompt lengths in tokens"
    )
    parser.add_argument(
        "--lengths-only",
        action="store_true",
        help="leave out the long answer and the eight clients",
    )
    parser.add_argument(
        "--shapes", nargs="*", choices=SHAPES, default=(), help="also these, as an open loop"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=0.5,
        help="conversations per second that begin in the open loop",
    )
    parser.add_argument(
        "--seed", default=uuid.uuid4().hex, help="of all texts; one used before finds them cached"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args(words)
    arguments.model = arguments.model or [MODEL]
    if len(arguments.base_url) != 2 or len(arguments.model) > 2:
        parser.error("two servers are compared: --base-url A --base-url B, and one --model or two")
    if len(arguments.model) == 1:
        arguments.model *= 2
    return arguments


def main() -> int:
    arguments = parse()
    machine = describe()
    for name, value in machine.items():
        console.print(f"{name:>14}: {value}", highlight=False)
    comparisons = asyncio.run(run(arguments.base_url, arguments.model, arguments))
    if arguments.json:
        figures = {"machine": machine, "base_urls": arguments.base_url, "comparisons": comparisons}
        arguments.json.write_text(
            json.dumps(figures, default=asdict, indent=2) + "\n", encoding="utf-8"
        )
    return 0 if show(comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
