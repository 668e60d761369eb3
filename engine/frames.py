"""Frames over a blocking stream socket: read one at a time, write from any thread.

Knows no engine.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Final

import msgspec

from engine.messages import (
    LENGTH,
    MAX_FRAME_NBYTES,
    FromEngine,
    ToEngine,
    decode_to_engine,
    encode_frame,
)

MAX_PENDING_NBYTES: Final = 1024 * 1024
"""Bytes that may wait for a slow reader before writers have to wait as well."""


class BrokenFrame(Exception):
    """The peer sent something that is not a frame: the stream cannot be followed any further."""


def read_frame(sock: socket.socket) -> ToEngine | None:
    """The next message, or None when the peer is gone. Raises `BrokenFrame`."""
    header = _read_exactly(sock, LENGTH.size)
    if header is None:
        return None
    (nbytes,) = LENGTH.unpack(header)
    if nbytes > MAX_FRAME_NBYTES:
        raise BrokenFrame(f"frame of {nbytes} bytes exceeds the cap of {MAX_FRAME_NBYTES}")
    payload = _read_exactly(sock, nbytes)
    try:
        return None if payload is None else decode_to_engine(payload)
    except msgspec.MsgspecError as error:
        raise BrokenFrame(f"unreadable frame: {type(error).__name__}") from error


def _read_exactly(sock: socket.socket, nbytes: int) -> bytes | None:
    buffer = bytearray(nbytes)
    view = memoryview(buffer)
    while view:
        try:
            num_read = sock.recv_into(view)
        except ConnectionError:
            return None
        if num_read == 0:
            return None
        view = view[num_read:]
    return bytes(buffer)


class FrameWriter:
    """A thread that writes frames in the order they were handed over.

    When more than `max_pending_nbytes` wait for the peer, `write` waits too: a slow reader slows
    the writer down and costs no memory. Once the peer is gone frames are dropped, silently: the
    reader of the socket notices.
    """

    def __init__(self, sock: socket.socket, max_pending_nbytes: int = MAX_PENDING_NBYTES) -> None:
        self._sock = sock
        self._max_pending_nbytes = max_pending_nbytes
        self._changed = threading.Condition()
        self._pending: deque[bytes] = deque()
        self._pending_nbytes = 0
        self._is_broken = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="frames", daemon=True)
        self._thread.start()

    def write(self, message: FromEngine) -> None:
        """Hand a message over; waits while the peer is slow. Thread-safe."""
        frame = encode_frame(message)
        with self._changed:
            self._changed.wait_for(
                lambda: self._pending_nbytes < self._max_pending_nbytes or self._is_broken
            )
            if self._is_broken or self._is_closed:
                return
            self._pending.append(frame)
            self._pending_nbytes += len(frame)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Write what is pending, for at most `timeout_s`, then give up and release every waiting
        writer. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        self._break()

    def _run(self) -> None:
        while frames := self._take():
            try:
                self._sock.sendall(frames)
            except OSError:
                self._break()
                return

    def _take(self) -> bytes:
        """Everything pending, at least one frame; empty when it is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self._pending) or self._is_closed or self._is_broken
            )
            frames = b"" if self._is_broken else b"".join(self._pending)
            self._pending.clear()
            self._pending_nbytes = 0
            self._changed.notify_all()
            return frames

    def _break(self) -> None:
        with self._changed:
            self._is_broken = True
            self._pending.clear()
            self._pending_nbytes = 0
            self._changed.notify_all()
