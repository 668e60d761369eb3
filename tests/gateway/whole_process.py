"""A real `pcg serve` with nothing but an upstream behind it, and how much memory it takes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import orjson
import psutil

LIVE_S = 60

T = TypeVar("T")


@dataclass(slots=True)
class WholeProcess:
    """A running `pcg serve`. `start_nbytes` is what it took of memory when it was ready, `lines`
    its log so far."""

    url: str
    pid: int
    start_nbytes: int
    lines: list[dict[str, object]] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def grown_nbytes(self) -> int:
        """The most memory it has ever taken beyond what it started with."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return max(int(peak) * 1024, psutil.Process(self.pid).memory_info().rss) - self.start_nbytes

    def records(self, outcome: str) -> list[dict[str, object]]:
        """The requests of which the log says that they ended so."""
        return [line for line in self.lines if line.get("outcome") == outcome]

    async def until(self, told: Callable[[], T | None]) -> T:
        """What `told` says, asked after every line of the log until it says something."""
        async with asyncio.timeout(LIVE_S):
            while not (found := told()):
                self.more.clear()
                await self.more.wait()
        return found

    async def until_recorded(self, number: int, outcome: str) -> list[dict[str, object]]:
        """The records, once there are so many."""
        return await self.until(
            lambda: found if len(found := self.records(outcome)) >= number else None
        )

    async def read(self, log: asyncio.StreamReader) -> None:
        """To the end of the log."""
        async for line in log:
            self.lines.append(
                orjson.loads(line) if line.startswith(b"{") else {"event": line.decode()}
            )
            self.more.set()


@asynccontextmanager
async def whole_process(
    folder: Path, policy: str, upstream_url: str
) -> AsyncIterator[WholeProcess]:
    """`pcg serve` with `policy` for the length of the block; then it ends by itself with status 0.

    It passes every model id to the upstream, in Anthropic's format.
    """
    file = folder / "policy.yaml"
    backend = f"{{name: up, api: anthropic, base_url: '{upstream_url}', max_requests: 64}}"
    file.write_text(f"models: []\nbackends: [{backend}]\n{policy}")
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PCG_") and name != "PORT"
    }
    environ |= {"PCG_HOME": str(folder / "home"), "COLUMNS": "200"}
    command = (sys.executable, "-m", "gateway.cli", "serve", "--port", "0", "--policy", str(file))
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    served = WholeProcess("", process.pid, 0)
    reading = asyncio.create_task(served.read(process.stderr))
    try:
        async with asyncio.timeout(LIVE_S):
            while "ready at" not in (line := (await process.stdout.readline()).decode()):
                assert line, served.lines
        served.url = line.split()[-1]
        served.start_nbytes = psutil.Process(process.pid).memory_info().rss
        yield served
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(LIVE_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await reading
