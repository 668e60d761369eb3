"""Starts one engine worker process and says how it came up.

Knows nothing of requests and of restarting.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.messages import PROTOCOL_VERSION, Failed, Hello
from gateway.backends.link import Link, ProtocolError, read_frame
from gateway.waits import first_of

_WORKER_ENVIRON: Final = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""A worker's variables that the gateway's own environment may override.

Huge pages, as a worker streams through its weights.
"""


@dataclass(frozen=True, slots=True)
class ProcessTimeouts:
    """Bounds on a worker's life, in seconds."""

    load_s: float = 900.0
    term_s: float = 5.0
    """From SIGTERM to SIGKILL."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A process that has said Hello."""

    pid: int
    hello: Hello
    link: Link


@asynccontextmanager
async def run_worker(
    command: Sequence[str], config: EngineConfig, limits: ProcessTimeouts
) -> AsyncIterator[WorkerProcess]:
    """A loaded worker for the length of the block; afterwards the process is gone, whatever it
    takes.

    `command` is completed by the path of a Unix socket in a private folder; the configuration,
    which holds the root secret, goes to its standard input only. The process leads its own session,
    so a ctrl-C at the terminal reaches the gateway alone. Raises `ModelError` when the model does
    not load or the worker speaks another protocol.
    """
    with (
        tempfile.TemporaryDirectory(prefix="pcg-") as folder,
        _listen(Path(folder) / "engine.sock") as listener,
    ):
        process = await asyncio.create_subprocess_exec(
            *command,
            str(listener.getsockname()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env=_WORKER_ENVIRON | os.environ,
        )
        try:
            hello, link = await _load(process, listener, config, limits.load_s)
            try:
                yield WorkerProcess(process.pid, hello, link)
            finally:
                link.close("the engine restarted; please try again")
        finally:
            await _stop(process, limits.term_s)


@contextmanager
def _listen(path: Path) -> Iterator[socket.socket]:
    """A listening, non-blocking Unix socket at which one worker is expected."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.setblocking(False)
        listener.bind(str(path))
        listener.listen(1)
        yield listener


async def _load(
    process: asyncio.subprocess.Process,
    listener: socket.socket,
    config: EngineConfig,
    load_s: float,
) -> tuple[Hello, Link]:
    try:
        async with asyncio.timeout(load_s):
            await _configure(process, config)
            reader, writer = await _accept(listener, process)
            try:
                return await _greet(reader, process), Link(reader, writer)
            except BaseException:
                writer.close()
                raise
    except TimeoutError:
        raise ModelError(f"the engine did not load the model within {load_s:g} s") from None


async def _configure(process: asyncio.subprocess.Process, config: EngineConfig) -> None:
    assert process.stdin is not None
    with contextlib.suppress(
        ConnectionError
    ):  # a worker that died at once is reported by its exit status
        process.stdin.write(msgspec.json.encode(config))
        await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()


async def _accept(
    listener: socket.socket, process: asyncio.subprocess.Process
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The worker's connection; `ModelError` when it exits without making one."""
    accepted = await first_of(asyncio.get_running_loop().sock_accept(listener), process.wait())
    if isinstance(accepted, int):
        raise _died(accepted)
    return await asyncio.open_unix_connection(sock=accepted[0])


async def _greet(reader: asyncio.StreamReader, process: asyncio.subprocess.Process) -> Hello:
    try:
        message = await read_frame(reader)
    except ProtocolError as error:
        raise ModelError(f"the engine does not speak our protocol: {error}") from error
    match message:
        case Hello(protocol_version=version) if version != PROTOCOL_VERSION:
            raise ModelError(
                f"the engine speaks protocol {version}, this gateway {PROTOCOL_VERSION}: "
                "reinstall both together"
            )
        case Hello():
            return message
        case Failed():
            raise ModelError(message.message)
        case None:
            raise _died(await process.wait())
        case _:
            raise ModelError(f"the engine began with {type(message).__name__} instead of Hello")


def _died(status: int) -> ModelError:
    how = (
        f"was killed by {signal.Signals(-status).name}"
        if status < 0
        else f"exited with status {status}"
    )
    return ModelError(
        f"the engine {how} before the model was loaded; its own words are on standard error"
    )


async def _stop(process: asyncio.subprocess.Process, term_s: float) -> None:
    """SIGTERM, patience, then SIGKILL. Cancellation shortens the patience, never the rest."""
    try:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(term_s):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
