"""One connection to one engine worker: frames out, frames in, each to the request it belongs to.
Starts no processes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from engine.messages import (
    LENGTH,
    MAX_FRAME_NBYTES,
    FromEngine,
    Hello,
    ToEngine,
    decode_from_engine,
    encode_frame,
)
from gateway.backends.mailbox import EventMailbox
from gateway.errors import InvalidRequest


class ProtocolError(Exception):
    """The peer sent something that is no frame of this protocol; the connection is of no more
    use."""


async def read_frame(reader: asyncio.StreamReader) -> FromEngine | None:
    """The next frame, or None when the peer has closed (also in the middle of a frame)."""
    try:
        (nbytes,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if nbytes > MAX_FRAME_NBYTES:
            raise ProtocolError(f"frame of {nbytes} bytes exceeds the cap of {MAX_FRAME_NBYTES}")
        return decode_from_engine(await reader.readexactly(nbytes))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"unreadable frame: {type(error).__name__}") from error


class Link:
    """Everything in flight on one connection. `run` must be running for replies to arrive."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._mailboxes: dict[str, EventMailbox] = {}
        self._own: set[str] = set()
        self._serial = itertools.count()
        self._closed: str | None = None

    @property
    def num_open(self) -> int:
        """Requests that still wait for something; what the gateway asks on its own account is
        none."""
        return len(self._mailboxes) - len(self._own)

    @contextmanager
    def open(self, name: str, *, own: bool = False) -> Iterator[tuple[str, EventMailbox]]:
        """A frame id that is unique on this connection, and its mailbox.

        Frames that arrive for the id after the block are dropped. Client-chosen request ids may
        repeat; frame ids never do.
        """
        frame_id = f"{name}.{next(self._serial)}"
        mailbox = EventMailbox()
        if self._closed is not None:
            mailbox.close(self._closed)
        self._mailboxes[frame_id] = mailbox
        if own:
            self._own.add(frame_id)
        try:
            yield frame_id, mailbox
        finally:
            del self._mailboxes[frame_id]
            self._own.discard(frame_id)

    async def send(self, message: ToEngine) -> None:
        """Hand one frame over, waiting while the engine is slow to read. Cancelling never leaves
        half a frame.

        A connection that is gone is no error here: the mailbox says so. Raises `InvalidRequest`
        past the frame cap.
        """
        try:
            self.post(message)
            await self._writer.drain()
        except ConnectionError:
            return

    def post(self, message: ToEngine) -> None:
        """As `send`, without waiting; for small frames on paths that must not wait (`Abort`,
        `Tick`)."""
        try:
            frame = encode_frame(message)
        except ValueError as error:
            raise InvalidRequest("the request is too large for the engine") from error
        if self._closed is None:
            self._writer.write(frame)

    async def run(self) -> None:
        """Deliver frames until the peer closes. Raises `ProtocolError`."""
        while (message := await read_frame(self._reader)) is not None:
            if isinstance(message, Hello):
                raise ProtocolError("a second Hello")
            mailbox = self._mailboxes.get(message.request_id)
            if mailbox is not None:
                mailbox.put(message)

    def close(self, reason: str) -> None:
        """Every request in flight, and every later one, is told to try again. Idempotent."""
        self._closed = self._closed or reason
        for mailbox in self._mailboxes.values():
            mailbox.close(self._closed)
        self._writer.close()
