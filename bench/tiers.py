"""A prefix read back from every tier, against the speed of the medium it lies on.

Part of `make bench`.

One prompt of about 4,000 tokens on the default model: computed, found on the device, and brought
back from memory, from the SSD by a fresh process after `kill -9` with nothing in the page cache,
and from Redis by another gateway. A tier is good when time to first token <= that of a device hit +
1.5 x bytes / speed of the medium + 30 ms.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from bench.media import folder_speed, memory_speed, redis_speed, valkey
from bench.page_cache import drop_page_cache, resident_nbytes
from bench.traffic import Client, Measured
from tools.serving import POLICY, Server, make_home, start

NUM_TOKENS: Final = 4000
SLACK_FACTOR: Final = 1.5
SLACK_S: Final = 0.030
WARMER: Final = "What does prefill do?"
QUESTIONS: Final = ("What is an entry?", "What is a page?", "What is a tier?")
"""One per repetition, so that nothing but the marked text is read."""
WRITE_S: Final = 120.0
"""Far longer than writing takes."""
MODEL: Final = "models: [{engine: {kv_bytes: 1GiB}}]\n"
SSD: Final = "ssd: {bytes: 2GiB, min_free: 0"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TierFigures:
    """One way to have the prefix, the median of its repetitions. `nbytes` were read from a tier, on
    a medium of `speed` bytes/s (0 where nothing is read). Of what was stored, `resident_nbytes`
    were in the page cache before the read."""

    name: str
    served_by: str
    ttft_s: float
    num_read: int
    nbytes: int = 0
    speed: float = 0.0
    resident_nbytes: int | None = None

    def bound_s(self, device: TierFigures) -> float:
        """The longest time to first token that is good; of the hits on tiers only."""
        return device.ttft_s + SLACK_FACTOR * self.nbytes / self.speed + SLACK_S


@dataclass(frozen=True, slots=True)
class Prompt:
    """What every gateway is asked about: the text that is measured, and a short one that warms a
    fresh process."""

    system: str
    other: str


@dataclass(slots=True)
class Gateway:
    """A running gateway, and one client of it."""

    home: Path
    tiers: str
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self._start()

    def make_prompt(self) -> Prompt:
        """Texts nobody has seen."""

        async def make(client: Client) -> Prompt:
            return Prompt(
                await client.system_of(NUM_TOKENS, WARMER), await client.system_of(600, WARMER)
            )

        return self._use(make)

    def ask(self, system: str, question: str) -> Measured:
        """One streamed answer."""
        return self._use(lambda client: client.ask(system, question))

    def read_nbytes(self, tier: str) -> int:
        """Bytes of KV read from a tier since the process began."""
        return int(self._metric("pcg_kv_read_bytes_total", tier))

    def wait_until_written(self, tier: str) -> None:
        """Until the tier has everything. Raises TimeoutError."""
        deadline_s = time.monotonic() + WRITE_S
        while self._metric("pcg_kv_queued_bytes", tier) or self._metric(
            "pcg_cache_unwritten", tier
        ):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the {tier} tier is not done writing after {WRITE_S:g} s")

    def restart(self, between: Callable[[], None] = lambda: None) -> None:
        """`kill -9` for the gateway and its engine, then a fresh process."""
        self.server.kill()
        between()
        self._start()

    def _start(self) -> None:
        self.server = start(self.home, f"{POLICY}{MODEL}tiers: {{{self.tiers}}}\n")

    def _metric(self, name: str, tier: str) -> float:
        """One sample of `/metrics`, of this tier where it has tiers; 0 where there is none."""
        families = text_string_to_metric_families(self._use(Client.metrics))
        samples = (
            sample for family in families for sample in family.samples if sample.name == name
        )
        return float(
            next(
                (sample.value for sample in samples if sample.labels.get("tier", tier) == tier), 0.0
            )
        )

    def _use(self, use: Callable[[Client], Awaitable[T]]) -> T:
        async def run() -> T:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
                return await use(Client(session, self.server.base_url))

        return asyncio.run(run())


@contextmanager
def gateway(folder: Path, name: str, tiers: str) -> Iterator[Gateway]:
    """A gateway with a home of its own and the secret that all of a run share."""
    home = make_home(folder / name)
    (home / "secret").touch(mode=0o600)
    (home / "secret").write_text("the gateways of one benchmark share it")
    running = Gateway(home, tiers)
    try:
        yield running
    finally:
        running.server.stop()


def measure_tiers() -> list[TierFigures]:
    """Cold and device first, then every tier, each on a gateway of its own."""
    with tempfile.TemporaryDirectory(prefix="pcg-bench-tiers-") as name:
        folder = Path(name)
        figures, prompt = _device(folder)
        figures.append(_memory(folder, prompt))
        figures += [_ssd(folder, prompt, encrypt=encrypt) for encrypt in (False, True)]
        with valkey(folder) as url:
            figures += [_redis(folder, prompt, url, encrypt=encrypt) for encrypt in (False, True)]
    return figures


def _device(folder: Path) -> tuple[list[TierFigures], Prompt]:
    with gateway(folder, "device", f"{SSD}}}") as asked:
        prompt = asked.make_prompt()
        asked.ask(prompt.other, WARMER)
        cold = asked.ask(prompt.system, WARMER)
        asked.wait_until_written("ssd")
        hits = [asked.ask(prompt.system, question) for question in QUESTIONS]
    return [_figures("cold", [cold], []), _figures("device hit", hits, [])], prompt


def _memory(folder: Path, prompt: Prompt) -> TierFigures:
    with gateway(folder, "memory", "ram: {bytes: 1GiB, force: true}, ssd: {bytes: 0}") as asked:
        asked.ask(prompt.system, WARMER)
        hits, sizes = [], []
        for question in QUESTIONS:
            before = asked.read_nbytes("ram")
            hits.append(asked.ask(prompt.system, question))
            sizes.append(asked.read_nbytes("ram") - before)
    return _figures("memory, forced", hits, sizes, memory_speed(max(sizes)))


def _ssd(folder: Path, prompt: Prompt, *, encrypt: bool) -> TierFigures:
    name = f"ssd{', encrypted' if encrypt else ''}"
    with gateway(folder, name, f"{SSD}, encrypt: {str(encrypt).lower()}}}") as asked:
        kv = asked.home / "kv"
        asked.ask(prompt.system, WARMER)
        hits, sizes, resident = [], [], 0
        for question in QUESTIONS:
            asked.wait_until_written("ssd")
            asked.restart(between=lambda: drop_page_cache(kv))
            resident = max(resident, resident_nbytes(kv))
            asked.ask(prompt.other, question)
            before = asked.read_nbytes("ssd")
            hits.append(asked.ask(prompt.system, question))
            sizes.append(asked.read_nbytes("ssd") - before)
        return _figures(name, hits, sizes, folder_speed(kv, max(sizes)), resident)


def _redis(folder: Path, prompt: Prompt, url: str, *, encrypt: bool) -> TierFigures:
    name = f"redis, another gateway{', encrypted' if encrypt else ''}"
    section = (
        f"ssd: {{bytes: 0, encrypt: {str(encrypt).lower()}}}, redis: {{url: '{url}', "
        f"prefix: 'bench-{encrypt}:'}}"
    )
    with gateway(folder, f"first-{encrypt}", section) as first:
        first.ask(prompt.system, WARMER)
        first.wait_until_written("redis")
    hits, sizes = [], []
    with gateway(folder, f"second-{encrypt}", section) as second:
        for i, question in enumerate(QUESTIONS):
            if i:
                second.restart()
            second.ask(prompt.other, question)
            before = second.read_nbytes("redis")
            hits.append(second.ask(prompt.system, question))
            sizes.append(second.read_nbytes("redis") - before)
    return _figures(name, hits, sizes, redis_speed(url, max(sizes)))


def _figures(
    name: str,
    answers: Sequence[Measured],
    sizes: Sequence[int],
    speed: float = 0.0,
    resident: int | None = None,
) -> TierFigures:
    """The answer in the middle by time to first token."""
    order = sorted(range(len(answers)), key=lambda i: answers[i].ttft_s)
    at = order[len(order) // 2]
    nbytes = sizes[at] if sizes else 0
    return TierFigures(
        name, answers[at].tier, answers[at].ttft_s, answers[at].num_read, nbytes, speed, resident
    )


def show_tiers(console: Console, figures: Sequence[TierFigures]) -> bool:
    """Print the table; true if every tier served what it should, within its bound."""
    cold, device, *tiers = figures
    table = Table(
        title=f"a prefix of {device.num_read} tokens from every tier", title_justify="left"
    )
    for column in ("", "served by", "read", "medium", "TTFT", "of cold", "bound", ""):
        table.add_column(column, justify="left" if column in ("", "served by") else "right")
    good = device.served_by == "device" and device.num_read > 0
    for figure in figures:
        cells = [figure.name, figure.served_by or "computed", _megabytes(figure.nbytes)]
        cells += [
            f"{figure.speed / 1e9:.2f} GB/s" if figure.speed else "",
            f"{1000 * figure.ttft_s:.0f} ms",
        ]
        cells.append(f"{figure.ttft_s / cold.ttft_s:.1%}")
        if figure in tiers:
            is_good = figure.ttft_s <= figure.bound_s(device) and figure.name.startswith(
                ("memory", figure.served_by)
            )
            is_good &= figure.num_read == device.num_read
            good &= is_good
            cells += [f"{1000 * figure.bound_s(device):.0f} ms", "pass" if is_good else "FAIL"]
        table.add_row(*cells)
    console.print(table)
    for figure in tiers:
        if figure.resident_nbytes is not None:
            console.print(
                f"{figure.name}: {_megabytes(figure.resident_nbytes)} in the page cache before "
                "the read"
            )
    for plain, sealed in zip(tiers[1::2], tiers[2::2], strict=True):
        console.print(
            f"{sealed.name}: {1000 * (sealed.ttft_s - plain.ttft_s):+.0f} ms against {plain.name}"
        )
    rule = (
        f"TTFT <= device hit + {SLACK_FACTOR} x read / speed of the medium + "
        f"{1000 * SLACK_S:.0f} ms"
    )
    console.print(
        f"{'PASS' if good else 'FAIL'}: {rule}, and the whole prefix read from that tier\n"
    )
    return good


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"
