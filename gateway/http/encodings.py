"""Content encodings of request bodies, decoded piece by piece as they are asked for.

Knows no HTTP library. zstd is there where Python, or a library beside it, has it.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from gateway.errors import InvalidRequest

PIECE_NBYTES: Final = 64 * 1024
"""Bytes that are decoded at a time."""

MAX_MEMBERS: Final = 10_000
"""Of one body: gzip (RFC 1952, section 2.2) and zstd may have several, and an empty one costs work
without adding a byte."""

MAX_WINDOW_LOG: Final = 23
"""8 MiB, the most that a body in zstd may look back (RFC 9659): what its decoder may hold."""

_GZIP: Final = 16 + zlib.MAX_WBITS


class _Member(Protocol):
    """The decoder of one member of a body."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...

    def left(self, piece: bytes) -> bytes | None:
        """The input to go on with behind `piece`; None: all of it is used up."""
        ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(data, max_length)

    def left(self, piece: bytes) -> bytes | None:
        tail = self._inner.unconsumed_tail
        return tail if tail or len(piece) == PIECE_NBYTES else None


class _Zstd:
    def __init__(self, zstd: Any) -> None:
        limit = {zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
        self._inner = zstd.ZstdDecompressor(options=limit)

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return bytes(self._inner.decompress(data, max_length))

    def left(self, piece: bytes) -> bytes | None:
        return None if self._inner.needs_input else b""


class Decoder:
    """One body of several members, each of which is whole at its end."""

    def __init__(
        self, name: str, member: Callable[[], _Member], errors: tuple[type[Exception], ...]
    ) -> None:
        self._name = name
        self._member = member
        self._errors = errors
        self._current: _Member | None = None
        self._num_members = 0

    def decoded(self, chunk: bytes) -> Iterator[bytes]:
        """The bytes that `chunk` adds, at most `PIECE_NBYTES` at a time, some of them empty.

        Raises `InvalidRequest` where it is damaged.
        """
        data: bytes | None = chunk
        while data is not None:
            if self._current is None:
                if not data:
                    return
                self._current = self._begun()
            current = self._current
            try:
                piece = current.decompress(data, PIECE_NBYTES)
            except self._errors:
                raise _damaged(f"the body is not valid {self._name}") from None
            yield piece
            if current.eof:
                data, self._current = current.unused_data, None
            else:
                data = current.left(piece)

    def finish(self) -> None:
        """Raises `InvalidRequest` where the body ends within a member."""
        if self._current is not None:
            raise _damaged(f"the {self._name} body ends early")

    def _begun(self) -> _Member:
        self._num_members += 1
        if self._num_members > MAX_MEMBERS:
            raise _damaged(f"the {self._name} body has more than {MAX_MEMBERS} members")
        return self._member()


def decoders() -> dict[str, Callable[[], Decoder]]:
    """The decoders that there are, by the name of their encoding."""
    found: dict[str, Callable[[], Decoder]] = {
        "gzip": lambda: Decoder("gzip", _Gzip, (zlib.error,))
    }
    zstd = _zstd()
    if zstd is not None:
        found["zstd"] = lambda: Decoder("zstd", lambda: _Zstd(zstd), (zstd.ZstdError,))
    return found


def _zstd() -> Any:
    """The module of Python 3.14, or the one for older ones that has the same functions."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _damaged(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="request_body_encoding_invalid")
