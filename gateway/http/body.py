"""Reads a request's body within bounds, compressed or not. Knows nothing of what is in it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from gateway.errors import BodyLate, BodyTooLarge, InvalidRequest

_GZIP: Final = 16 + zlib.MAX_WBITS


async def read_body(http: web.Request, max_nbytes: int, silence_s: float) -> bytes:
    """The whole body, decoded. Never holds more than `max_nbytes` of it in either form.

    Raises `BodyTooLarge` when the body as sent or as decoded exceeds `max_nbytes`, `BodyLate` when
    nothing comes for `silence_s` though it has not ended, and `InvalidRequest` for an encoding
    other than gzip or for damaged gzip. The server must be set up not to decompress by itself.
    """
    encoding = http.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", ""):
        message = f"Content-Encoding {encoding!r} is not supported; send gzip or nothing"
        raise InvalidRequest(message, code="request_body_encoding_unsupported")
    if (http.content_length or 0) > max_nbytes:
        raise _too_large(max_nbytes)
    inflate = zlib.decompressobj(_GZIP) if "gzip" in encoding else None
    chunks: list[bytes] = []
    num_sent = num_read = 0
    async for chunk in _pieces(http, silence_s):
        num_sent += len(chunk)
        if num_sent > max_nbytes:
            raise _too_large(max_nbytes)
        piece = _inflated(inflate, chunk, max_nbytes - num_read) if inflate else chunk
        num_read += len(piece)
        chunks.append(piece)
    if inflate and num_sent and not inflate.eof:
        raise _not_gzip("the gzip body ends early")
    return b"".join(chunks)


async def _pieces(http: web.Request, silence_s: float) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(silence_s):
                piece = await http.content.readany()
        except TimeoutError:
            raise BodyLate(f"nothing more of the body came within {silence_s:g} s") from None
        if not piece:
            return
        yield piece


def _inflated(inflate: zlib._Decompress, chunk: bytes, room: int) -> bytes:
    try:
        piece = inflate.decompress(chunk, room + 1)
    except zlib.error:
        raise _not_gzip("the body is not valid gzip") from None
    if len(piece) > room:
        raise BodyTooLarge(
            "the body is too large once decoded", code="request_body_too_large_after_decoding"
        )
    if inflate.unused_data:
        raise _not_gzip("the gzip body has more than one member")
    return piece


def _not_gzip(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="request_body_encoding_invalid")


def _too_large(max_nbytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body exceeds the maximum of {max_nbytes} bytes")
