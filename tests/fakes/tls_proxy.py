"""TLS before a server that has none."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import trustme


@contextmanager
def tls_proxy(target: Path, authority: Path) -> Iterator[int]:
    """A port that speaks TLS for the server on the Unix socket `target`. Who vouches for it is
    written to `authority`."""
    maker = trustme.CA()
    maker.cert_pem.write_to_path(str(authority))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    maker.issue_cert("127.0.0.1").configure_cert(context)
    started: SimpleQueue[tuple[int, Callable[[], object]]] = SimpleQueue()

    async def serve() -> None:
        ended = asyncio.Event()
        server = await asyncio.start_server(partial(_join, target), "127.0.0.1", 0, ssl=context)
        port: int = server.sockets[0].getsockname()[1]
        started.put((port, partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)))
        await ended.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    port, end = started.get()
    try:
        yield port
    finally:
        end()
        thread.join()


async def _join(target: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    inner_reader, inner_writer = await asyncio.open_unix_connection(str(target))
    await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 18):
            sink.write(data)
            await sink.drain()
    sink.close()
