"""Reads a request's body within bounds, compressed or not. Knows nothing of what is in it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

from aiohttp import web

from gateway.budget import Claim
from gateway.errors import BodyLate, BodyTooLarge, InvalidRequest
from gateway.http.cost import BodyCost

PIECE_NBYTES: Final = 64 * 1024
"""Bytes that are inflated, and counted, at a time."""

_GZIP: Final = 16 + zlib.MAX_WBITS


async def read_body(
    http: web.Request, max_nbytes: int, silence_s: float, claim: Claim | None = None
) -> bytes:
    """The whole body, decoded. Never holds more than `max_nbytes` of it in either form, nor more
    than `claim` is given.

    Raises `BodyTooLarge` when the body as sent or as decoded exceeds `max_nbytes`, or would take
    more memory than one tenant may ever have; `RateLimited` and `Overloaded` when there is no room
    for it now; `BodyLate` when nothing comes for `silence_s` though it has not ended; and
    `InvalidRequest` for an encoding other than gzip or for damaged gzip. The server must be set up
    not to decompress by itself.
    """
    encoding = http.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", ""):
        message = f"Content-Encoding {encoding!r} is not supported; send gzip or nothing"
        raise InvalidRequest(message, code="request_body_encoding_unsupported")
    if (http.content_length or 0) > max_nbytes:
        raise _too_large(max_nbytes)
    inflate = zlib.decompressobj(_GZIP) if "gzip" in encoding else None
    body = bytearray()  # not a list: of a body in tiny pieces, that would be many times as large
    num_sent = 0
    cost = BodyCost()
    async for chunk in _pieces(http, silence_s):
        num_sent += len(chunk)
        if num_sent > max_nbytes:
            raise _too_large(max_nbytes)
        cut = (chunk[i : i + PIECE_NBYTES] for i in range(0, len(chunk), PIECE_NBYTES))
        for piece in _inflated(inflate, chunk) if inflate else cut:
            if len(body) + len(piece) > max_nbytes:
                raise _too_large_decoded()
            if claim is not None:
                more = cost.add(piece)
                if claim.nbytes + more > claim.budget.tenant_nbytes:  # to try again is no use
                    message = "the body takes more memory than one client may have (server.memory)"
                    raise BodyTooLarge(message)
                claim.grow(more)
            body += piece
            if inflate:
                await asyncio.sleep(
                    0
                )  # a few bytes become many pieces: others are served in between
    if inflate and num_sent and not inflate.eof:
        raise _not_gzip("the gzip body ends early")
    return bytes(body)


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


def _inflated(inflate: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    """The bytes that `chunk` adds, inflated piece by piece as they are asked for."""
    while True:
        try:
            piece = inflate.decompress(chunk, PIECE_NBYTES)
        except zlib.error:
            raise _not_gzip("the body is not valid gzip") from None
        if piece:
            yield piece
        if inflate.unused_data:
            raise _not_gzip("the gzip body has more than one member")
        chunk = inflate.unconsumed_tail
        if not chunk and len(piece) < PIECE_NBYTES:
            return


def _not_gzip(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="request_body_encoding_invalid")


def _too_large(max_nbytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body exceeds the maximum of {max_nbytes} bytes")


def _too_large_decoded() -> BodyTooLarge:
    return BodyTooLarge(
        "the body is too large once decoded", code="request_body_too_large_after_decoding"
    )
