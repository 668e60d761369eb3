"""Replies of a Redis server, its large strings received in place. Knows no commands and no objects.

The client's own parsers copy a string several times and hold the interpreter meanwhile. Here a
string of `IN_PLACE_NBYTES` or more becomes a view of memory that the socket itself fills, and the
kernel is asked for all of it at once: who asks again for every piece that came waits each time for
whoever has the interpreter, and the server with them.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any, Final

import redis
from redis._parsers import _RESP2Parser
from redis._parsers.socket import SERVER_CLOSED_CONNECTION_ERROR, SocketBuffer

from engine.memory import MAPPED_NBYTES, Lend

IN_PLACE_NBYTES: Final = MAPPED_NBYTES
READ_NBYTES: Final = 1 << 16
"""Bytes asked of the socket where it is not known how many will come: of a large string as many are
copied once."""


class LargeReplies(_RESP2Parser):
    """RESP2 as `redis` reads it, but for strings of at least `IN_PLACE_NBYTES`: those are read-only
    views.

    Those lie in memory from `lend`.
    """

    def __init__(self, socket_read_size: int, lend: Lend) -> None:
        super().__init__(socket_read_size)  # type: ignore[no-untyped-call]
        self._lend = lend

    def on_connect(self, connection: Any) -> None:
        """Called by the connection once its socket is there."""
        super().on_connect(connection)  # type: ignore[no-untyped-call]
        self._buffer = _Received(
            connection._sock, READ_NBYTES, connection.socket_timeout, self._lend
        )


class _Received(SocketBuffer):
    """Bytes received from the socket. Raises as its base does; then the connection is not used
    again."""

    def __init__(self, sock: Any, read_nbytes: int, timeout_s: float, lend: Lend) -> None:
        super().__init__(sock, read_nbytes, timeout_s)
        self._lend = lend
        self._timeout_s = timeout_s
        # For reads without Python's own timeout, which has the kernel never wait.
        timeval = struct.pack("@ll", *divmod(round(timeout_s * 1_000_000), 1_000_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    def read(self, length: int, *args: Any, **options: Any) -> Any:
        """The next `length` bytes; the line's end after them is taken too."""
        if length < IN_PLACE_NBYTES:
            return super().read(length, *args, **options)
        whole = self._lend(length)
        begun = self._buffer.read(length)
        whole[: len(begun)] = begun
        at = len(begun)
        try:
            while at < length:
                nbytes = self._receive(whole[at:])
                if not nbytes:
                    raise redis.ConnectionError(SERVER_CLOSED_CONNECTION_ERROR)
                at += nbytes
        except (TimeoutError, BlockingIOError):
            raise redis.TimeoutError("Timeout reading from socket") from None
        except OSError as error:
            raise redis.ConnectionError(f"Error while reading from socket: {error.args}") from error
        super().read(0)
        return whole.toreadonly()

    def _receive(self, rest: memoryview) -> int:
        """Fill `rest`, or its beginning with what came within the timeout: how many bytes, 0 for
        the end of the stream."""
        if isinstance(self._sock, ssl.SSLSocket):
            return self._sock.recv_into(rest)
        self._sock.settimeout(None)
        try:
            return self._sock.recv_into(rest, 0, socket.MSG_WAITALL)
        finally:
            self._sock.settimeout(self._timeout_s)
